# SPDX-License-Identifier: Apache-2.0
"""Measures of a model and of what it started from → which goals are reached."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from alignax.errors import UsageError
from alignax.metrics.drift import KL_BAND

Status = Literal["reached", "not reached", "not measured"]


@dataclass(frozen=True)
class Measure:
    """One value of the aligned model.

    Attributes:
        value: The value.
        before: The same of the model that it started from; None where that means nothing.
        low: Lower end of the 95 % interval; None for none.
        high: Its upper end.
        about: What was measured, in a few words.
    """

    value: float
    before: float | None = None
    low: float | None = None
    high: float | None = None
    about: str = ""


@dataclass(frozen=True)
class Goal:
    """What a measure should be.

    Attributes:
        low: It must be above (``strict``) or at least this.
        high: It must be at most this.
        text: The same in words.
        strict: Whether ``low`` itself is too little.
    """

    low: float
    high: float
    text: str
    strict: bool = False

    def holds(self, value: float) -> bool:
        """Tell whether a value is within the goal; NaN never is."""
        return (self.low < value if self.strict else self.low <= value) and value <= self.high


def at_most(bound: float) -> Goal:
    """A goal with an upper end."""
    return Goal(-math.inf, bound, f"at most {bound:g}")


def above(bound: float) -> Goal:
    """A goal with a lower end."""
    return Goal(bound, math.inf, f"above {bound:g}", strict=True)


GOALS: dict[str, Goal] = {
    "win_rate": above(0.7),
    "perplexity": at_most(5.0),
    "kl/token": Goal(*KL_BAND, f"{KL_BAND[0]:g} to {KL_BAND[1]:g}"),
    "accuracy": above(0.5),
    "loss_ratio": at_most(1.0),
    "refusal_change": at_most(0.05),
    "stop_change": Goal(-0.05, math.inf, "at least -0.05"),
    "length_ratio": Goal(0.5, 1.5, "0.5 to 1.5"),
    "repetition_change": at_most(0.05),
    "text_perplexity_ratio": at_most(1.05),
    "gsm8k_change": Goal(-0.05, math.inf, "at least -0.05"),
}
"""Goals that stand unless others are named. Those ending in ``_change`` and ``_ratio`` compare with
the model that training started from."""

PATTERN = re.compile(r"\s*([\w/]+?)\s*(<=|>=|<|>|=)\s*(\S+)\s*")


def parse_goal(text: str) -> tuple[str, Goal]:
    """Read ``win_rate>0.6``, ``perplexity<=8`` or ``kl/token=0.01..0.2``.

    Raises:
        UsageError: It is none of these, or names no known measure.
    """
    found = PATTERN.fullmatch(text)
    name = found[1] if found else ""
    if found is None or name not in GOALS:
        raise UsageError(
            f"--goal {text!r} cannot be read",
            hint="NAME>X, NAME<=X or NAME=LOW..HIGH, with NAME one of " + ", ".join(GOALS),
        )
    try:
        one, dots, two = found[3].partition("..")
        first, last = float(one), float(two if dots else one)
    except ValueError as error:
        raise UsageError(f"--goal {text!r}: {error}") from error
    ends = {
        "<=": at_most(first), "<": at_most(math.nextafter(first, -math.inf)),
        ">": above(first), ">=": Goal(first, math.inf, f"at least {first:g}"),
        "=": Goal(first, last, f"{first:g} to {last:g}"),
    }  # fmt: skip
    return name, ends[found[2]]


def check_goals(
    measures: Mapping[str, Measure], named: Mapping[str, Goal]
) -> tuple[list[dict[str, Any]], bool]:
    """Compare measures with goals.

    A goal that stands by itself counts only where its measure was taken; one that was named and not
    measured is not reached.

    Args:
        measures: What was measured.
        named: Goals that were asked for, in place of the usual ones of their names.

    Returns:
        One record a goal, and whether all that count are reached. ``certain`` says whether the
        whole interval lies on the value's side of the goal.
    """
    records, passed = [], True
    for name, goal in {**GOALS, **named}.items():
        measure = measures.get(name)
        if measure is None:
            status: Status = "not reached" if name in named else "not measured"
        else:
            status = "reached" if goal.holds(measure.value) else "not reached"
        passed &= status != "not reached"
        ends = [] if measure is None else [e for e in (measure.low, measure.high) if e is not None]
        records.append(
            {
                "name": name,
                "goal": goal.text,
                "status": status,
                "certain": all(goal.holds(end) == (status == "reached") for end in ends),
                **(vars(measure) if measure is not None else {"value": None, "before": None}),
            }
        )
    return records, passed


def last_number(text: str) -> float | None:
    """Read the last number of an answer, as GSM8K's answers end (after ``####`` if that is there).

    >>> last_number("so 3 + 4 = 7 apples"), last_number("#### 1,250"), last_number("none")
    (7.0, 1250.0, None)
    """
    tail = text.rpartition("####")[2]
    found = re.findall(r"-?\d[\d,]*(?:\.\d+)?", tail)
    return float(found[-1].replace(",", "")) if found else None
