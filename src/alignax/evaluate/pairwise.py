# SPDX-License-Identifier: Apache-2.0
"""Pairwise judgments of FastChat (both orders) and two-score reviews → wins, losses and ties.

In a judgment file game 1 shows model_1 first and game 2 model_2. A winner by agreement counts,
disagreement is a tie, and a game without a winner makes the pair uncounted.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from alignax.errors import DataError
from alignax.evaluate.mt_bench import judge_name, question_of, require_one_judge
from alignax.judge.orders import combined, mirrored
from alignax.judge.replies import parse_label
from alignax.metrics.intervals import bootstrap, mean_interval
from alignax.records import WORTH, Outcome, Score, Verdict

API_ERROR = "$ERROR$"
"""What FastChat writes for a judgement when no call succeeded."""


@dataclass(frozen=True, slots=True)
class Match:
    """One question judged in both orders; the verdict is model_1's."""

    question: int
    models: tuple[str, str]
    judge: str
    verdict: Verdict
    scores: tuple[float, float] | None = None


@dataclass(frozen=True)
class Standing:
    """One model's matches.

    Attributes:
        win_rate: Wins over counted matches.
        loss_rate: Losses over counted matches.
        adjusted: A tie counts as half a win; 95 % interval over matches.
        failed: Matches without a verdict.
        mean_score: Mean of the model's own scores, for reviews that give two.
        total_score: Their sum.
    """

    wins: int
    losses: int
    ties: int
    failed: int
    win_rate: float
    loss_rate: float
    adjusted: Score
    mean_score: Score | None = None
    total_score: float | None = None


def read_matches(rows: Iterable[tuple[str, Any]], *, source: str) -> list[Match]:
    """Check pairwise judgments.

    Raises:
        DataError: Rows of another form, or one pair judged twice on one question and turn.
    """
    hint = (
        "each line needs question_id, model_1, model_2 and g1_winner with g2_winner (or both "
        "judgments), as in model_judgment/JUDGE_pair.jsonl"
    )
    return _read(rows, _match, source, hint)


def read_reviews(
    rows: Iterable[tuple[str, Any]],
    *,
    source: str,
    names: Mapping[str, str],
    default: tuple[str, str],
) -> list[Match]:
    """Check two-score reviews (FastChat's first form: answer1_id, answer2_id, score, text).

    Args:
        rows: (place, row) pairs.
        source: Name of the file.
        names: Model of each answer id.
        default: Models, where an id is not known.
    """

    def review(row: Any) -> Match:
        return _review(row, names, default)

    hint = "each line needs question_id, answer1_id, answer2_id and score [a, b] or text"
    return _read(rows, review, source, hint)


def _read(
    rows: Iterable[tuple[str, Any]], build: Callable[[Any], Match], source: str, hint: str
) -> list[Match]:
    matches, problems, seen = [], [], {}
    for place, row in rows:
        try:
            match = build(row)
        except ValueError as error:
            problems.append(f"{place}: {error}")
            continue
        key = (match.verdict.item_id, frozenset(match.models), match.judge)
        if key in seen:
            problems.append(f"{place}: judges what {seen[key]} judges")
        seen[key] = place
        matches.append(match)
    if problems:
        raise DataError(
            f"{source} cannot be used: {len(problems)} rows are of another form",
            problems=problems,
            hint=hint,
        )
    return matches


def _match(row: Any) -> Match:
    """Read one judgment; ValueError says what is wrong."""
    question = question_of(row)
    models = row.get("model_1"), row.get("model_2")
    if not all(isinstance(model, str) for model in models) or models[0] == models[1]:
        raise ValueError(f"model_1 and model_2 are {models[0]!r} and {models[1]!r}")
    first = _game(row, "g1", {"model_1": "win", "model_2": "loss"})
    second = _game(row, "g2", {"model_1": "win", "model_2": "loss"})
    raw = "\n\n".join(str(row.get(f"g{n}_judgment", "")) for n in (1, 2))
    item = f"{question}:{row.get('turn', 1)}"
    verdict = Verdict(item, combined((first, second)), raw, (first, second))
    return Match(question, models, judge_name(row), verdict)  # type: ignore[arg-type]


