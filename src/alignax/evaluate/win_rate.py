# SPDX-License-Identifier: Apache-2.0
"""Verdicts on two sets of answers → a win rate that says how much it is worth."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from alignax.evaluate.length_control import WEAK_PRIOR, fitted
from alignax.judge.orders import FAILURES, Reliability, longer_wins, reliability
from alignax.metrics.intervals import bootstrap, sign_test, wilson
from alignax.records import WORTH, Comparison, Outcome, Score, Verdict

ONE_SIDED = 0.95
"""Share of items with the same side longer from which on equal length is out of sight."""

LEAST_CONTROLLED = 30
"""Fewer verdicts than this give no length-controlled estimate."""


@dataclass(frozen=True)
class WinRate:
    """How often the candidate's answer was better.

    Attributes:
        rate: Mean over items with a verdict, a tie worth a half, with the bootstrap's interval.
        wilson: The same rate with Wilson's interval of wins among won and lost items.
        counts: Items by outcome, those without a verdict included.
        coverage: Share of items with a verdict.
        bounds: The rate if every missing verdict were a loss, and a win.
        p_value: Exact two-sided sign test, ties left out.
        length_controlled: Estimate at equal length, 0 … 1; NaN if it cannot be fitted.
        lengths: Mean characters of the candidate's and of the baseline's answers.
        longer_wins: Share of decided items that went to the longer answer.
        judge: What the two orders tell of the judge.
        warnings: What a reader of the rate should know, one sentence each.
    """

    rate: Score
    wilson: Score
    counts: dict[Outcome, int]
    coverage: float
    bounds: tuple[float, float]
    p_value: float
    length_controlled: float
    lengths: tuple[float, float]
    longer_wins: Score
    judge: Reliability
    warnings: tuple[str, ...]


def summarize(items: Sequence[Comparison], verdicts: Sequence[Verdict]) -> WinRate:
    """Summarise the verdicts on all items.

    Args:
        items: Every item that was to be judged, once.
        verdicts: One for each item, in any order.

    Raises:
        ValueError: Items and verdicts are not of the same ids, each once; verdicts are joined by
            id, and nothing is left out silently.
    """
    by_id = {verdict.item_id: verdict for verdict in verdicts}
    ids = [item.item_id for item in items]
    if len(by_id) != len(verdicts) or len(set(ids)) != len(ids) or set(ids) != set(by_id):
        odd = sorted(set(ids) ^ set(by_id)) or "ids occur twice"
        raise ValueError(f"items and verdicts do not match: {odd}")
    ordered = [by_id[item_id] for item_id in ids]
    worth = np.array([WORTH.get(v.outcome, math.nan) for v in ordered])
    known = ~np.isnan(worth)
    n, total = int(known.sum()), len(items)
    won = float(worth[known].sum())
    wins, losses = int((worth == 1).sum()), int((worth == 0).sum())
    judge = reliability(ordered)
    lengths = np.array([[len(i.baseline), len(i.answer)] for i in items], np.float64)
    lengths = lengths.reshape(-1, 2)
    result = WinRate(
        rate=bootstrap(worth[known]),
        wilson=wilson(wins, wins + losses),
        counts=judge.counts,
        coverage=n / total if total else 0.0,
        bounds=(won / total, (won + total - n) / total) if total else (0.0, 1.0),
        p_value=sign_test(wins, losses),
        length_controlled=_controlled(worth, lengths, n),
        lengths=(float(lengths[:, 1].mean()), float(lengths[:, 0].mean()))
        if total
        else (math.nan, math.nan),
        longer_wins=longer_wins(items, ordered),
        judge=judge,
        warnings=(),
    )
    return replace(result, warnings=tuple(_warnings(result, items, n, total)))


def _controlled(worth: np.ndarray, lengths: np.ndarray, n: int) -> float:
    """Estimate the rate at equal length."""
    if n < LEAST_CONTROLLED:
        return math.nan
    rate = fitted(worth, lengths, prior=WEAK_PRIOR)
    return math.nan if rate is None else rate / 100


def _warnings(result: WinRate, items: Sequence[Comparison], n: int, total: int) -> list[str]:
    """Say what a reader of the rate should know."""
    found = []
    if n < total:
        failed = ", ".join(f"{result.counts[f]} {f}" for f in FAILURES if f in result.counts)
        low, high = result.bounds
        found.append(
            f"{total - n} of {total} items have no verdict ({failed}); counting them as losses or "
            f"as wins gives {low:.3f} … {high:.3f}"
        )
    if math.isnan(result.length_controlled):
        few = f"fewer than {LEAST_CONTROLLED} verdicts"
        why = few if n < LEAST_CONTROLLED else "the lengths differ by the same everywhere"
        found.append(f"no length-controlled estimate: {why}")
    elif abs(result.length_controlled - result.rate.value) > 0.1:
        found.append(
            f"at equal length the win rate is {result.length_controlled:.3f}, not "
            f"{result.rate.value:.3f}: length explains part of it"
        )
    found += _about_lengths(items) if not math.isnan(result.length_controlled) else []
    first = result.judge.first_wins
    if first.n and not first.low <= 0.5 <= first.high:
        found.append(
            f"the judge prefers a place: the answer shown first won {first.value:.0%} of "
            f"{first.n} judgements"
        )
    answers = {item.answer for item in items}
    if total > 2 and len(answers) <= total // 2:
        found.append(
            f"the candidate gives only {len(answers)} distinct answers to {total} prompts: such a "
            "win rate says something about the judge and nothing about the model"
        )
    return found


def _about_lengths(items: Sequence[Comparison]) -> list[str]:
    """Warn where equal length is far from what was judged."""
    longer = sum(len(item.answer) > len(item.baseline) for item in items) / len(items)
    shorter = sum(len(item.answer) < len(item.baseline) for item in items) / len(items)
    if max(longer, shorter) < ONE_SIDED:
        return []
    side = "candidate" if longer > shorter else "baseline"
    return [
        f"the {side}'s answer is the longer one in {max(longer, shorter):.0%} of the items: the "
        "estimate at equal length goes beyond what was judged"
    ]
