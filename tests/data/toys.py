# SPDX-License-Identifier: Apache-2.0
"""Toy tokenizers and templates with few, known ids."""

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from alignax.data.encode import EncodeOptions, Encoder
from alignax.data.formats import parse_row

USER = "{% if m.role == 'user' %}{{ '[INST]' + m.content + '[/INST]' }}"
TURNS = "{% for m in messages %}"
CHATML = (
    TURNS + "{{ '<|start|>' + m.role + '\n' + m.content + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}"
)


def words(vocabulary, *, template=None, bos=None, eos=None, adds_bos=False, special=()):
    """A tokenizer of greedily longest pieces: every piece of the vocabulary is one id."""
    pieces = sorted(vocabulary, key=len, reverse=True)
    pattern = "|".join(_escape(piece) for piece in pieces)
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.decoder = decoders.Fuse()
    if adds_bos:
        from tokenizers.processors import TemplateProcessing

        tokenizer.post_processor = TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, vocabulary[bos])]
        )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token=bos,
        eos_token=eos,
        additional_special_tokens=list(special),
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = template
    return fast


def _escape(piece):
    return "".join(f"\\{c}" if c in r"\.^$*+?{}[]|()/-" else c for c in piece)


def characters(*specials, template=None, bos=None, eos=None, **settings):
    """Every ASCII character is a token; special tokens come after them."""
    vocabulary = {"<unk>": 0} | {chr(c): c for c in (10, *range(32, 127))}
    vocabulary |= {token: 200 + i for i, token in enumerate(specials)}
    return words(vocabulary, template=template, bos=bos, eos=eos, special=specials, **settings)


def chatml(**settings):
    """A ChatML tokenizer; PAD is the EOS."""
    tokenizer = characters("<|start|>", "<|end|>", template=CHATML, eos="<|end|>", **settings)
    tokenizer.pad_token = "<|end|>"
    return tokenizer


def encoder(tokenizer, *, stop_ids=(), **options):
    return Encoder(tokenizer, EncodeOptions(**options), stop_ids=stop_ids)


def example(row, form="trl", kind="pair"):
    return parse_row(form, row, kind=kind, row_id="row0", place="rows.jsonl:1")


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}
