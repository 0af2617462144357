# SPDX-License-Identifier: Apache-2.0
"""Guards: pure functions of a run's recent metrics that say what is wrong with it.

A guard sees a ``Trace`` and returns a ``Finding`` or None; what follows from a finding is a
setting of the run. To add one: a file here, an entry in ``GUARDS``, a section in ``sections.py``,
and a good and a bad trace in ``tests/guards``.
"""

from collections.abc import Callable
from typing import Any

from alignax.guards import displacement, gradient, kl, loss, overfit
from alignax.guards.base import Finding, Trace

GUARDS: dict[str, Callable[[Trace, Any], Finding | None]] = {
    "kl": kl.check,
    "loss": loss.check,
    "gradient": gradient.check,
    "displacement": displacement.check,
    "overfit": overfit.check,
}
"""Name, as in the recipe's section ``guards`` → check of a trace under its settings."""
