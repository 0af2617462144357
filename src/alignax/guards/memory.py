# SPDX-License-Identifier: Apache-2.0
"""Host memory that grows from step to step, until the system ends the process."""

from statistics import median
from typing import Any

from alignax.guards.base import Finding, Trace

METRIC = "host_gib"
QUARTERS = 4


def check(trace: Trace, settings: Any) -> Finding | None:
    """Find memory that rose in every quarter of the window, and by a share of it in all.

    A program that is compiled late, or a first evaluation, raises it once and is no leak.
    """
    seen = [step[METRIC] for step in trace.steps if METRIC in step][-settings.window :]
    if len(seen) < settings.window or int(trace.steps[-1]["step"]) % settings.window:
        return None
    size = settings.window // QUARTERS
    medians = [median(seen[n * size : (n + 1) * size]) for n in range(QUARTERS)]
    limit = medians[0] * (1.0 + settings.share)
    rises = all(b > a for a, b in zip(medians, medians[1:], strict=False))
    if not rises or medians[-1] <= limit:
        return None
    step = int(trace.steps[-1]["step"])
    text = f"host memory grew all through the last {settings.window} steps"
    return Finding(METRIC, medians[-1], limit, step, text)
