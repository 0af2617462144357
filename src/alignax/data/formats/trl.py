# SPDX-License-Identifier: Apache-2.0
"""TRL preference rows, standard (text) and conversational, with explicit or implicit prompt.

UltraFeedback's binarised rows are of this kind, with scores beside the pair.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from alignax.data.formats.turns import (
    RowProblem,
    empty,
    is_turns,
    require_answer,
    require_prompt,
    required,
    split_common,
    system_text,
    tools,
    turns,
    with_system,
    without_prompt,
)
from alignax.records import Message

SCORE_WORDS = ("score", "rating", "reward")
ASKING = ("question", "query", "instruction")
"""Columns that ask where ``prompt`` is absent; such rows are not read by this format."""


def _answer(value: Any) -> bool:
    return isinstance(value, str | Mapping) or is_turns(value)


def matches(row: Mapping[str, Any]) -> bool:
    """Recognise ``chosen`` and ``rejected`` as text or turns, with or without ``prompt``."""
    if any(name in row for name in ("conversations", "conversation")):
        return False
    if "prompt" not in row and any(name in row for name in ASKING):
        return False
    return (
        "chosen" in row
        and "rejected" in row
        and any(map(_answer, (row["chosen"], row["rejected"])))
    )


def matches_scored(row: Mapping[str, Any]) -> bool:
    """Recognise the same with scores (UltraFeedback)."""
    return matches(row) and scores(row) != (None, None)


def is_score(column: str) -> bool:
    """Tell whether a column holds the score of a side."""
    sided = "chosen" in column or "rejected" in column
    return sided and any(word in column for word in SCORE_WORDS)


def scores(row: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Find the two scores, beside the pair or in ``metadata``."""
    nested = row.get("metadata")
    for holder in (row, nested if isinstance(nested, Mapping) else {}):
        for name in sorted(c for c in holder if "chosen" in c and is_score(c)):
            ours = number(holder[name])
            theirs = number(holder.get(name.replace("chosen", "rejected")))
            if ours is not None and theirs is not None:
                return ours, theirs
    return None, None


def number(value: Any) -> float | None:
    """Read a number, as CSV writes it too; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def parse(row: Mapping[str, Any]) -> dict[str, Any]:
    """Read any of the four forms."""
    chosen_score, rejected_score = scores(row)
    extra: dict[str, Any] = {"chosen_score": chosen_score, "rejected_score": rejected_score}
    prompt = row.get("prompt")
    chosen, rejected = required(row, "chosen"), required(row, "rejected")
    extra["tools"] = tools(row)
    if isinstance(prompt, Mapping):
        prompt = [prompt]
    if isinstance(chosen, str) and isinstance(rejected, str) and not isinstance(prompt, list):
        return {**_text(prompt, chosen, rejected), **extra, "system": system_text(row)}
    return {**_turns(row, prompt, chosen, rejected), **extra}


def _text(prompt: Any, chosen: str, rejected: str) -> dict[str, Any]:
    """Read plain text; without a prompt it is what both answers begin with, in whole words."""
    if prompt is None:
        return _implicit(chosen, rejected)
    if not isinstance(prompt, str):
        raise RowProblem("wrong_type", f"prompt is {type(prompt).__name__}, text or turns expected")
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def _implicit(chosen: str, rejected: str) -> dict[str, Any]:
    for side, text in (("chosen", chosen), ("rejected", rejected)):
        if not text.strip():
            raise empty(side)
    if chosen == rejected:
        raise RowProblem("identical_pair", "chosen and rejected are the same text")
    end = 0
    for ours, theirs in zip(chosen, rejected, strict=False):
        if ours != theirs:
            break
        end += 1
    if end in (len(chosen), len(rejected)):
        raise RowProblem("prefix_pair", "one text is the beginning of the other")
    # Back to the start of the word in which they differ; its white space goes with the answer.
    if not (chosen[end].isspace() and rejected[end].isspace()):
        while end and not chosen[end - 1].isspace():
            end -= 1
    while end and chosen[end - 1].isspace():
        end -= 1
    if not end:
        raise RowProblem(
            "no_prompt", "chosen and rejected share no beginning, and prompt is absent"
        )
    return {"prompt": chosen[:end], "chosen": chosen[end:], "rejected": rejected[end:]}


def _turns(row: Mapping[str, Any], prompt: Any, chosen: Any, rejected: Any) -> dict[str, Any]:
    """Read turns; a side that repeats the prompt, or has it only there, is understood."""
    sides = {"chosen": turns(chosen, "chosen"), "rejected": turns(rejected, "rejected")}
    given: tuple[Message, ...] = ()
    if isinstance(prompt, list) and prompt:
        given = turns(prompt, "prompt")
        sides = {name: without_prompt(side, given) for name, side in sides.items()}
    elif isinstance(prompt, str) and any(
        len(side) == 1 or side[0]["role"] == "assistant" for side in sides.values()
    ):
        given = ({"role": "user", "content": prompt},)
        sides = {name: without_prompt(side, given) for name, side in sides.items()}
    elif any(len(side) == 1 for side in sides.values()):
        raise RowProblem("no_prompt", "the answers have no prompt before them")
    return answers_after(given, sides, row)


def answers_after(
    given: tuple[Message, ...], sides: Mapping[str, tuple[Message, ...]], row: Mapping[str, Any]
) -> dict[str, Any]:
    """Split before the first assistant turn that differs: what both sides share decides nothing.

    Args:
        given: The prompt's turns; none if both sides begin with them.
        sides: Turns of ``chosen`` and ``rejected`` after the given ones.
        row: The row, for its ``system`` column.
    """
    if given and all(len(side) > 1 and side[0]["role"] != "assistant" for side in sides.values()):
        # Both sides bring the prompt along, with a system turn that it has not.
        own = split_common(sides["chosen"], sides["rejected"])[0]
        if _unled(own) != _unled(given):
            raise RowProblem("prompt_differs", "the sides begin with another prompt")
    elif given:
        sides = {name: require_answer(side, name) for name, side in sides.items()}
        sides = {name: require_prompt(given) + side for name, side in sides.items()}
    prompt, *answers = split_common(sides["chosen"], sides["rejected"])
    chosen, rejected = (
        require_answer(side, name)
        for side, name in zip(answers, ("chosen", "rejected"), strict=True)
    )
    return {
        "prompt": with_system(require_prompt(prompt), row), "chosen": chosen, "rejected": rejected
    }  # fmt: skip


def _unled(messages: Sequence[Message]) -> list[Message]:
    """Leave system turns out."""
    return [m for m in messages if m["role"] not in ("system", "developer")]
