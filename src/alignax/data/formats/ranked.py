# SPDX-License-Identifier: Apache-2.0
"""Several ranked or scored answers to one prompt → pairs, by a stated rule.

Conversation trees (OpenAssistant), answers with ranks (Nectar) and answers with scores
(UltraFeedback as published, lists of ``responses`` and ``scores``) are made into rows with
``prompt``, ``chosen`` and ``rejected`` while a file is read.

Rules: ``best-worst`` makes one pair of the best and the worst answer, ``adjacent`` pairs each with
the next worse one, ``all`` makes every pair. Answers of equal rank are never paired; a prompt none
of whose answers differ in rank becomes one row that is dropped as ``label_tie``, one with fewer
than two answers one that is dropped as ``no_pair``.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from alignax.data.formats import trl
from alignax.data.formats.turns import RowProblem

MARK = "made_of"
"""Column of rows that were made here; it holds the format's name."""

ANSWERS = ("completions", "responses", "answers", "candidates", "outputs", "generations")
TEXTS = ("response", "answer", "text", "content", "output", "completion")
SCORES = ("overall_score", "fine-grained_score", "score", "rating", "reward")
ASKED = ("prompt", "instruction", "question", "query")
LISTS = ("scores", "ratings", "rewards", "ranks")

Rated = tuple[Any, float]
"""An answer and its worth; more is better."""


def matches_tree(row: Mapping[str, Any]) -> bool:
    """Recognise a pair that was made of a tree."""
    return row.get(MARK) == "oasst"


def matches_ranked(row: Mapping[str, Any]) -> bool:
    """Recognise a pair that was made of several answers."""
    return row.get(MARK) == "ranked"


def parse(row: Mapping[str, Any]) -> dict[str, Any]:
    """Read a pair that was made here."""
    if row.get("problem"):
        raise RowProblem(row["problem"], str(row.get("detail", "")))
    return trl.parse({k: v for k, v in row.items() if k != MARK})


def pairs(row: Any, pairing: str) -> Iterator[Any]:
    """Make pairs of a row; any other row comes back as it is."""
    if not isinstance(row, Mapping) or "chosen" in row:
        yield row
    elif isinstance(row.get("prompt"), Mapping) and "replies" in row["prompt"]:
        yield from _tree(row, pairing)
    elif (rated := _rated(row)) is not None:
        asked = next((row[name] for name in ASKED if row.get(name)), None)
        more = {k: row[k] for k in ("system", "tools", "images", "image") if k in row}
        yield from _paired(asked, rated, pairing, {MARK: "ranked", **more})
    else:
        yield row


def _tree(row: Mapping[str, Any], pairing: str) -> Iterator[dict[str, Any]]:
    """Make pairs at every message of a user that has several ranked answers."""
    tree = {"tree": row.get("message_tree_id")} if row.get("message_tree_id") else {}
    made = 0
    waiting: list[tuple[tuple[dict[str, str], ...], Mapping[str, Any]]] = [((), row["prompt"])]
    while waiting:
        before, message = waiting.pop(0)
        path = (*before, {"role": str(message.get("role")), "content": message.get("text")})
        replies = [r for r in message.get("replies") or () if not r.get("deleted")]
        waiting += [(path, reply) for reply in replies]
        ranked = [
            ([{"role": "assistant", "content": r.get("text")}], -float(r["rank"]))
            for r in replies
            if r.get("role") == "assistant" and isinstance(r.get("rank"), int | float)
        ]
        if len(ranked) > 1:
            for pair in _paired(list(path), ranked, pairing, {MARK: "oasst", **tree}):
                made += 1
                yield pair
    if not made:
        yield {MARK: "oasst", **tree, "problem": "no_pair", "detail": "no two ranked answers"}


def _rated(row: Mapping[str, Any]) -> list[Rated] | None:
    """Read several answers with their worth; None if the row has none."""
    for name in ANSWERS:
        answers = row.get(name)
        if not isinstance(answers, list) or not answers:
            continue
        beside = next(((key, row[key]) for key in LISTS if isinstance(row.get(key), list)), None)
        if beside is not None and len(beside[1]) == len(answers):
            sign = -1.0 if beside[0] == "ranks" else 1.0
            worths = [_worth(value, sign) for value in beside[1]]
            return list(zip(map(_text, answers), worths, strict=True))
        if all(isinstance(answer, Mapping) for answer in answers):
            worths = [_own_worth(answer) for answer in answers]
            if not all(map(math.isnan, worths)):
                return list(zip(map(_text, answers), worths, strict=True))
    return None


def _text(answer: Any) -> Any:
    if not isinstance(answer, Mapping) or "role" in answer:
        return answer
    return next((answer[name] for name in TEXTS if name in answer), None)


def _own_worth(answer: Mapping[str, Any]) -> float:
    """The worth that an answer carries: a score, or a rank (1 is best)."""
    name = next((name for name in SCORES if answer.get(name) is not None), None)
    return _worth(answer[name], 1.0) if name else _worth(answer.get("rank"), -1.0)


def _worth(value: Any, sign: float) -> float:
    try:
        return sign * float(value)
    except (TypeError, ValueError):
        return math.nan


def _paired(
    asked: Any, rated: Sequence[Rated], pairing: str, more: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Pair answers by a rule."""
    known = sorted((r for r in rated if not math.isnan(r[1])), key=lambda r: -r[1])
    if len(known) < 2:
        yield {**more, "problem": "no_pair", "detail": f"{len(known)} answers with a score or rank"}
        return
    if known[0][1] == known[-1][1]:
        yield {**more, "problem": "label_tie", "detail": f"{len(known)} answers of equal rank"}
        return
    chosen = {
        "best-worst": [(known[0], known[-1])],
        "adjacent": list(itertools.pairwise(known)),
        "all": list(itertools.combinations(known, 2)),
    }[pairing]
    for (better, high), (worse, low) in chosen:
        if high > low:
            yield {
                **more, "prompt": asked, "chosen": better, "rejected": worse,
                "score_chosen": high, "score_rejected": low,
            }  # fmt: skip
