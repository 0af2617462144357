# SPDX-License-Identifier: Apache-2.0
"""Gradient norms that jump, or vanish."""

from statistics import median
from typing import Any

from alignax.guards.base import Finding, Trace

METRIC = "grad_norm"
MAD_TO_DEVIATION = 1.4826
"""Median absolute deviation → standard deviation, for normal values."""


def check(trace: Trace, settings: Any) -> Finding | None:
    """Find a norm far above those before it (robust z-score), or one of exactly zero."""
    norms = [step[METRIC] for step in trace.steps]
    if len(norms) <= settings.window:
        return None
    value, before = norms[-1], norms[-settings.window - 1 : -1]
    step = int(trace.steps[-1]["step"])
    if value == 0:
        return Finding(METRIC, value, 0.0, step, "the gradient vanished: nothing is learnt")
    middle = median(before)
    # Equal norms have no spread; a tenth of them stands in for it.
    spread = max(MAD_TO_DEVIATION * median(abs(n - middle) for n in before), 0.1 * middle)
    limit = middle + settings.deviations * spread
    if value > limit:
        return Finding(METRIC, value, limit, step, "the gradient jumped")
    return None
