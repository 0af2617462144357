# SPDX-License-Identifier: Apache-2.0
"""Rows with one answer to imitate: message lists, and ``prompt`` with an answer."""

from collections.abc import Mapping
from typing import Any

from alignax.data.formats.turns import (
    RowProblem,
    is_turns,
    require_answer,
    require_prompt,
    required,
    system_text,
    tools,
    turns,
    undesired,
    with_system,
    without_prompt,
)

RESPONSES = ("response", "completion", "answer", "output")


DIALOGUES = ("messages", "conversations")


def _messages(row: Mapping[str, Any]) -> Any:
    return row.get("messages", row.get("conversations"))


def matches_messages(row: Mapping[str, Any]) -> bool:
    """Recognise a dialogue without preference columns."""
    return is_turns(_messages(row)) and "chosen" not in row


def parse_messages(row: Mapping[str, Any]) -> dict[str, Any]:
    """Imitate the last assistant turn of a dialogue."""
    undesired(row)
    dialogue = with_system(turns(required(row, *DIALOGUES), "messages"), row)
    if dialogue[-1]["role"] != "assistant":
        raise RowProblem(
            "roles_not_alternating", f"the dialogue ends with a {dialogue[-1]['role']} turn"
        )
    prompt = require_prompt(dialogue[:-1])
    return {"prompt": prompt, "response": dialogue[-1:], "tools": tools(row)}


def matches_prompt(row: Mapping[str, Any]) -> bool:
    """Recognise ``prompt`` with ``response`` (or completion, answer, output)."""
    return "prompt" in row and "chosen" not in row and any(name in row for name in RESPONSES)


def parse_prompt(row: Mapping[str, Any]) -> dict[str, Any]:
    """Read texts verbatim, or turns."""
    undesired(row)
    prompt, response = required(row, "prompt"), required(row, *RESPONSES)
    if isinstance(prompt, str) and isinstance(response, str):
        extra = {"system": system_text(row), "tools": tools(row)}
        return {"prompt": prompt, "response": response, **extra}
    given = ({"role": "user", "content": prompt},) if isinstance(prompt, str) else None
    given = given or turns(prompt, "prompt")
    answer = require_answer(without_prompt(turns(response, "response"), given), "response")
    return {
        "prompt": with_system(require_prompt(given), row),
        "response": answer,
        "tools": tools(row),
    }
