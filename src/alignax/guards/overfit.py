# SPDX-License-Identifier: Apache-2.0
"""Reward over-optimisation: held-out loss rises while training goes on as if all were well."""

from typing import Any

from alignax.guards.base import Finding, Trace


def check(trace: Trace, settings: Any) -> Finding | None:
    """Find a held-out loss that was above its best, by more than a share, in the last few looks."""
    losses = [e["loss"] for e in trace.evals]
    if len(losses) <= settings.patience:
        return None
    best = min(losses)
    limit = best + settings.share * abs(best)
    last = losses[-settings.patience :]
    if min(last) <= limit:
        return None
    step = int(trace.evals[-1]["step"])
    text = f"the held-out loss was above its best in the last {len(last)} evaluations"
    return Finding("loss", losses[-1], limit, step, text)
