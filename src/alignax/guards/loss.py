# SPDX-License-Identifier: Apache-2.0
"""A training loss that runs away."""

from statistics import median
from typing import Any

from alignax.guards.base import Finding, Trace


def check(trace: Trace, settings: Any) -> Finding | None:
    """Find a median loss of the window above a multiple of the loss before training.

    The median, because a single hard batch is no reason for anything.
    """
    if len(trace.steps) < settings.window or not trace.evals:
        return None
    recent = [step["loss"] for step in trace.steps[-settings.window :]]
    start = trace.evals[0]["loss"]
    value, limit = median(recent), settings.factor * abs(start)
    if start == 0 or value <= limit:
        return None
    step = int(trace.steps[-1]["step"])
    return Finding("loss", value, limit, step, f"the loss of the last {len(recent)} steps exploded")
