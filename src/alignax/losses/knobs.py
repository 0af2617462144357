# SPDX-License-Identifier: Apache-2.0
"""The settings that several losses share, and what a setting may be."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from alignax.errors import UsageError
from alignax.losses.schedule import Schedule, parse_schedule


@dataclass(frozen=True)
class Knob:
    """One setting of a loss besides β.

    Attributes:
        default: Its value when none is given; its type is the type of every value.
        meaning: What it does, in a few words.
        low: Smallest number that is allowed.
        high: Numbers must be below this.
        choices: The words that are allowed.
        only_with: ``(other knob, value)`` without which it has no effect.
    """

    default: float | bool | str
    meaning: str
    low: float = 0.0
    high: float = math.inf
    choices: tuple[str, ...] = ()
    only_with: tuple[str, Any] | None = None

    def read(self, value: Any, name: str) -> Any:
        """Turn a given value into the knob's type.

        Raises:
            UsageError: The value does not fit.
        """
        if isinstance(self.default, bool):
            if not isinstance(value, bool):
                raise UsageError(f"{name} must be true or false, got {value!r}")
            return value
        if isinstance(self.default, str):
            if value not in self.choices:
                raise UsageError(f"{name} must be one of {', '.join(self.choices)}, got {value!r}")
            return value
        return read_number(value, name, low=self.low, high=self.high)


def read_number(
    value: Any, name: str, *, low: float = 0.0, high: float = math.inf, above: bool = False
) -> float | Schedule:
    """Read a number or a schedule of numbers.

    Args:
        value: What was given.
        name: How it is called in errors.
        low: Smallest number that is allowed.
        high: Numbers must be below this.
        above: Whether ``low`` itself is refused.

    Raises:
        UsageError: It is neither, or leaves the allowed range.
    """
    schedule = parse_schedule(value) if isinstance(value, str) else value
    if not isinstance(schedule, Schedule):
        if isinstance(value, str | bool) or value is None:
            raise UsageError(
                f"{name} must be a number or a schedule like '0.1 -> 0.02', got {value!r}"
            )
        schedule = float(value)
    ends = (schedule.start, schedule.end) if isinstance(schedule, Schedule) else (schedule,)
    for end in ends:
        inside = low < end if above else low <= end
        if not (math.isfinite(end) and inside and end < high):
            bounds = f"{'above' if above else 'at least'} {low:g}"
            bounds += f" and below {high:g}" if high < math.inf else ""
            raise UsageError(f"{name} must be a number {bounds}, got {end}")
    return schedule


TERMS: Mapping[str, Knob] = {
    "nll_weight": Knob(0.0, "weight of the chosen answer's NLL per token"),
    "kl_weight": Knob(0.0, "weight of KL(policy ‖ reference) per token of the chosen answer"),
}
"""Terms that may be added to any pair loss."""

WITH_NLL: Mapping[str, Knob] = {
    **TERMS,
    "nll_weight": Knob(1.0, "weight of the chosen answer's NLL per token"),
}
"""The same for losses of which the chosen answer's NLL is a part."""

SMOOTHING: Mapping[str, Knob] = {
    "label_smoothing": Knob(0.0, "share of labels thought wrong", high=0.5)
}

RATIO: Mapping[str, Knob] = {
    "divergence": Knob(
        "reverse_kl",
        "divergence that ties the policy to the reference",
        choices=("reverse_kl", "forward_kl", "js", "alpha"),
    ),
    "divergence_alpha": Knob(
        0.5,
        "α of the α-divergence: 0 is the reverse, 1 the forward KL",
        high=1.0 + 1e-9,
        only_with=("divergence", "alpha"),
    ),
    "reference_free": Knob(False, "compare with a uniform reference instead of the model's"),
}
"""What ``ratios.log_ratios`` takes."""
