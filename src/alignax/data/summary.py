# SPDX-License-Identifier: Apache-2.0
"""A survey → what a person and a program read: rows by reason, statistics, what would hurt."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from alignax.data.diversity import GOAL, diversity
from alignax.data.filters import Said, Verdicts
from alignax.data.separators import (
    SAMPLE,
    bag_of_words,
    constant_openings,
    language_mix,
    length_bias,
    refusals,
)
from alignax.data.survey import Survey, opening
from alignax.reasons import REASONS, Filters

EASY = 0.85
"""Accuracy of a trivial rule from which it is what the model will learn."""

MOST_COMPARED = 250_000
"""Rejected answers that are compared with each other, at most; ``n`` says how many were."""

NOTABLE = 0.01
"""Share of the rows from which a property is worth a sentence of advice."""


def reason_table(found: Survey, filters: Filters, verdicts: Verdicts) -> dict[str, Any]:
    """Rows by reason: ``rows``, ``kept``, ``reasons``, ``shares``, ``actions``, ``effects``."""
    reasons, count = found.reasons(), len(found)
    return {
        "rows": count,
        "kept": count - len(verdicts.dropped),
        "reasons": reasons,
        "shares": {code: round(len(rows) / max(count, 1), 6) for code, rows in reasons.items()},
        "actions": {code: filters.action(code) for code in reasons},
        "effects": verdicts.effects,
    }


def statistics(found: Survey, said: Said, *, pairs: bool, seed: int = 0) -> dict[str, Any]:
    """Length bias, trivial separators, languages, diversity, lengths in characters."""
    rows = found.distinct
    taken = rows
    if len(rows) > SAMPLE:
        taken = np.sort(np.random.default_rng(seed).choice(rows, SAMPLE, replace=False))
    texts = [said(row) for row in taken.tolist()]
    result: dict[str, Any] = {"looked_at": len(texts), "characters": _lengths(found, pairs=pairs)}
    if not pairs or not len(rows):
        return result
    answers = [(text[1], text[2]) for text in texts]
    words = bag_of_words(answers, seed=seed)
    margins = found.margins[rows]
    return {
        **result,
        "length_bias": length_bias(found.sizes[rows, 1], found.sizes[rows, 2]),
        "bag_of_words": words,
        "constant_openings": constant_openings(
            found.openings[rows], lambda row, side: opening(said(int(rows[row]))[1 + side])
        ),
        "refusals": refusals(answers),
        "languages": language_mix([(t[0], t[1], t[2]) for t in texts]),
        "diversity": diversity(_rejected(found), [text[2] for text in texts], seed=seed),
        "margins": _quantiles(margins[~np.isnan(margins)]),
    }


def _rejected(found: Survey) -> np.ndarray:
    """Signatures of usable rejected answers, of the first ``MOST_COMPARED`` of them."""
    return found.rejected[np.flatnonzero(found.usable)[:MOST_COMPARED]]


def _lengths(found: Survey, *, pairs: bool) -> dict[str, Any]:
    names = ("prompt", "chosen", "rejected") if pairs else ("prompt", "answer")
    columns = found.sizes[found.usable]
    return {name: _quantiles(columns[:, place]) for place, name in enumerate(names)}


def _quantiles(values: np.ndarray) -> dict[str, float]:
    if not len(values):
        return {}
    median, high = np.percentile(values, (50, 95))
    return {
        "mean": round(float(values.mean()), 3), "median": round(float(median), 3),
        "p95": round(float(high), 3), "max": round(float(values.max()), 3),
    }  # fmt: skip


def what_hurts(table: Mapping[str, Any], numbers: Mapping[str, Any]) -> list[str]:
    """Say in plain words what would hurt training and what to do, the worst first."""
    said = list(_separable(numbers))
    diverse = numbers.get("diversity", {}).get("distinct")
    if diverse is not None and diverse < GOAL:
        said.append(
            f"only {diverse:.0%} of the rejected answers are distinct (goal {GOAL:.0%}): the model "
            "learns to avoid a few phrases; filter with rejected_quota=1 or sample more answers"
        )
    shares = sorted(table["shares"].items(), key=lambda item: -item[1])
    for code, share in shares:
        reason = REASONS[code]
        if table["actions"][code] != "keep" or share >= NOTABLE:
            count = len(table["reasons"][code])
            what = "dropped: " if table["actions"][code] in ("drop", "fail") else ""
            said.append(f"{what}{count} rows ({share:.1%}) {reason.meaning}: {reason.harm}")
    return said


def _separable(numbers: Mapping[str, Any]) -> Sequence[str]:
    """Name trivial rules that tell the sides apart."""
    said = []
    bias = numbers.get("length_bias", {})
    if bias.get("accuracy") is not None and bias["n"] >= 20:
        right = max(bias["accuracy"], 1 - bias["accuracy"])
        rule = "longer" if bias["accuracy"] > 0.5 else "shorter"
        if right > EASY:
            said.append(
                f"'the {rule} answer is better' is right in {right:.0%} of the pairs: the model "
                "will learn length; filter with length_balance=0.1"
            )
    words = numbers.get("bag_of_words", {})
    if (words.get("accuracy") or 0) > EASY:
        said.append(
            f"single words tell the sides apart in {words['accuracy']:.0%} of the pairs (such as "
            f"{', '.join(words['words']['chosen'][:3])} against "
            f"{', '.join(words['words']['rejected'][:3])}): the model learns style, not quality"
        )
    said += [
        f"{found['rows']} {found['side']} answers, but only {found['other_side']} of the other "
        f"side, begin {found['text']!r}: that beginning is what the model will learn"
        for found in numbers.get("constant_openings", [])[:2]
    ]
    return said
