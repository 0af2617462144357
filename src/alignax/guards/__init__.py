# SPDX-License-Identifier: Apache-2.0
"""Guards: pure functions of a run's recent metrics that say what is wrong with it.

A guard sees a ``Trace`` and returns a ``Finding`` or None; what follows from a finding is a
setting of the run. To add one: a file here, an entry in ``GUARDS``, a section in ``sections.py``,
and a good and a bad trace in ``tests/guards``.
"""

from collections.abc import Callable
from typing import Any

from alignax.guards import (
    displacement,
    finite,
    gradient,
    kl,
    kl_budget,
    loss,
    memory,
    overfit,
    throughput,
)
from alignax.guards.base import Finding, Trace

GUARDS: dict[str, Callable[[Trace, Any], Finding | None]] = {
    "finite": finite.check,
    "kl": kl.check,
    "kl_budget": kl_budget.check,
    "loss": loss.check,
    "gradient": gradient.check,
    "displacement": displacement.check,
    "overfit": overfit.check,
    "throughput": throughput.check,
    "memory": memory.check,
}
"""Name, as in the recipe's section ``guards`` → check of a trace under its settings."""
