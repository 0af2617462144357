# SPDX-License-Identifier: Apache-2.0
"""``"0.1 -> 0.02 cosine over 0.5"`` → a setting that changes during the run."""

import re
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp

from alignax.errors import UsageError

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_PATTERN = re.compile(
    rf"\s*({_NUMBER})\s*->\s*({_NUMBER})(?:\s+(linear|cosine))?(?:\s+over\s+({_NUMBER}))?\s*"
)


@dataclass(frozen=True)
class Schedule:
    """A number that goes from ``start`` to ``end`` and stays there.

    Attributes:
        start: Value of the first step.
        end: Value from ``share`` of the run on.
        shape: ``"linear"`` or ``"cosine"``.
        share: Part of the run in which it moves, above 0 and at most 1.
        steps: Steps of the run; None until the run is planned.
    """

    start: float
    end: float
    shape: str = "linear"
    share: float = 1.0
    steps: int | None = None

    def at(self, step: Any) -> Any:
        """Compute the value of a step (0 for the first; may be traced)."""
        if self.steps is None:
            raise UsageError(f"the schedule {self} needs to know the steps of the run")
        span = max(self.share * (self.steps - 1), 1.0)
        progress = jnp.clip(jnp.asarray(step, jnp.float32) / span, 0.0, 1.0)
        if self.shape == "cosine":
            progress = (1.0 - jnp.cos(jnp.pi * progress)) / 2.0
        return self.start + (self.end - self.start) * progress

    def over(self, steps: int) -> "Schedule":
        """Bind it to a run of so many steps."""
        return replace(self, steps=steps)

    def times(self, factor: float) -> "Schedule":
        """Multiply all of its values."""
        return replace(self, start=factor * self.start, end=factor * self.end)

    def __str__(self) -> str:
        """Write it as it is read."""
        over = "" if self.share == 1 else f" over {self.share:g}"
        return f"{self.start:g} -> {self.end:g} {self.shape}{over}"


def parse_schedule(text: str) -> Schedule | None:
    """Read ``A -> B [linear|cosine] [over SHARE]``; None for other text.

    Raises:
        UsageError: The share is not above 0 and at most 1.
    """
    match = _PATTERN.fullmatch(text)
    if match is None:
        return None
    start, end, shape, share = match.groups()
    schedule = Schedule(float(start), float(end), shape or "linear", float(share or 1.0))
    if not 0 < schedule.share <= 1:
        raise UsageError(f"{text!r}: the share of the run must be above 0 and at most 1")
    return schedule


def value_at(value: Any, step: Any) -> Any:
    """Resolve a setting for a step; whatever is no schedule is returned as it is."""
    return value.at(step) if isinstance(value, Schedule) else value


def shown(value: Any) -> str:
    """Write a setting for people."""
    return f"{value:g}" if isinstance(value, float) else str(value)
