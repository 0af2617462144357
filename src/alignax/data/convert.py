# SPDX-License-Identifier: Apache-2.0
"""Examples → rows in the forms that trainers read."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from alignax.data.texts import masked
from alignax.records import Conversation, Example, Message, PreferencePair, Text

NAMES = {
    "user": "human", "assistant": "gpt", "system": "system", "developer": "system",
    "tool": "observation",
}  # fmt: skip
"""Roles as LLaMA-Factory's ShareGPT form calls them."""


def _plain(text: Text) -> Any:
    return text if isinstance(text, str) else [dict(message) for message in text]


def _extras(example: Example) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if example.tools:
        found["tools"] = [dict(tool) for tool in example.tools]
    if example.images:
        found["images"] = list(example.images)
    if example.system:
        found["system"] = example.system
    return found


def to_trl(example: Example) -> Iterator[dict[str, Any]]:
    """TRL: ``prompt``, ``chosen``, ``rejected``, or ``prompt`` and ``completion``."""
    if isinstance(example, PreferencePair):
        answers = {"chosen": _plain(example.chosen), "rejected": _plain(example.rejected)}
    else:
        answers = {"completion": _plain(example.response)}
    yield {"prompt": _plain(example.prompt), **answers, **_extras(example)}


def to_alignax(example: Example) -> Iterator[dict[str, Any]]:
    """As TRL's form, with the scores that came with the pair."""
    for row in to_trl(example):
        if isinstance(example, PreferencePair) and example.chosen_score is not None:
            row |= {"score_chosen": example.chosen_score, "score_rejected": example.rejected_score}
        yield row


def to_kto(example: Example) -> Iterator[dict[str, Any]]:
    """Rated answers: a pair becomes a good and a bad one."""
    sides = zip(example.answers, (True, False), strict=False)
    for answer, good in sides:
        shared = {"prompt": _plain(example.prompt), **_extras(example)}
        yield {**shared, "completion": _plain(answer), "label": good}


def to_llamafactory(example: Example) -> Iterator[dict[str, Any]]:
    """LLaMA-Factory's ShareGPT form; system turns and tools have columns of their own."""
    prompt = _turns(example.prompt, "user")
    system = [m["content"] for m in prompt if m["role"] in ("system", "developer")]
    told = "\n\n".join([example.system, *system] if example.system else system)
    row: dict[str, Any] = {
        "conversations": [_named(m) for m in prompt if m["role"] not in ("system", "developer")]
    }
    if isinstance(example, Conversation):
        row["conversations"] += [_named(m) for m in _turns(example.response, "assistant")]
    else:
        for name, answer in (("chosen", example.chosen), ("rejected", example.rejected)):
            said = _turns(answer, "assistant")
            if len(said) > 1:
                raise ValueError("LLaMA-Factory's ranking form holds answers of one turn")
            row[name] = _named(said[0])
    if told:
        row["system"] = told
    if example.tools:
        row["tools"] = json.dumps([dict(tool) for tool in example.tools], ensure_ascii=False)
    if example.images:
        row["images"] = list(example.images)
    yield row


def _turns(text: Text, role: str) -> Sequence[Message]:
    return ({"role": role, "content": text},) if isinstance(text, str) else text


def _named(message: Message) -> dict[str, str]:
    """One turn as ``from`` and ``value``; a tool call is a turn of its own kind."""
    if message.get("tool_calls"):
        calls = [dict(call["function"]) for call in message["tool_calls"]]
        value = json.dumps(calls if len(calls) > 1 else calls[0], ensure_ascii=False)
        return {"from": "function_call", "value": value}
    return {"from": NAMES[message["role"]], "value": message["content"]}


FORMS = {"trl": to_trl, "alignax": to_alignax, "kto": to_kto, "llamafactory": to_llamafactory}


def mask(value: Any) -> Any:
    """Replace personal data in every text of a row."""
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, Mapping):
        return {key: mask(inner) for key, inner in value.items()}
    return [mask(inner) for inner in value] if isinstance(value, list) else value