def _game(row: Mapping[str, Any], game: str, winners: Mapping[str, Outcome]) -> Outcome:
    """Read one game's outcome, seen from model_1; from its text if no winner was written."""
    winner, text = row.get(f"{game}_winner"), row.get(f"{game}_judgment")
    if winner is None and isinstance(text, str):
        outcome = parse_label(text)
        return "error" if text == API_ERROR else mirrored(outcome) if game == "g2" else outcome
    if winner in ("tie", *winners):
        return winners.get(winner, "tie")
    if winner == "error":
        return "error" if text == API_ERROR else "unparsed"
    raise ValueError(f"{game}_winner is {winner!r}; known: model_1, model_2, tie, error")


def _review(row: Any, names: Mapping[str, str], default: tuple[str, str]) -> Match:
    """Read one review; ValueError says what is wrong."""
    question = question_of(row)
    score: Any = row.get("score")
    if score is None and isinstance(row.get("text"), str):
        found = re.match(r"\s*(\d+(?:\.\d+)?)[\s,]+(\d+(?:\.\d+)?)\s*(?:\n|$)", row["text"])
        score = [float(part) for part in found.groups()] if found else [-1, -1]
    if not isinstance(score, list) or len(score) != 2 or not all(map(_is_number, score)):
        raise ValueError(f"score is {score!r}, not two numbers")
    one, two = map(float, score)
    models = (
        names.get(row.get("answer1_id", ""), default[0]),
        names.get(row.get("answer2_id", ""), default[1]),
    )
    judge = re.sub(r"-[a-z]+$", "", str(row.get("reviewer_id", "unknown")))
    failed = min(one, two) < 0
    outcome: Outcome = "unparsed" if failed else "win" if one > two else "loss"
    outcome = "tie" if one == two and not failed else outcome
    verdict = Verdict(f"{question}:1", outcome, str(row.get("text", "")), (outcome,))
    return Match(question, models, judge, verdict, None if failed else (one, two))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def standings(matches: Sequence[Match], baseline: str | None = None) -> dict[str, Standing]:
    """Count every model's matches, best first.

    Args:
        matches: From one judge.
        baseline: Only matches against this model, which is itself left out.

    Raises:
        DataError: Several judges, or no match against the baseline.
    """
    require_one_judge(matches)
    if baseline is not None:
        known = sorted({model for match in matches for model in match.models})
        matches = [match for match in matches if baseline in match.models]
        if not matches:
            raise DataError(f"no match against {baseline!r}", hint=f"models: {', '.join(known)}")
    outcomes: dict[str, list[Outcome]] = defaultdict(list)
    scores: dict[str, list[float]] = defaultdict(list)
    for match in matches:
        seen = (match.verdict.outcome, mirrored(match.verdict.outcome))
        for place, (model, outcome) in enumerate(zip(match.models, seen, strict=True)):
            if model != baseline:
                outcomes[model].append(outcome)
                if match.scores is not None:
                    scores[model].append(match.scores[place])
    result = {m: _standing(outcomes[m], scores.get(m)) for m in sorted(outcomes)}
    order = {m: -math.inf if math.isnan(s.adjusted.value) else s.adjusted.value
             for m, s in result.items()}  # fmt: skip
    return dict(sorted(result.items(), key=lambda pair: -order[pair[0]]))


def _standing(outcomes: Sequence[Outcome], scores: Sequence[float] | None) -> Standing:
    counts = Counter(outcomes)
    worth = [WORTH[outcome] for outcome in outcomes if outcome in WORTH]
    n = len(worth)
    return Standing(
        wins=counts["win"],
        losses=counts["loss"],
        ties=counts["tie"],
        failed=len(outcomes) - n,
        win_rate=counts["win"] / n if n else math.nan,
        loss_rate=counts["loss"] / n if n else math.nan,
        adjusted=bootstrap(worth),
        mean_score=mean_interval(scores) if scores else None,
        total_score=sum(scores) if scores else None,
    )
