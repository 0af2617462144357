# SPDX-License-Identifier: Apache-2.0
"""Two files of answers → comparisons of the same prompts; nothing is left out silently."""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from alignax.cli.documents import read_rows
from alignax.errors import DataError
from alignax.records import Comparison

IDS = ("id", "item_id", "question_id")
PROMPTS = ("prompt", "instruction", "messages", "question")
ANSWERS = ("text", "output", "response", "answer", "completion")
REFERENCES = ("reference", "reference_answer", "target")


def read_outputs(path: str, *, flag: str) -> dict[str, dict[str, str]]:
    """Read answers by item: the row's id, or else its prompt.

    A prompt that occurs several times (several samples) is numbered.

    Raises:
        DataError: Rows without a prompt or a text, an id that occurs twice, no rows.
    """
    items: dict[str, dict[str, str]] = {}
    problems, times = [], Counter[str]()
    for place, row in read_rows(path, flag=flag):
        prompt, answer = _first(row, PROMPTS), _first(row, ANSWERS)
        if prompt is None or not isinstance(answer, str):
            columns = ", ".join(map(str, row)) if isinstance(row, Mapping) else type(row).__name__
            problems.append(f"{place}: no prompt with an answer (it has {columns})")
            continue
        given, text = _first(row, IDS), as_text(prompt)
        times[text] += 1
        item = text if times[text] == 1 else f"{text} #{times[text]}"
        item = item if given is None else str(given)
        if item in items:
            problems.append(f"{place}: id {item!r} occurs twice")
        reference = _first(row, REFERENCES)
        items[item] = {"prompt": text, "answer": answer, "reference": as_text(reference or "")}
    if problems or not items:
        raise DataError(
            f"{path} is no file of answers" if problems else f"{path} holds no answers",
            problems=problems,
            hint=f"each row needs one of {', '.join(PROMPTS)} and one of {', '.join(ANSWERS)}",
        )
    return items


def pair_up(
    ours: Mapping[str, Mapping[str, str]],
    theirs: Mapping[str, Mapping[str, str]],
    *,
    common: bool,
) -> tuple[list[Comparison], int]:
    """Join two sets of answers.

    Args:
        ours: The candidate's.
        theirs: The baseline's.
        common: Whether to go on with the items that both have.

    Returns:
        Comparisons, in the candidate's order, and the number of items only one side has.

    Raises:
        DataError: The items differ (unless ``common``), or an item has two prompts.
    """
    lone = [f"only in --outputs: {key[:70]!r}" for key in ours if key not in theirs]
    lone += [f"only in --baseline: {key[:70]!r}" for key in theirs if key not in ours]
    both = [key for key in ours if key in theirs]
    if lone and (not common or not both):
        raise DataError(
            f"the two files answer different prompts: {len(both)} in both, {len(lone)} in one",
            problems=lone,
            hint="--common compares those in both" if both else "check the files",
        )
    unlike = [key for key in both if ours[key]["prompt"] != theirs[key]["prompt"]]
    if unlike:
        raise DataError(
            f"{len(unlike)} ids stand for different prompts in the two files",
            problems=[repr(key[:70]) for key in unlike],
        )
    items = []
    for key in both:
        one, two = ours[key], theirs[key]
        reference = one["reference"] or two["reference"]
        items.append(Comparison(key, one["prompt"], one["answer"], two["answer"], reference))
    return items, len(lone)


def as_text(value: Any) -> str:
    """Write a prompt for a judge: text as it is, chat turns one after another."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(turn, Mapping) for turn in value):
        if len(value) == 1:
            return str(value[0].get("content", ""))
        return "\n\n".join(f"{turn.get('role')}: {turn.get('content')}" for turn in value)
    return json.dumps(value, ensure_ascii=False)


def _first(row: Any, names: tuple[str, ...]) -> Any:
    """Take the first column that is there."""
    if not isinstance(row, Mapping):
        return None
    return next((row[name] for name in names if row.get(name) is not None), None)
