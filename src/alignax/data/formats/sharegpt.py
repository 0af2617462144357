# SPDX-License-Identifier: Apache-2.0
"""LLaMA-Factory's ShareGPT ranking: ``conversations`` is the prompt, the two answers are turns."""

from collections.abc import Mapping
from typing import Any

from alignax.data.formats.trl import answers_after, scores
from alignax.data.formats.turns import (
    is_turns,
    required,
    tools,
    turns,
    without_prompt,
)

COLUMNS = ("conversations", "conversation", "messages")


def dialogue(row: Mapping[str, Any]) -> Any:
    """Find the column of turns."""
    return next((row[name] for name in COLUMNS if row.get(name)), None)


def matches(row: Mapping[str, Any]) -> bool:
    """Recognise turns beside ``chosen`` and ``rejected`` that are one turn each."""
    if "prompt" in row or "chosen" not in row or "rejected" not in row:
        return False
    sides = [row["chosen"], row["rejected"]]
    whole = any(is_turns(side) and len(side) > 1 for side in sides)
    return is_turns(dialogue(row)) and ("messages" not in row or not whole)


def parse(row: Mapping[str, Any]) -> dict[str, Any]:
    """Read the prompt and the two answers (turns, one turn, or text)."""
    prompt = turns(dialogue(row) or required(row, *COLUMNS), "conversations")
    sides = {}
    for name in ("chosen", "rejected"):
        sides[name] = without_prompt(turns(required(row, name), name), prompt)
    if prompt[-1]["role"] == "assistant" and prompt[-1:] == sides["chosen"]:
        prompt = prompt[:-1]
    chosen_score, rejected_score = scores(row)
    return {
        **answers_after(prompt, sides, row), "tools": tools(row),
        "chosen_score": chosen_score, "rejected_score": rejected_score,
    }  # fmt: skip
