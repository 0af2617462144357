# SPDX-License-Identifier: Apache-2.0
"""Distance from the reference → a mean per token, and what it says in words."""

from typing import Any, Literal

from alignax.records import Weighted

KL_BAND = (0.01, 0.1)
"""Nats per token of exact KL within which an aligned model is expected to end."""


def drift_metrics(kl: Any, tokens: Any) -> dict[str, Weighted]:
    """Average the exact KL(policy ‖ reference) over scored tokens, as ``kl/token``.

    Args:
        kl: Array of KL sums, one an answer; 0 in unused slots.
        tokens: Array of scored tokens, of the same shape.
    """
    return {"kl/token": Weighted(kl.sum(), tokens.sum())}


def kl_band(value: float) -> Literal["below", "inside", "above"]:
    """Place a ``kl/token`` relative to ``KL_BAND``."""
    low, high = KL_BAND
    if value < low:
        return "below"
    return "above" if value > high else "inside"


def displaced(margin: float, chosen_logratio: float) -> bool:
    """Tell whether the margin grew while the chosen answers became less likely.

    The loss sees only the difference, so both answers may sink; the model then moves its
    probability to texts that nobody preferred.
    """
    return margin > 0 > chosen_logratio
