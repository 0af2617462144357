# SPDX-License-Identifier: Apache-2.0
"""A two-layer Llama with a byte tokenizer, rows for it, and the command run in this process."""

import json
import random

from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from alignax.cli.main import run
from alignax.models.config import DecoderConfig
from alignax.models.decoder import random_model
from alignax.models.weights import export_tensors, hf_config

CHATML = (
    "{% for m in messages %}"
    "{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
CONFIG = DecoderConfig("llama", 264, 32, 48, 2, 4, 2, 8, tie_embeddings=True, max_positions=512)
WORDS = ("red", "blue", "green", "one", "two", "three", "cat", "dog", "bird", "sun", "moon", "tea")

QUICK = (
    "--train.batch_size", "4", "--train.steps", "4", "--train.eval_steps", "2",
    "--optimizer.learning_rate", "1e-2", "--lora.rank", "4", "--lora.dropout", "0",
    "--data.max_length", "96", "--train.microbatch_tokens", "512", "--sample.prompts", "1",
    "--sample.max_new_tokens", "4", "--export.dtype", "float32",
)  # fmt: skip
"""Settings that make a run a matter of seconds."""


def byte_tokenizer(template=CHATML):
    """One token a byte; <|im_start|> is also the BOS, as in SmolLM2."""
    vocabulary = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = template
    return fast


def write_model(folder, *, seed=0, template=CHATML):
    """Write a random base as a Hugging Face folder."""
    folder.mkdir(parents=True)
    tokenizer = byte_tokenizer(template)
    model = random_model(CONFIG, seed=seed)
    model.embed.weight[...] *= 20.0  # so that the layers and the logits matter
    save_file(export_tensors(model), folder / "model.safetensors", metadata={"format": "pt"})
    content = hf_config(CONFIG) | {"eos_token_id": tokenizer.eos_token_id}
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
    tokenizer.save_pretrained(str(folder))
    return folder


def pairs(count, seed=0):
    """Conversational preference rows with distinct prompts."""
    rng = random.Random(seed)
    rows = []
    for number in range(count):
        words = rng.sample(WORDS, 3)
        rows.append(
            {
                "prompt": [{"role": "user", "content": f"{number} {words[0]}?"}],
                "chosen": [{"role": "assistant", "content": f"{words[1]} {number % 7}."}],
                "rejected": [{"role": "assistant", "content": f"well, {words[2]}"}],
            }
        )
    return rows


def write_rows(file, rows):
    """Write JSON lines."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def alignax(*words):
    """Run one command in this process; returns the exit code, errors propagate."""
    return run([str(word) for word in words])


def read_lines(file):
    """Read JSON lines."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
