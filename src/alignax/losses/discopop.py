# SPDX-License-Identifier: Apache-2.0
"""Log-probs of one pair → DiscoPOP loss."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from alignax.losses.knobs import RATIO, TERMS, Knob
from alignax.losses.ratios import log_ratios
from alignax.losses.spec import LossSpec
from alignax.records import PairLogps


def discopop(
    pair: PairLogps, *, beta: float, blend_temperature: float = 0.05, **ratio: Any
) -> Float[Array, ""]:
    """Compute the log-ratio modulated loss (Lu et al. 2024, "DiscoPOP", eq. 5).

    ρ = β m, s = σ(ρ / τ); loss = -(1 - s) log σ(ρ) + s exp(-ρ). s · exp(-ρ) is computed as one
    exponential, so that very negative margins give 0 and not 0 · ∞.
    """
    chosen, rejected = log_ratios(pair, **ratio)
    logit = beta * (chosen - rejected)
    blend = logit / blend_temperature
    logistic = -jax.nn.sigmoid(-blend) * jax.nn.log_sigmoid(logit)
    return logistic + jnp.exp(jax.nn.log_sigmoid(blend) - logit)


DISCOPOP = LossSpec(
    name="discopop",
    function=discopop,
    kind="pair",
    needs_reference=True,
    length_normalised=False,
    default_beta=0.1,
    knobs={
        "blend_temperature": Knob(
            0.05, "width τ of the change from logistic to exponential", low=1e-6, high=1.0
        ),
        **RATIO,
        **TERMS,
    },
    formula="-(1 - s) log σ(ρ) + s exp(-ρ), s = σ(ρ/τ), ρ = β · margin of log π/π_ref",
    paper="Lu et al. 2024, arXiv:2406.08414",
)
