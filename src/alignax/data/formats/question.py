# SPDX-License-Identifier: Apache-2.0
"""Columns that ask (``question``, ``instruction``, ``query``) and columns that answer → turns.

With ``chosen`` and ``rejected`` these are pairs (as Orca's), with ``output`` Alpaca's rows.
"""

from collections.abc import Mapping
from typing import Any

from alignax.data.formats.trl import ASKING, answers_after, scores
from alignax.data.formats.turns import (
    RowProblem,
    is_turns,
    required,
    turns,
    undesired,
    with_system,
    without_prompt,
)
from alignax.records import Message

OUTPUTS = ("output", "response", "answer", "completion")


def _asks(row: Mapping[str, Any]) -> str | None:
    return next((row[name] for name in ASKING if isinstance(row.get(name), str)), None)


def matches_pair(row: Mapping[str, Any]) -> bool:
    """Recognise a question with ``chosen`` and ``rejected``, which are texts or turns."""
    if "prompt" in row or "chosen" not in row or "rejected" not in row or _asks(row) is None:
        return False
    return any(isinstance(s, str) or is_turns(s) for s in (row["chosen"], row["rejected"]))


def matches(row: Mapping[str, Any]) -> bool:
    """Recognise a question with one answer."""
    answered = any(name in row for name in OUTPUTS)
    return "prompt" not in row and _asks(row) is not None and answered and "chosen" not in row


def _prompt(row: Mapping[str, Any]) -> tuple[Message, ...]:
    """Make turns of history, question and input."""
    asked = _asks(row)
    if asked is None:
        raise RowProblem("missing_field", f"none of {', '.join(ASKING)} holds a text")
    more = row.get("input")
    parts = [asked, more] if isinstance(more, str) and more else [asked]
    said: list[Message] = []
    history = row.get("history") or ()
    if not isinstance(history, list | tuple):
        raise RowProblem("wrong_type", f"history is {type(history).__name__}, a list expected")
    for earlier in history:
        if not isinstance(earlier, list) or len(earlier) != 2:
            raise RowProblem("wrong_type", "history must hold (question, answer) pairs")
        said += [_turn("user", earlier[0], "history"), _turn("assistant", earlier[1], "history")]
    return with_system((*said, {"role": "user", "content": "\n".join(parts)}), row)


def _turn(role: str, text: Any, field: str) -> Message:
    if text is None:
        raise RowProblem("null_field", f"{field} is null")
    if not isinstance(text, str):
        raise RowProblem("wrong_type", f"{field} is {type(text).__name__}, text expected")
    return {"role": role, "content": text}


def parse_pair(row: Mapping[str, Any]) -> dict[str, Any]:
    """Read a question and two answers."""
    prompt = _prompt(row)
    sides = {s: without_prompt(turns(required(row, s), s), prompt) for s in ("chosen", "rejected")}
    chosen_score, rejected_score = scores(row)
    return {
        **answers_after(prompt, sides, {}),
        "chosen_score": chosen_score, "rejected_score": rejected_score,
    }  # fmt: skip


def parse(row: Mapping[str, Any]) -> dict[str, Any]:
    """Read a question and one answer."""
    undesired(row)
    name = next((name for name in OUTPUTS if name in row), "output")
    return {"prompt": _prompt(row), "response": (_turn("assistant", required(row, name), name),)}
