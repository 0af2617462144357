# SPDX-License-Identifier: Apache-2.0
"""Log-probs of one pair → EXO loss."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from alignax.losses.knobs import RATIO, TERMS, Knob
from alignax.losses.ratios import log_ratios
from alignax.losses.spec import LossSpec
from alignax.records import PairLogps


def exo(
    pair: PairLogps, *, beta: float, label_smoothing: float = 1e-3, **ratio: Any
) -> Float[Array, ""]:
    """Compute EXO for one pair (Ji et al. 2024, eq. 16): the reverse KL to the smoothed label.

    q = σ(β m); loss = q log(q / (1 - ε)) + (1 - q) log((1 - q) / ε). ε must be above 0: at 0 the
    label excludes the rejected answer and the divergence is infinite.
    """
    chosen, rejected = log_ratios(pair, **ratio)
    logit = beta * (chosen - rejected)
    right, wrong = jax.nn.log_sigmoid(logit), jax.nn.log_sigmoid(-logit)
    to_chosen = jnp.exp(right) * (right - jnp.log1p(-label_smoothing))
    return to_chosen + jnp.exp(wrong) * (wrong - jnp.log(label_smoothing))


EXO = LossSpec(
    name="exo",
    function=exo,
    kind="pair",
    needs_reference=True,
    length_normalised=False,
    default_beta=0.1,
    knobs={
        "label_smoothing": Knob(1e-3, "share of labels thought wrong", low=1e-9, high=0.5),
        **RATIO,
        **TERMS,
    },
    formula="KL((σ(β m), σ(-β m)) ‖ (1-ε, ε)), m = margin of log π/π_ref",
    paper="Ji et al. 2024, arXiv:2402.00856",
)
