# SPDX-License-Identifier: Apache-2.0
"""Model folder or GGUF file → tokenizer, with its chat template and special tokens.

A folder's own files are taken as they are; ``tokenizer.json`` wins. A GGUF file only names its
splitting rule and lists pieces and merges (or scores), so the tokenizer is put together here.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from alignax.errors import ModelError
from alignax.models.gguf import GGUFFile, is_gguf, read_gguf

_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
"""Values of ``tokenizer.ggml.token_type`` that need care."""
_SPACE = "\u2581"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS_AND_SPACE = r"[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def load_tokenizer(path: str | Path) -> PreTrainedTokenizerFast:
    """Load the tokenizer of a Hugging Face folder or of a GGUF file.

    Raises:
        ModelError: There is none, or it cannot be read or rebuilt.
    """
    path = Path(path)
    if is_gguf(path):
        return _from_gguf(read_gguf(path))
    if not path.is_dir():
        raise ModelError(
            f"no tokenizer at {path}: it is neither a folder nor a GGUF file",
            hint="name a Hugging Face folder or a .gguf file",
        )
    if not any((path / name).exists() for name in _FILES):
        raise ModelError(
            f"model folder {path} has no tokenizer (looked for {', '.join(_FILES)})",
            hint="copy the tokenizer files of the same model into it",
        )
    # classes that AutoTokenizer may pick rebuild the splitting rule by their own defaults
    # (transformers 5), so tokenizer.json, where there is one, is read as it is
    exact = (path / "tokenizer.json").exists()
    reader: Any = PreTrainedTokenizerFast if exact else AutoTokenizer
    try:
        return reader.from_pretrained(path, local_files_only=True)
    except Exception as error:  # damaged files make the Rust side raise plain Exception
        raise ModelError(
            f"cannot read the tokenizer in {path}: {type(error).__name__}: {error}",
            hint="fetch the tokenizer files again, above all tokenizer.json",
        ) from error


def _from_gguf(file: GGUFFile) -> PreTrainedTokenizerFast:
    """Build the tokenizer that the metadata describes."""
    kind = file.require("tokenizer.ggml.model")
    if kind not in _BUILDERS:
        raise ModelError(
            f"GGUF file {file.path} has a tokenizer of kind {kind!r}; "
            f"known are {', '.join(_BUILDERS)}",
            hint="use the model's Hugging Face folder instead",
        )
    meta = file.metadata
    tokens = file.require("tokenizer.ggml.tokens")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise ModelError(
            f"GGUF file {file.path} lists {len(tokens) - len(vocabulary)} tokens twice"
        )
    named = _named_tokens(file, tokens)
    tokenizer = _BUILDERS[kind](file, vocabulary)
    kinds = meta.get("tokenizer.ggml.token_type", [])
    # At once: each call builds the search for all of them anew, and Gemma has thousands.
    tokenizer.add_tokens(
        [
            AddedToken(token, special=kind != _USER_DEFINED, normalized=False)
            for token, kind in zip(tokens, kinds, strict=False)
            if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        clean_up_tokenization_spaces=False,
        add_bos_token=bool(meta.get("tokenizer.ggml.add_bos_token", _adds_bos(meta))),
        add_eos_token=bool(meta.get("tokenizer.ggml.add_eos_token", False)),
        **named,
        **_optional_settings(meta),
    )


def _adds_bos(meta: Mapping[str, Any]) -> bool:
    """Whether a BOS is put in front when the file does not say: by kind, as readers agree on."""
    if meta["tokenizer.ggml.model"] == "llama":
        return True
    return meta.get("tokenizer.ggml.pre") in _LLAMA3_NAMES


def _named_tokens(file: GGUFFile, tokens: list[str]) -> dict[str, str]:
    """BOS, EOS, unknown and padding token, as far as the file names them."""
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    named: dict[str, str] = {}
    for name, key in names.items():
        index = file.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if index is None:
            continue
        if not 0 <= index < len(tokens):
            raise ModelError(
                f"GGUF file {file.path}: tokenizer.ggml.{key}_token_id is {index}, "
                f"but there are {len(tokens)} tokens"
            )
        named[f"{name}_token"] = tokens[index]
    return named


def _optional_settings(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Chat template and context length, if the file has them."""
    settings: dict[str, Any] = {}
    if template := meta.get("tokenizer.chat_template"):
        settings["chat_template"] = template
    if length := meta.get(f"{meta.get('general.architecture')}.context_length"):
        settings["model_max_length"] = length
    return settings


