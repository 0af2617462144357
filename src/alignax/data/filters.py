# SPDX-License-Identifier: Apache-2.0
"""A survey and what to do about each reason → which rows stay; every other row has its reason.

Filters that choose among rows (quotas, balance) work on what the others left, take the first rows
of a seeded order, and so give the same result whatever the number of workers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from alignax.data import near
from alignax.data.separators import suspicion
from alignax.data.survey import BITS, Survey
from alignax.errors import DataError
from alignax.reasons import REASONS, Filters

SHOWN = 5
READING = ("roles_not_alternating", "score_tie", "template_tokens")
"""Reasons that some rows are read with and others are not."""


@dataclass
class Verdicts:
    """What becomes of every row.

    Attributes:
        dropped: Row → the reason under which it is dropped, in row order.
        effects: Reason → rows that it dropped and that no earlier reason had.
    """

    dropped: dict[int, str]
    effects: dict[str, int]

    def kept(self, count: int) -> np.ndarray:
        """[k] numbers of the rows that stay."""
        stays = np.ones(count, bool)
        stays[list(self.dropped)] = False
        return np.flatnonzero(stays)


Said = Callable[[int], tuple[str, ...]]
"""Row → its prompt and answers as texts."""


def apply_filters(found: Survey, filters: Filters, said: Said, *, seed: int = 0) -> Verdicts:
    """Decide about every row.

    Args:
        found: The survey; filters add their reasons to it.
        filters: Actions and numbers.
        said: Texts of a row, for filters that compare answers.
        seed: Of the order in which quotas are filled.

    Raises:
        DataError: A reason whose action is ``fail`` was found; all such reasons are named.
    """
    _mark(found, filters, said)
    _refuse(found, filters)
    dropped: dict[int, str] = {}
    for code in REASONS:
        if filters.action(code) == "drop":
            for row in np.flatnonzero(found.mask(code)).tolist():
                dropped.setdefault(row, code)
    for row in np.flatnonzero(~found.usable).tolist():
        dropped.setdefault(row, _first_reason(found, row))
    left = np.setdiff1d(np.arange(len(found)), np.array(list(dropped), np.int64))
    for code, rows in _chosen(found, filters, left, seed):
        found.add(code, rows)
        action = filters.action(code)
        if action == "drop":
            dropped |= {int(row): code for row in rows if int(row) not in dropped}
    _refuse(found, filters)
    effects: dict[str, int] = {}
    for code in dropped.values():
        effects[code] = effects.get(code, 0) + 1
    return Verdicts(dict(sorted(dropped.items())), effects)


def _first_reason(found: Survey, row: int) -> str:
    """The reason for which a row cannot be read."""
    codes = [code for code in REASONS if found.flags[row] & BITS[code]]
    hard = [code for code in codes if REASONS[code].hard]
    return (hard or [code for code in codes if code in READING] or codes)[0]


def _refuse(found: Survey, filters: Filters) -> None:
    problems = []
    for code in REASONS:
        rows = np.flatnonzero(found.mask(code)) if filters.action(code) == "fail" else ()
        if len(rows):
            shown = ", ".join(map(str, rows[:SHOWN]))
            problems.append(f"{code}: {len(rows)} rows {REASONS[code].meaning} (rows {shown}, …)")
    if problems:
        raise DataError(
            "the data have what data.filters says must not be there",
            problems=problems,
            hint="correct the rows, or let the filter drop them: REASON=drop",
        )


def _mark(found: Survey, filters: Filters, said: Said) -> None:
    """Give reasons to rows by what they are, each for itself."""
    options, usable = filters.options, found.usable
    low, high = options.get("margin_min"), options.get("margin_max")
    margins = found.margins
    if (low is not None or high is not None) and np.isnan(margins[usable]).all():
        raise DataError("margin_min and margin_max need rows with scores; no row has them")
    if low is not None:
        found.add("margin_outside", usable & (margins < low))
    if high is not None:
        found.add("margin_outside", usable & (margins > high))
    if "length_ratio_max" in options:
        sides = found.sizes[:, 1:]
        ratio = sides.max(1) / np.maximum(sides.min(1), 1)
        found.add("length_ratio", usable & (ratio > options["length_ratio_max"]))
    if "similarity_max" in options:
        rows = [
            i
            for i in np.flatnonzero(usable).tolist()
            if _alike(said(i)) > options["similarity_max"]
        ]
        found.add("similar_answers", np.array(rows, np.int64))
    if "suspicious_share" in options:
        rows, doubt = doubts(found, said)
        most = int(options["suspicious_share"] * len(rows))
        found.add("suspicious_label", rows[np.argsort(-doubt, kind="stable")[:most]])


def _alike(texts: tuple[str, ...]) -> float:
    """Similarity of two answers: shared shingles of 5 characters."""
    return near.similarity(*map(near.squeezed, texts[1:3])) if len(texts) > 2 else 0.0


def doubts(found: Survey, said: Said) -> tuple[np.ndarray, np.ndarray]:
    """Usable rows that are no duplicates, and how much a cross-fitted classifier doubts each."""
    rows = found.distinct
    return rows, suspicion([said(row)[1:3] for row in rows.tolist()])  # type: ignore[misc]


def _chosen(
    found: Survey, filters: Filters, left: np.ndarray, seed: int
) -> list[tuple[str, np.ndarray]]:
    """Rows beyond quotas, one filter after another."""
    options, result = filters.options, []
    order = np.random.default_rng(seed).permutation(len(left))
    quotas: Mapping[str, tuple[str, Callable[[], np.ndarray]]] = {
        "prompt_quota": ("prompt_quota", lambda: found.keys[:, 0]),
        "rejected_quota": ("diversity_quota", lambda: near.clusters(found.rejected)),
    }
    for name, (code, groups) in quotas.items():
        if name in options:
            rows = _beyond(groups()[left], order, int(options[name]))
            result.append((code, left[rows]))
            stays = np.setdiff1d(np.arange(len(left)), rows)
            left, order = left[stays], np.random.default_rng(seed).permutation(len(stays))
    if "length_balance" in options:
        result.append(
            ("length_balance", _unbalanced(found, left, order, options["length_balance"]))
        )
    return result


def _beyond(groups: np.ndarray, order: np.ndarray, quota: int) -> np.ndarray:
    """Places beyond the first ``quota`` of each group, in the given order."""
    shuffled = groups[order]
    ranked = np.argsort(shuffled, kind="stable")
    values = shuffled[ranked]
    first = np.searchsorted(values, values)
    return np.sort(order[ranked[np.arange(len(values)) - first >= quota]])


def _unbalanced(found: Survey, left: np.ndarray, order: np.ndarray, allowed: float) -> np.ndarray:
    """Rows to leave out so that the longer answer is chosen in about half of the pairs."""
    chosen, rejected = found.sizes[left, 1], found.sizes[left, 2]
    longer = (chosen > rejected)[order].nonzero()[0]
    shorter = (chosen < rejected)[order].nonzero()[0]
    more, fewer = (longer, shorter) if len(longer) > len(shorter) else (shorter, longer)
    share = min(0.5 + allowed, 1.0)
    # Wanted: m' / (m' + fewer) <= share.
    most = len(more) if share >= 1 else int(len(fewer) * share / (1 - share))
    return np.sort(left[order[more[most:]]])
