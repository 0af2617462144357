# SPDX-License-Identifier: Apache-2.0
"""Held-out figures that are not numbers; steps that are not are caught before they are applied."""

import math
from typing import Any

from alignax.guards.base import Finding, Trace

METRICS = ("loss", "kl/token", "margin")


def check(trace: Trace, settings: Any) -> Finding | None:  # noqa: ARG001
    """Find a NaN or an infinity in the last evaluation."""
    last = trace.evals[-1] if trace.evals else {}
    for name in METRICS:
        if name in last and not math.isfinite(last[name]):
            text = "a held-out figure is not a number"
            return Finding(name, last[name], math.inf, int(last["step"]), text)
    return None
