# SPDX-License-Identifier: Apache-2.0
"""KL(policy ‖ reference) a token on held-out answers: out of its band, or shooting up."""

from typing import Any

from alignax.guards.base import Finding, Trace

METRIC = "kl/token"


def check(trace: Trace, settings: Any) -> Finding | None:
    """Find a KL above the band's top, or one that rose by a factor since the last evaluation.

    A rise counts only in the upper half of the band: from 0.001 to 0.01 is how every run begins.
    """
    measured = [e for e in trace.evals if METRIC in e]
    if not measured:
        return None
    value, step = measured[-1][METRIC], int(measured[-1]["step"])
    if value > settings.top:
        return Finding(METRIC, value, settings.top, step, "the policy is far from the reference")
    before = measured[-2][METRIC] if len(measured) > 1 else 0.0
    limit = max(settings.rise * before, settings.top / 2)
    if before > 0 and value > limit:
        return Finding(METRIC, value, limit, step, "the policy moves away quickly")
    return None


def hardly_moved(trace: Trace, bottom: float) -> bool:
    """Tell whether a finished run stayed below the band."""
    return bool(trace.evals) and METRIC in trace.evals[-1] and trace.evals[-1][METRIC] < bottom
