# SPDX-License-Identifier: Apache-2.0
"""Held-out values of a sweep's variants → which one to take, by a stated rule, and what it showed.

Losses of other β or kind are not on one scale, so they never decide: accuracy and KL do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np

from alignax.metrics.intervals import mean_interval, sign_test
from alignax.records import Score

SEED, BETA, LOSS = "train.seed", "loss.beta", "loss.type"
SHOWN = ("accuracy", "margin", "loss", "kl/token", "perplexity")


@dataclass(frozen=True)
class Outcome:
    """How one variant ended.

    Attributes:
        name: ``v1``, ``v2``, …
        label: Its settings for people.
        settings: Those in which variants differ, by dotted key.
        step: Where it was last evaluated.
        values: What was found there.
        frozen: Step, guard and reason, if a guard stopped it.
    """

    name: str
    label: str
    settings: Mapping[str, Any]
    step: int
    values: Mapping[str, float]
    frozen: Mapping[str, Any] | None = None

    @property
    def cell(self) -> tuple[tuple[str, Any], ...]:
        """Its settings without the seed: what several seeds share."""
        return tuple((key, value) for key, value in self.settings.items() if key != SEED)


@dataclass(frozen=True)
class Advice:
    """Which variant to take.

    Attributes:
        name: The variant; None if there is none to take.
        rule: By which it was chosen.
        reason: Why this one, with its figures.
        notes: What else the sweep showed, a sentence each.
    """

    name: str | None
    rule: str
    reason: str
    notes: list[str] = field(default_factory=list)


def rule_text(bottom: float, top: float, seeds: bool) -> str:
    """State the rule."""
    mean = ", as a mean over seeds" if seeds else ""
    return (
        f"the highest held-out accuracy{mean} among the variants that no guard stopped and whose "
        f"KL a token lies in the band {bottom:g} to {top:g} (below it if none is inside); of equal "
        "accuracies the one with the lower KL"
    )


def recommend(
    outcomes: Sequence[Outcome],
    right: Mapping[str, np.ndarray],
    *,
    bottom: float,
    top: float,
) -> Advice:
    """Choose a variant.

    Args:
        outcomes: All variants.
        right: Which held-out pairs each has right, by name.
        bottom: Lower end of the KL band.
        top: Upper end.
    """
    cells: dict[Any, list[Outcome]] = {}
    for one in outcomes:
        cells.setdefault(one.cell, []).append(one)
    rule = rule_text(bottom, top, len(cells) < len(outcomes))
    notes = effects(outcomes)
    # A cell counts only if all of its seeds came through.
    sound = [c for c in cells.values() if all(o.frozen is None and o.step for o in c)]
    sound = [c for c in sound if _mean(c, "kl/token") <= top]
    inside = [c for c in sound if _mean(c, "kl/token") >= bottom]
    ranked = sorted(inside or sound, key=lambda c: (-_mean(c, "accuracy"), _mean(c, "kl/token")))
    if not ranked:
        why = f"a guard stopped every variant, or left it above a KL of {top:g}"
        return Advice(None, rule, f"{why}: lower the learning rates or raise β", notes)
    best = ranked[0]
    where = "inside the band" if inside else "below the band: more steps or a higher rate would do"
    reason = (
        f"{best[0].name} ({best[0].label}): accuracy {_shown(best, 'accuracy')}, KL a token "
        f"{_mean(best, 'kl/token'):.4f}, {where}"
    )
    if len(ranked) > 1:
        notes.insert(0, _against(best[0], ranked[1][0], right))
    return Advice(best[0].name, rule, reason, notes)


def _mean(cell: Sequence[Outcome], metric: str) -> float:
    """Mean of a metric over the seeds of a cell."""
    return fmean(one.values[metric] for one in cell)


def _shown(cell: Sequence[Outcome], metric: str) -> str:
    """A metric with its interval: over rows, or over seeds where there are several."""
    values = cell[0].values
    if len(cell) > 1:
        score = mean_interval([one.values[metric] for one in cell])
        return f"{score.shown()} over {len(cell)} seeds"
    if f"{metric}_low" not in values:
        return f"{values[metric]:.4f}"
    low, high = values[f"{metric}_low"], values[f"{metric}_high"]
    return Score(values[metric], low, high, int(values["n"])).shown()


def _against(best: Outcome, other: Outcome, right: Mapping[str, np.ndarray]) -> str:
    """Compare the best two on the same pairs."""
    ours, theirs = right[best.name], right[other.name]
    wins, losses = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
    chance = sign_test(wins, losses)
    verdict = "a clear difference" if chance < 0.05 else "no clear difference"
    return (
        f"next is {other.name} ({other.label}): of the held-out pairs that only one of the two has "
        f"right, {best.name} has {wins} and {other.name} {losses} (p = {chance:.2g}, sign test): "
        f"{verdict}"
    )


def effects(outcomes: Sequence[Outcome]) -> list[str]:
    """Say what each swept number did, from its lowest to its highest value."""
    known = [one for one in outcomes if one.step and one.values]
    notes = []
    for key in outcomes[0].settings:
        if key == SEED:
            continue
        # A β of one loss says nothing about that of another.
        kinds = {one.settings.get(LOSS) for one in known} if key == BETA else {None}
        for kind in sorted(kinds, key=str):
            group = [o for o in known if kind is None or o.settings[LOSS] == kind]
            values = {o.settings[key] for o in group}
            if len(values) > 1 and all(isinstance(v, int | float) for v in values):
                notes.append(_effect(key, kind, group))
    return notes


def _effect(key: str, kind: Any, group: Sequence[Outcome]) -> str:
    """Compare the two ends of a number."""
    ends = [choose(one.settings[key] for one in group) for choose in (min, max)]
    low, high = ([o for o in group if o.settings[key] == end] for end in ends)
    kl, accuracy = (
        [_mean(side, metric) for side in (low, high)] for metric in ("kl/token", "accuracy")
    )
    name = ("β" if key == BETA else key) + (f" of {kind}" if kind else "")
    text = (
        f"{name} from {ends[0]:g} to {ends[1]:g}: KL a token {kl[0]:.4f} to {kl[1]:.4f}, held-out "
        f"accuracy {accuracy[0]:.3f} to {accuracy[1]:.3f}"
    )
    if len(group) > len({o.settings[key] for o in group}):
        text += " (means over the other settings)"
    if key == BETA:
        text += (
            "; a higher β held the policy closer to the reference"
            if kl[1] < kl[0]
            else "; a higher β did not hold the policy closer: steps and learning rate, not β, "
            "decide how far it goes here"
        )
    return text


def seed_table(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Mean and interval over seeds of every cell that has several."""
    cells: dict[Any, list[Outcome]] = {}
    for one in outcomes:
        if one.values:
            cells.setdefault(one.cell, []).append(one)
    rows = []
    for cell, members in cells.items():
        if len(members) < 2:
            continue
        row: dict[str, Any] = {"settings": dict(cell), "seeds": len(members)}
        for metric in SHOWN:
            score = mean_interval([one.values[metric] for one in members])
            row |= {metric: score.value, f"{metric}_low": score.low, f"{metric}_high": score.high}
        rows.append(row)
    return rows
