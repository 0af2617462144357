# SPDX-License-Identifier: Apache-2.0
"""What a run may spend in all: KL(policy ‖ reference) of a whole held-out answer, in nats.

The band of ``kl`` is a mean a token, in which long answers hide a large distance.
"""

from typing import Any

from alignax.guards.base import Finding, Trace

METRIC = "kl/answer"


def check(trace: Trace, settings: Any) -> Finding | None:
    """Find that the budget is spent."""
    measured = [e for e in trace.evals if METRIC in e]
    if settings.nats is None or not measured or measured[-1][METRIC] <= settings.nats:
        return None
    last = measured[-1]
    text = "the run has spent its KL budget"
    return Finding(METRIC, last[METRIC], settings.nats, int(last["step"]), text)
