# SPDX-License-Identifier: Apache-2.0
"""Log-probs of one pair → SPPO loss."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from alignax.losses.knobs import TERMS
from alignax.losses.ratios import log_ratios
from alignax.losses.spec import LossSpec
from alignax.records import PairLogps


def sppo(pair: PairLogps, *, beta: float) -> Float[Array, ""]:
    """Compute SPPO with hard labels (Wu et al. 2024, eq. 4.7, P = 1 for chosen and 0 for rejected).

    loss = (Δ_chosen - 1/(2β))² + (Δ_rejected + 1/(2β))², Δ = log π/π_ref. The paper's step size η
    is 1/β; its 1e3 gives the default 0.001, which asks for 500 nats and makes the gradient
    nearly constant.
    """
    chosen, rejected = log_ratios(pair)
    goal = 0.5 / beta
    return jnp.square(chosen - goal) + jnp.square(rejected + goal)


SPPO = LossSpec(
    name="sppo",
    function=sppo,
    kind="pair",
    needs_reference=True,
    length_normalised=False,
    default_beta=0.001,
    knobs=TERMS,
    formula="(log π/π_ref of chosen - 1/(2β))² + (log π/π_ref of rejected + 1/(2β))²",
    paper="Wu et al. 2024, arXiv:2405.00675",
    paired=False,
)
