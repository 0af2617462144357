# SPDX-License-Identifier: Apache-2.0
"""Log-probs of one pair → the two APO losses."""

import jax
from jaxtyping import Array, Float

from alignax.losses.knobs import TERMS
from alignax.losses.ratios import log_ratios
from alignax.losses.spec import LossSpec
from alignax.records import PairLogps


def apo_zero(pair: PairLogps, *, beta: float) -> Float[Array, ""]:
    """Compute APO-zero (D'Oosterlinck et al. 2024, eq. 7): 1 - σ(r_w) + σ(r_l), r = β log π/π_ref.

    For answers that are better than what the model gives: raises chosen, lowers rejected.
    """
    chosen, rejected = log_ratios(pair)
    return jax.nn.sigmoid(-beta * chosen) + jax.nn.sigmoid(beta * rejected)


def apo_down(pair: PairLogps, *, beta: float) -> Float[Array, ""]:
    """Compute APO-down (D'Oosterlinck et al. 2024, eq. 8): σ(r_w) + 1 - σ(r_w - r_l).

    For answers that are worse than what the model gives: lowers both, rejected more.
    """
    chosen, rejected = log_ratios(pair)
    return jax.nn.sigmoid(beta * chosen) + jax.nn.sigmoid(-beta * (chosen - rejected))


APO_ZERO = LossSpec(
    name="apo_zero",
    function=apo_zero,
    kind="pair",
    needs_reference=True,
    length_normalised=False,
    default_beta=0.1,
    knobs=TERMS,
    formula="1 - σ(r_w) + σ(r_l), r = β log π/π_ref",
    paper="D'Oosterlinck et al. 2024, arXiv:2408.06266",
    paired=False,
)

APO_DOWN = LossSpec(
    name="apo_down",
    function=apo_down,
    kind="pair",
    needs_reference=True,
    length_normalised=False,
    default_beta=0.1,
    knobs=TERMS,
    formula="σ(r_w) + 1 - σ(r_w - r_l), r = β log π/π_ref",
    paper="D'Oosterlinck et al. 2024, arXiv:2408.06266",
)
