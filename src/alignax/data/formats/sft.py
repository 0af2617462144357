# SPDX-License-Identifier: Apache-2.0
"""Rows with one answer to imitate: message lists, prompt/response texts, Alpaca's columns."""

from collections.abc import Mapping
from typing import Any

from alignax.data.formats.turns import (
    RowProblem,
    is_turns,
    require_answer,
    require_prompt,
    tools,
    turns,
    with_system,
)

RESPONSES = ("response", "completion", "answer", "output")


def _messages(row: Mapping[str, Any]) -> Any:
    return row.get("messages", row.get("conversations"))


def matches_messages(row: Mapping[str, Any]) -> bool:
    """Recognise a dialogue without preference columns."""
    return is_turns(_messages(row)) and "chosen" not in row


def parse_messages(row: Mapping[str, Any]) -> dict[str, Any]:
    """Imitate the last assistant turn of a dialogue."""
    dialogue = with_system(turns(_messages(row), "messages"), row)
    if dialogue[-1]["role"] != "assistant":
        raise RowProblem("role", f"the dialogue ends with a {dialogue[-1]['role']} turn")
    prompt = require_prompt(dialogue[:-1])
    return {"prompt": prompt, "response": dialogue[-1:], "tools": tools(row)}


def _response(row: Mapping[str, Any]) -> Any:
    return next((row[name] for name in RESPONSES if name in row), None)


def matches_prompt(row: Mapping[str, Any]) -> bool:
    """Recognise ``prompt`` with ``response`` (or completion, answer, output)."""
    return "prompt" in row and "chosen" not in row and any(name in row for name in RESPONSES)


def parse_prompt(row: Mapping[str, Any]) -> dict[str, Any]:
    """Read texts verbatim, or turns."""
    prompt, response = row["prompt"], _response(row)
    for name, value in (("prompt", prompt), ("response", response)):
        if value is None:
            raise RowProblem("null", f"{name} is null")
    if isinstance(prompt, str) and isinstance(response, str):
        return {"prompt": prompt, "response": response}
    given = ({"role": "user", "content": prompt},) if isinstance(prompt, str) else None
    given = given or turns(prompt, "prompt")
    answer = require_answer(turns(response, "response"), "response")
    return {
        "prompt": with_system(require_prompt(given), row),
        "response": answer,
        "tools": tools(row),
    }


def matches_alpaca(row: Mapping[str, Any]) -> bool:
    """Recognise ``instruction`` with ``output``."""
    return "instruction" in row and "output" in row


def parse_alpaca(row: Mapping[str, Any]) -> dict[str, Any]:
    """Make one user turn of instruction and input."""
    parts = [row.get("instruction"), row.get("input")]
    if not isinstance(parts[0], str) or not isinstance(row["output"], str):
        raise RowProblem("wrong_type", "instruction and output must be text")
    asked = "\n".join(p for p in parts if isinstance(p, str) and p)
    prompt = ({"role": "user", "content": asked},)
    answer = ({"role": "assistant", "content": row["output"]},)
    return {"prompt": with_system(prompt, row), "response": answer}
