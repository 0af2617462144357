# SPDX-License-Identifier: Apache-2.0
"""MT-Bench judgments (single-answer grades) → scores per model, turn and category.

Zheng et al. 2023, "Judging LLM-as-a-Judge". A judgment file has one JSON line a judgment, as
FastChat writes it; a score of -1 is a judgement without a grade.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from alignax.errors import DataError
from alignax.judge.replies import HIGHEST, LOWEST, parse_grade
from alignax.metrics.intervals import mean_interval
from alignax.records import Score

CATEGORIES = (
    "writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities",
)  # fmt: skip
FIRST, EACH, TURNS = 81, 10, 2
"""The official questions are numbered from 81 on, ten of each category, with two turns."""


@dataclass(frozen=True, slots=True)
class Grade:
    """One grade of one answer; None where the judge gave none.

    Attributes:
        contradicted: Whether the judgement's text holds another grade than the record.
    """

    question: int
    model: str
    judge: str
    turn: int
    score: float | None
    contradicted: bool = False


@dataclass(frozen=True)
class ModelScores:
    """All of one model's grades.

    Attributes:
        turns: Mean grade of each turn.
        average: Mean over all graded answers of both turns.
        categories: Mean grade of each category, both turns.
        unparsed: Judgements without a grade.
        missing: (question, turn) that were asked of no judge.
        repeats: Answers that were graded more than once; their mean counts.
        spread: Mean standard deviation of the repeats; NaN without.
    """

    turns: dict[int, Score]
    average: Score
    categories: dict[str, Score]
    unparsed: int
    missing: int
    repeats: int
    spread: float


def category_of(question: int) -> str:
    """Name the category of an official question; empty for another number."""
    place = (question - FIRST) // EACH
    return CATEGORIES[place] if 0 <= place < len(CATEGORIES) else ""


def read_grades(rows: Iterable[tuple[str, Any]], *, source: str) -> list[Grade]:
    """Check single-answer judgments.

    Raises:
        DataError: Rows of another form, all of them named.
    """
    grades, problems = [], []
    for place, row in rows:
        try:
            grades.append(_grade(row))
        except ValueError as error:
            problems.append(f"{place}: {error}")
    if problems:
        raise DataError(
            f"{source} does not hold single-answer grades: {len(problems)} rows are of another "
            "form",
            problems=problems,
            hint="each line needs question_id, model, score (or judgment) and turn, as in "
            "model_judgment/JUDGE_single.jsonl",
        )
    return grades


def _grade(row: Any) -> Grade:
    """Read one judgment; ValueError says what is wrong."""
    question = question_of(row)
    turn, score = row.get("turn", 1), row.get("score")
    if not isinstance(row.get("model"), str):
        raise ValueError("no text under `model`")
    if turn not in (1, 2):
        raise ValueError(f"turn is {turn!r}, not 1 or 2")
    text = row.get("judgment")
    parsed = parse_grade(text) if isinstance(text, str) else None
    if score is None:
        if not isinstance(text, str):
            raise ValueError("neither `score` nor `judgment`")
        score = parsed if parsed is not None else -1
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise ValueError(f"score is {score!r}, not a number")
    value = float(score) if LOWEST <= score <= HIGHEST else None
    if value is None and score != -1:
        raise ValueError(f"score is {score!r}, outside of 1 … 10 (-1: no grade)")
    differs = parsed is not None and value is not None and parsed != value
    return Grade(question, row["model"], judge_name(row), int(turn), value, differs)


def question_of(row: Any) -> int:
    """Read the number of the question; ValueError says what is wrong."""
    if not isinstance(row, Mapping):
        raise ValueError(f"not an object but {type(row).__name__}")
    question = row.get("question_id")
    if isinstance(question, bool) or not isinstance(question, int):
        raise ValueError(f"question_id is {question!r}, not a number")
    return question


def require_one_judge(judgments: Sequence[Any]) -> None:
    """Require that one judge gave all grades or verdicts.

    Raises:
        DataError: Several did.
    """
    judges = sorted({judgment.judge for judgment in judgments})
    if len(judges) > 1:
        raise DataError(
            f"the judgments come from several judges: {', '.join(judges)}",
            hint="choose one with --judge: what different judges say does not compare",
        )


def judge_name(row: Mapping[str, Any]) -> str:
    """Name the judge's model: FastChat writes [model, prompt]."""
    judge = row.get("judge", "unknown")
    return str(judge[0] if isinstance(judge, list | tuple) and judge else judge)


def summarize(
    grades: Sequence[Grade], categories: Mapping[int, str] | None = None
) -> dict[str, ModelScores]:
    """Average the grades of every model, best model first.

    Args:
        grades: From one judge.
        categories: Category of each question; default: the official ones.

    Each graded answer weighs once. Intervals are 95 % over answers (Student's t).

    Raises:
        DataError: Grades of several judges.
    """
    require_one_judge(grades)
    asked = {(g.question, g.turn) for g in grades}
    if categories is None and all(category_of(q) for q, _ in asked):
        last = FIRST + EACH * len(CATEGORIES)
        asked = {(q, t) for q in range(FIRST, last) for t in range(1, TURNS + 1)}
    elif categories is not None:
        turns = {t for _, t in asked}
        asked |= {(q, t) for q in categories for t in turns}
    models = sorted({grade.model for grade in grades})
    scores = {m: _scores([g for g in grades if g.model == m], asked, categories) for m in models}
    return dict(sorted(scores.items(), key=lambda pair: -_rank(pair[1].average.value)))


def _rank(value: float) -> float:
    return -math.inf if math.isnan(value) else value


def _scores(
    grades: Sequence[Grade],
    asked: set[tuple[int, int]],
    categories: Mapping[int, str] | None,
) -> ModelScores:
    """Average one model's grades."""
    answers: dict[tuple[int, int], list[float]] = defaultdict(list)
    failed = set()
    for grade in grades:
        if grade.score is None:
            failed.add((grade.question, grade.turn))
        else:
            answers[grade.question, grade.turn].append(grade.score)
    means = {key: sum(values) / len(values) for key, values in answers.items()}
    named: dict[str, list[float]] = defaultdict(list)
    for (question, _), value in means.items():
        name = categories.get(question, "other") if categories else category_of(question)
        named[name or "other"].append(value)
    order = {name: place for place, name in enumerate(CATEGORIES)}
    repeated = [values for values in answers.values() if len(values) > 1]
    return ModelScores(
        turns={
            turn: mean_interval([v for (_, t), v in means.items() if t == turn])
            for turn in sorted({t for _, t in asked})
        },
        average=mean_interval(list(means.values())),
        categories={
            name: mean_interval(named[name])
            for name in sorted(named, key=lambda name: (order.get(name, len(order)), name))
        },
        unparsed=len(failed - set(means)),
        missing=len(asked - set(means) - failed),
        repeats=len(repeated),
        spread=_spread(repeated),
    )


def _spread(repeated: Sequence[Sequence[float]]) -> float:
    """Mean standard deviation of repeated grades."""
    if not repeated:
        return math.nan
    total = 0.0
    for values in repeated:
        mean = sum(values) / len(values)
        total += math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
    return total / len(repeated)
