# SPDX-License-Identifier: Apache-2.0
"""LLaMA-Factory's ShareGPT ranking: ``conversations`` is the prompt, the two answers are turns."""

from collections.abc import Mapping
from typing import Any

from alignax.data.formats.trl import scores
from alignax.data.formats.turns import (
    RowProblem,
    is_turns,
    require_answer,
    require_prompt,
    tools,
    turns,
    with_system,
)


def dialogue(row: Mapping[str, Any]) -> Any:
    """Find the column of turns."""
    return row.get("conversations", row.get("conversation"))


def matches(row: Mapping[str, Any]) -> bool:
    """Recognise turns beside ``chosen`` and ``rejected``."""
    return is_turns(dialogue(row)) and "chosen" in row and "rejected" in row


def parse(row: Mapping[str, Any]) -> dict[str, Any]:
    """Read the prompt and the two answers (turns, one turn, or text)."""
    prompt = turns(dialogue(row), "conversations")
    sides = {}
    for name in ("chosen", "rejected"):
        if row.get(name) is None:
            raise RowProblem("null", f"{name} is null or missing")
        side = turns(row[name], name)
        if len(side) > len(prompt) and side[: len(prompt)] == prompt:
            side = side[len(prompt) :]
        sides[name] = require_answer(side, name)
    chosen_score, rejected_score = scores(row)
    return {
        "prompt": with_system(require_prompt(prompt), row), **sides, "tools": tools(row),
        "chosen_score": chosen_score, "rejected_score": rejected_score,
    }  # fmt: skip
