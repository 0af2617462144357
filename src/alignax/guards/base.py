# SPDX-License-Identifier: Apache-2.0
"""What guards see and what they say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Trace:
    """A run's metrics, oldest first.

    Attributes:
        steps: Values of the last training steps, each with ``"step"``.
        evals: All held-out evaluations from before step 1 on, each with ``"step"``.
    """

    steps: Sequence[Mapping[str, float]]
    evals: Sequence[Mapping[str, float]]


@dataclass(frozen=True)
class Finding:
    """What is wrong.

    Attributes:
        metric: Name of the metric.
        value: What it is.
        threshold: What it should not have passed.
        step: Where it was measured.
        text: The same in plain words.
    """

    metric: str
    value: float
    threshold: float
    step: int
    text: str

    def __str__(self) -> str:
        """Words and numbers in one line."""
        return (
            f"step {self.step}: {self.text} ({self.metric} {self.value:.4g}, "
            f"limit {self.threshold:.4g})"
        )
