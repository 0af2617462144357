# SPDX-License-Identifier: Apache-2.0
"""Gradient norms that jump, vanish, or are clipped all the time."""

from statistics import median
from typing import Any

from alignax.guards.base import Finding, Trace

METRIC = "grad_norm"
CLIPPED = "clipped"
MAD_TO_DEVIATION = 1.4826
"""Median absolute deviation → standard deviation, for normal values."""


def check(trace: Trace, settings: Any) -> Finding | None:
    """Find a norm of exactly zero, one far above those before it (robust z-score), or clipping."""
    norms = [step[METRIC] for step in trace.steps]
    step = int(trace.steps[-1]["step"]) if norms else 0
    if norms and norms[-1] == 0:
        return Finding(METRIC, 0.0, 0.0, step, "the gradient vanished: nothing is learnt")
    if len(norms) <= settings.window:
        return None
    value, before = norms[-1], norms[-settings.window - 1 : -1]
    middle = median(before)
    # Equal norms have no spread; a tenth of them stands in for it.
    spread = max(MAD_TO_DEVIATION * median(abs(n - middle) for n in before), 0.1 * middle)
    limit = middle + settings.deviations * spread
    if value > limit:
        return Finding(METRIC, value, limit, step, "the gradient jumped")
    return _clipped(trace, settings, step)


def _clipped(trace: Trace, settings: Any, step: int) -> Finding | None:
    """Find a window of steps of which too many were clipped; looked at once a window."""
    recent = [s[CLIPPED] for s in trace.steps if CLIPPED in s][-settings.window :]
    if settings.clip_share is None or len(recent) < settings.window or step % settings.window:
        return None
    share = sum(recent) / len(recent)
    if share <= settings.clip_share:
        return None
    text = f"the gradient was clipped in {share:.0%} of the last {len(recent)} steps"
    return Finding("clip_share", share, settings.clip_share, step, text)
