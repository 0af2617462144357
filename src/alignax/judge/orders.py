# SPDX-License-Identifier: Apache-2.0
"""Comparisons and a judge → verdicts from both orders, and what the orders tell of the judge."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from alignax.judge.base import Judge, Opinion, Question
from alignax.metrics.intervals import wilson
from alignax.records import Comparison, Outcome, Score, Verdict

MIRROR: dict[Outcome, Outcome] = {"win": "loss", "loss": "win"}
FAILURES: tuple[Outcome, ...] = ("error", "refused", "unparsed")
"""Outcomes that are no verdict, the one that most wants a second try first."""


@dataclass(frozen=True)
class Reliability:
    """What two orders tell of a judge, over the items that both orders decided.

    Attributes:
        counts: Verdicts by outcome, all items.
        flip_rate: Share of items in which the two orders disagree.
        tie_rate: Share of decided items that are ties, those by disagreement included.
        first_wins: Share of single judgements with a winner that went to the answer shown first;
            a half is unbiased.
    """

    counts: dict[Outcome, int]
    flip_rate: Score
    tie_rate: Score
    first_wins: Score


def mirrored(outcome: Outcome) -> Outcome:
    """Turn an outcome round: what the first answer won, the second lost."""
    return MIRROR.get(outcome, outcome)


def combined(orders: Sequence[Outcome]) -> Outcome:
    """Combine the outcomes of both orders, seen from the candidate.

    Agreement is the verdict, disagreement a tie. If an order failed there is no verdict, because
    half of a comparison is biased by its order.

    >>> combined(("win", "win")), combined(("win", "loss")), combined(("win", "error"))
    ('win', 'tie', 'error')
    """
    for failure in FAILURES:
        if failure in orders:
            return failure
    return orders[0] if len(set(orders)) == 1 else "tie"


def judge_both_orders(
    judge: Judge, items: Sequence[Comparison], *, done: Callable[[int], None] = lambda _: None
) -> list[Verdict]:
    """Ask the judge about every item, the candidate first and then second.

    A symmetric judge is asked once. Items with two equal answers are ties and are not asked.
    """
    asked = [item for item in items if item.answer != item.baseline]
    forward = [Question(i.prompt, i.answer, i.baseline, i.reference) for i in asked]
    backward = [Question(i.prompt, i.baseline, i.answer, i.reference) for i in asked]
    orders = [forward] if judge.symmetric else [forward, backward]
    opinions = judge.judge([q for order in orders for q in order], done=done)
    found = {}
    for place, item in enumerate(asked):
        found[item.item_id] = _verdict(item, opinions[place :: len(asked)])
    same = "the answers are equal"
    return [found.get(i.item_id) or Verdict(i.item_id, "tie", same) for i in items]


def _verdict(item: Comparison, opinions: Sequence[Opinion]) -> Verdict:
    others: list[Outcome] = [mirrored(opinion.outcome) for opinion in opinions[1:]]
    outcomes: tuple[Outcome, ...] = (opinions[0].outcome, *others)
    raw = "\n\n--- the other order ---\n\n".join(opinion.raw for opinion in opinions)
    return Verdict(item.item_id, combined(outcomes), raw, outcomes)


def reliability(verdicts: Sequence[Verdict]) -> Reliability:
    """Summarise what the orders tell of the judge."""
    both = [v.orders for v in verdicts if len(v.orders) == 2 and not set(v.orders) & set(FAILURES)]
    decided = [v for v in verdicts if v.decided]
    first = sum((a == "win") + (b == "loss") for a, b in both)
    second = sum((a == "loss") + (b == "win") for a, b in both)
    return Reliability(
        counts=dict(Counter(v.outcome for v in verdicts)),
        flip_rate=wilson(sum(a != b for a, b in both), len(both)),
        tie_rate=wilson(sum(v.outcome == "tie" for v in decided), len(decided)),
        first_wins=wilson(first, first + second),
    )


def longer_wins(items: Sequence[Comparison], verdicts: Sequence[Verdict]) -> Score:
    """Share of won or lost items that went to the longer answer (characters)."""
    longer, n = 0, 0
    for item, verdict in zip(items, verdicts, strict=True):
        gap = len(item.answer) - len(item.baseline)
        if gap and verdict.outcome in ("win", "loss"):
            n += 1
            longer += (gap > 0) == (verdict.outcome == "win")
    return wilson(longer, n) if n else Score(math.nan, 0.0, 1.0, 0)


NULL_ANSWER = "I am sorry, but I cannot help with that."


def null_model(items: Sequence[Comparison], answer: str = NULL_ANSWER) -> list[Comparison]:
    """Replace the candidate by one that always says the same; it must not win."""
    return [replace(item, item_id=f"null {item.item_id}", answer=answer) for item in items]


def self_preference(judge: Judge, candidate: str, baseline: str) -> str:
    """Warn of a judge that shares its family with one side; empty otherwise.

    Judges prefer answers of their own kind (Panickssery et al. 2024), so such a win is worth less.
    """
    family = judge.family.lower()
    names = {"candidate": candidate, "baseline": baseline}
    alike = [who for who, name in names.items() if family and family in name.lower()]
    if not alike:
        return ""
    return (
        f"the judge ({judge.name}) is of the same family as the {' and the '.join(alike)}: judges "
        "favour answers of their own kind"
    )
