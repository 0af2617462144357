# SPDX-License-Identifier: Apache-2.0
"""Tokenizer → its files, read back and compared before anything is called written."""

import json
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from alignax.errors import RunError
from alignax.files import write_json
from alignax.models.tokenizer import load_tokenizer

PROBES = (
    "Hello, world!", " two  spaces\n\nand lines\t", "On 2024-12-31 it cost $1,234.56.",
    "naïve café — 你好, мир 🙂", "def f(x):\n    return x ** 2",
)  # fmt: skip
"""Texts that a tokenizer must cut alike before and after."""


def save_tokenizer(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write tokenizer, special tokens and ``chat_template.jinja``.

    Raises:
        RunError: What was written does not read back as the same tokenizer.
    """
    tokenizer.save_pretrained(str(folder))
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    # The generic class is the one name that old and new readers take tokenizer.json as it is for.
    if (folder / "tokenizer.json").exists():
        write_json(file, config | {"tokenizer_class": "PreTrainedTokenizerFast"})
    problems = differences(tokenizer, load_tokenizer(folder))
    if problems:
        raise RunError("the tokenizer does not survive being written", problems=problems)


def differences(want: PreTrainedTokenizerBase, got: PreTrainedTokenizerBase) -> list[str]:
    """List in what two tokenizers differ."""
    problems = [
        f"{name} is {getattr(got, name)!r}, was {getattr(want, name)!r}"
        for name in ("eos_token_id", "bos_token_id", "pad_token_id")
        if getattr(got, name) != getattr(want, name)
    ]
    if got.chat_template != want.chat_template:
        problems.append("the chat template differs")
    if len(got) != len(want):
        problems.append(f"it has {len(got)} tokens, had {len(want)}")
    problems += [
        f"{text!r} becomes {got.encode(text)}, was {want.encode(text)}"
        for text in PROBES
        if got.encode(text) != want.encode(text)
    ]
    return problems