def _byte_level(file: GGUFFile, vocabulary: dict[str, int]) -> Tokenizer:
    """Byte-level BPE (``gpt2``): merges by rank, words cut by the named rule."""
    rule = file.metadata.get("tokenizer.ggml.pre", "default")
    if rule not in PRE_TOKENIZERS:
        raise ModelError(
            f"GGUF file {file.path} splits words by the rule {rule!r}; "
            f"known are {', '.join(PRE_TOKENIZERS)}",
            hint="use the model's Hugging Face folder instead",
        )
    lines = file.require("tokenizer.ggml.merges")
    # "left right"; no piece holds a space, but one may start with it in odd files
    merges = [(line[:cut], line[cut + 1 :]) for line in lines for cut in [line.find(" ", 1)]]
    strange = [
        line
        for line, (left, right) in zip(lines, merges, strict=True)
        if not {left, right, left + right} <= vocabulary.keys()
    ]
    if strange:
        raise ModelError(
            f"GGUF file {file.path} has {len(strange)} merges of unknown pieces: {strange[:3]}"
        )
    model = BPE(vocab=vocabulary, merges=merges, ignore_merges=rule in _LLAMA3_NAMES)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[rule]()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentence_piece(file: GGUFFile, vocabulary: dict[str, int]) -> Tokenizer:
    """SentencePiece BPE (``llama``): merges by score, bytes for unknown characters."""
    scores = file.require("tokenizer.ggml.scores")
    if len(scores) != len(vocabulary):
        raise ModelError(
            f"GGUF file {file.path} has {len(scores)} scores for {len(vocabulary)} tokens"
        )
    unknown = file.metadata.get("tokenizer.ggml.unknown_token_id", 0)
    model = BPE(
        vocab=vocabulary,
        merges=_merges_by_score(vocabulary, scores),
        unk_token=list(vocabulary)[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    prefix = bool(file.metadata.get("tokenizer.ggml.add_space_prefix", True))
    spaces = normalizers.Replace(" ", _SPACE)
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = spaces
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _merges_by_score(vocabulary: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """List every way to join two pieces into a third, the best-scored result first."""
    merges = [
        (-scores[index], vocabulary[piece[:cut]], vocabulary[piece[cut:]], piece, cut)
        for piece, index in vocabulary.items()
        for cut in range(1, len(piece))
        if piece[:cut] in vocabulary and piece[cut:] in vocabulary
    ]
    return [(piece[:cut], piece[cut:]) for *_, piece, cut in sorted(merges)]


def _plain_words() -> Any:
    """GPT-2's rule."""
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _digits_then_words() -> Any:
    """Every digit alone, then GPT-2's rule."""
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _plain_words()])


def _words_with_numbers(number: str) -> Callable[[], Any]:
    """The rule of Llama 3 and Qwen 2, which differ in how many digits stay together."""

    def build() -> Any:
        pattern = Regex(f"{_CONTRACTION}|{_WORDS_AND_SPACE % number}")
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(pattern, "isolated", invert=False),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )

    return build


_LLAMA3_NAMES = ("llama-bpe", "llama3", "llama-v3")

PRE_TOKENIZERS: dict[str, Callable[[], Any]] = {
    "default": _plain_words,
    "gpt-2": _plain_words,
    "smollm": _digits_then_words,
    "llama-bpe": _words_with_numbers(r"\p{N}{1,3}"),
    "llama3": _words_with_numbers(r"\p{N}{1,3}"),
    "llama-v3": _words_with_numbers(r"\p{N}{1,3}"),
    "qwen2": _words_with_numbers(r"\p{N}"),
    "deepseek-r1-qwen": _words_with_numbers(r"\p{N}"),
}
"""Value of ``tokenizer.ggml.pre`` → rule that cuts text into words before the merges."""

_BUILDERS: dict[str, Callable[[GGUFFile, dict[str, int]], Tokenizer]] = {
    "gpt2": _byte_level,
    "llama": _sentence_piece,
}
