# SPDX-License-Identifier: Apache-2.0
"""What every pair of answers must be: two texts that say something, and not the same."""

import json
from collections.abc import Sequence

from alignax.data.formats.turns import THOUGHTS, RowProblem
from alignax.records import Message, Text

EMPTY = ("empty_chosen", "empty_rejected")
"""Reasons of an answer that says nothing; of a single one the first."""


def require_answers(answers: Sequence[Text], *, keep_whitespace_pairs: bool = False) -> None:
    """Refuse empty answers and pairs that do not differ.

    Raises:
        RowProblem: An answer is empty; the answers are the same, or differ in white space or case
            only (unless such pairs are kept).
    """
    said = [text_of(answer) for answer in answers]
    for reason, text in zip(EMPTY, said, strict=False):
        if not text.strip():
            side = reason.removeprefix("empty_") if len(said) > 1 else "the answer"
            raise RowProblem(reason, f"{side} is empty")
    if len(said) < 2:
        return
    if said[0] == said[1]:
        raise RowProblem("identical_pair", "chosen and rejected are the same")
    bare = ["".join(text.split()).casefold() for text in said]
    if bare[0] == bare[1] and not keep_whitespace_pairs:
        raise RowProblem(
            "identical_after_normalisation",
            "chosen and rejected differ in white space or case only",
        )


def text_of(answer: Text) -> str:
    """Text of an answer, with its tool calls and thoughts."""
    if isinstance(answer, str):
        return answer
    parts: list[str] = []
    for message in answer:
        parts += [message[key] for key in THOUGHTS if isinstance(message.get(key), str)]
        parts.append(message["content"])
        if message.get("tool_calls"):
            parts.append(json.dumps(message["tool_calls"]))
    return "\n".join(parts)


def turns_of(prompt: Text) -> Sequence[Message]:
    """A prompt as turns: plain text is one turn of the user."""
    return ({"role": "user", "content": prompt},) if isinstance(prompt, str) else prompt
