# SPDX-License-Identifier: Apache-2.0
"""Log-probs of one pair → NCA loss."""

import jax
from jaxtyping import Array, Float

from alignax.losses.knobs import TERMS
from alignax.losses.ratios import log_ratios
from alignax.losses.spec import LossSpec
from alignax.records import PairLogps


def nca(pair: PairLogps, *, beta: float) -> Float[Array, ""]:
    """Compute NCA for two answers with a hard label (Chen et al. 2024, eq. 13).

    r = β log π/π_ref; loss = -log σ(r_w) - ½ log σ(-r_w) - ½ log σ(-r_l). It fixes the chosen
    answer's reward itself, not only the margin, so that its probability does not sink.
    """
    chosen, rejected = (beta * ratio for ratio in log_ratios(pair))
    noise = jax.nn.log_sigmoid(-chosen) + jax.nn.log_sigmoid(-rejected)
    return -jax.nn.log_sigmoid(chosen) - 0.5 * noise


NCA = LossSpec(
    name="nca",
    function=nca,
    kind="pair",
    needs_reference=True,
    length_normalised=False,
    default_beta=0.1,
    knobs=TERMS,
    formula="-log σ(r_w) - ½ log σ(-r_w) - ½ log σ(-r_l), r = β log π/π_ref",
    paper="Chen et al. 2024, arXiv:2402.05369",
    paired=False,
)
