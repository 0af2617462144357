# SPDX-License-Identifier: Apache-2.0
"""Steps that take longer than they did: other work on the machine, a hot device, swapping."""

from statistics import median
from typing import Any

from alignax.guards.base import Finding, Trace

METRIC = "seconds"


def check(trace: Trace, settings: Any) -> Finding | None:
    """Find a median time of the last window above a multiple of the median before it.

    Medians, because a step that compiles or waits for a disk once is no regression. Looked at once
    a window, so that a slow hour is not told of at every step.
    """
    times = [step[METRIC] for step in trace.steps if METRIC in step]
    if len(times) < 3 * settings.window or int(trace.steps[-1]["step"]) % settings.window:
        return None
    value = median(times[-settings.window :])
    limit = settings.factor * median(times[: -settings.window])
    if value <= limit:
        return None
    step = int(trace.steps[-1]["step"])
    text = f"the last {settings.window} steps took far longer than those before"
    return Finding(METRIC, value, limit, step, text)
