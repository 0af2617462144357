# SPDX-License-Identifier: Apache-2.0
"""One row → the reasons that it alone gives, and the texts by which rows are compared."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alignax.data import texts
from alignax.data.answers import require_answers, text_of, turns_of
from alignax.data.formats.turns import RowProblem
from alignax.data.images import missing
from alignax.records import Dropped, Example, PreferencePair, Text

VOTES = ("annotations", "annotators", "votes", "labels", "individual_preference", "preferences")
"""Columns that hold what several people said of one pair."""


@dataclass
class Examined:
    """What one row gives.

    Attributes:
        codes: Its reasons.
        said: Prompt and answers as texts; empty if the row is none.
        asked: The first user turn.
        scores: Scores of chosen and rejected, None where there is none.
        detail: What exactly is wrong, where a pair cannot be made.
        lost: No example can be made of the row.
    """

    codes: set[str]
    said: tuple[str, ...] = ()
    asked: str = ""
    scores: tuple[float | None, float | None] = (None, None)
    detail: str = ""
    lost: bool = False


def examine(row: Any, example: Example | Dropped, folder: Path | None) -> Examined:
    """Find everything about a row that needs no other row.

    Args:
        row: As it was read.
        example: What it became.
        folder: Where relative image paths begin; None: they are not looked up.
    """
    if isinstance(example, Dropped):
        found = {example.reason} | texts.any_defects(_strings(row))
        return Examined(found, detail=example.detail, lost=True)
    prompt = [m["content"] for m in turns_of(example.prompt)]
    said = ("\n\n".join(prompt), *map(text_of, example.answers))
    codes = texts.any_defects([example.system, *prompt, *said[1:]])
    detail = ""
    try:
        require_answers(example.answers)
    except RowProblem as problem:
        codes.add(problem.reason)
        detail = problem.detail
    if any(not m["content"].strip() and not m.get("tool_calls") for m in turns_of(example.prompt)):
        codes.add("empty_turn")
    if any(map(texts.plays_speaker, _spoken(example))):
        codes.add("role_label_in_answer")
    if any(_repeats_role(example.prompt, answer) for answer in example.answers):
        codes.add("roles_not_alternating")
    if missing(example.images, said[0], folder):
        codes.add("missing_image")
    scores = _scores(example)
    if scores[0] is not None and scores[1] is not None and scores[0] <= scores[1]:
        codes.add("score_tie" if scores[0] == scores[1] else "score_label_disagree")
    if disagree(row):
        codes.add("annotators_disagree")
    return Examined(codes, said, _asked(example.prompt), scores, detail)


def _scores(example: Example) -> tuple[float | None, float | None]:
    if not isinstance(example, PreferencePair):
        return None, None
    return example.chosen_score, example.rejected_score


def _spoken(example: Example) -> Iterator[str]:
    """What the assistant says in the answers; tools and users may name speakers."""
    for answer in example.answers:
        if isinstance(answer, str):
            yield answer
        else:
            yield from (m["content"] for m in answer if m["role"] == "assistant")


def _repeats_role(prompt: Text, answer: Text) -> bool:
    """Find two turns in a row of one role; several tool results in a row are usual."""
    if isinstance(prompt, str) or isinstance(answer, str):
        return False
    roles = [m["role"] for m in (*prompt, *answer)]
    pairs = zip(roles, roles[1:], strict=False)
    return any(one == other != "tool" for one, other in pairs)


def _asked(prompt: Text) -> str:
    """The first user turn of a prompt."""
    turns = turns_of(prompt)
    return next((m["content"] for m in turns if m["role"] == "user"), "")


def disagree(row: Any) -> bool:
    """Tell whether a row holds several people's judgments that are not all the same."""
    if not isinstance(row, Mapping):
        return False
    numbered = [
        value
        for name, value in row.items()
        if isinstance(name, str) and name.lower().startswith(("annotator", "rater"))
        and name[-1:].isdigit() and isinstance(value, str | int | float)
    ]  # fmt: skip
    lists = [row[name] for name in VOTES if isinstance(row.get(name), list | Mapping)]
    return any(_differ(votes) for votes in (numbered, *lists))


def _differ(votes: Sequence[Any] | Mapping[str, Any]) -> bool:
    """Tell whether judgments differ in the side that they prefer."""
    given = list(votes.values()) if isinstance(votes, Mapping) else list(votes)
    known = [judged for judged in map(_judgment, given) if judged is not None]
    if any(isinstance(judged, int | float) and judged < 0 for judged in known):
        # Signed strengths of preference agree if their signs do.
        known = [(j > 0) - (j < 0) if isinstance(j, int | float) else j for j in known]
    return len({str(judged) for judged in known}) > 1


def _judgment(vote: Any) -> str | int | float | None:
    """What one judgment says: a plain value, or a field of an object."""
    if isinstance(vote, Mapping):
        names = ("preference", "label", "vote", "choice", "winner", "score")
        vote = next((vote[n] for n in names if isinstance(vote.get(n), str | int | float)), None)
    return vote if isinstance(vote, str | int | float) else None


def _strings(value: Any) -> Iterator[str]:
    """All texts inside a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _strings(inner)
