# SPDX-License-Identifier: Apache-2.0
"""Log-probs of one pair → IPO loss."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from alignax.losses.knobs import RATIO, TERMS, Knob
from alignax.losses.ratios import log_ratios, per_token
from alignax.losses.spec import LossSpec
from alignax.records import PairLogps


def ipo(
    pair: PairLogps, *, beta: float, length_normalised: bool = True, **ratio: Any
) -> Float[Array, ""]:
    """Compute the IPO loss of one pair (Azar et al. 2023, eq. 17).

    loss = (h - 1 / (2β))², h = Δ_chosen - Δ_rejected with Δ = log π/π_ref. The paper's τ is β. Δ
    is the mean over the answer's tokens, as in the paper's experiments; ``length_normalised``
    false takes sums, which lets long answers dominate the square.
    """
    chosen, rejected = log_ratios(pair, **ratio)
    if length_normalised:
        chosen, rejected = per_token(chosen, rejected, pair)
    return jnp.square(chosen - rejected - 1.0 / (2.0 * beta))


IPO = LossSpec(
    name="ipo",
    function=ipo,
    kind="pair",
    needs_reference=True,
    length_normalised=True,
    default_beta=0.1,
    knobs={"length_normalised": Knob(True, "means over tokens; false: sums"), **RATIO, **TERMS},
    formula="(log π/π_ref of chosen - the same of rejected - 1/(2β))²",
    paper="Azar et al. 2023, arXiv:2310.12036",
)
