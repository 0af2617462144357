# SPDX-License-Identifier: Apache-2.0
"""Likelihood displacement: chosen answers become unlikely while the margin grows.

Razin et al. 2024; the margin then grows because rejected answers fall faster.
"""

from typing import Any

from alignax.guards.base import Finding, Trace

METRIC = "chosen_logratio"


def check(trace: Trace, settings: Any) -> Finding | None:
    """Find a chosen log-ratio a token below the floor, with a margin above zero."""
    measured = [e for e in trace.evals if METRIC in e and "margin" in e]
    if not measured:
        return None
    last = measured[-1]
    if last["margin"] <= 0 or last[METRIC] >= settings.floor:
        return None
    text = "chosen answers became unlikely although the margin grew"
    return Finding(METRIC, last[METRIC], settings.floor, int(last["step"]), text)
