# SPDX-License-Identifier: Apache-2.0
"""Rewards of one pair → Bradley-Terry loss, with which reward models are trained.

In ``PairLogps`` a reward model's scalars stand where a policy's log-probs stand.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from alignax.losses.knobs import Knob
from alignax.losses.ratios import logistic
from alignax.losses.scored import SCALE
from alignax.losses.spec import LossSpec
from alignax.records import PairLogps

CENTRING = {
    "centre_weight": Knob(0.0, "weight of (reward of chosen + reward of rejected)²"),
}


def bradley_terry(pair: PairLogps, *, centre_weight: float = 0.0) -> Float[Array, ""]:
    """Compute -log σ(r_w - r_l) (Bradley & Terry 1952; Ouyang et al. 2022, eq. 1).

    Only differences of rewards count, so their level is free; ``centre_weight`` draws the sum of
    both to 0 (Eisenstein et al. 2023, eq. 2).
    """
    chosen, rejected = pair.policy_chosen, pair.policy_rejected
    return logistic(chosen - rejected, 0.0) + centre_weight * jnp.square(chosen + rejected)


def bradley_terry_margin(
    pair: PairLogps, *, score_scale: float = 1.0, centre_weight: float = 0.0
) -> Float[Array, ""]:
    """Compute -log σ(r_w - r_l - α (s_w - s_l)) (Touvron et al. 2023, "Llama 2", eq. 2).

    s are the scores that came with the answers: the clearer the preference, the wider the gap.
    """
    chosen, rejected = pair.policy_chosen, pair.policy_rejected
    gap = score_scale * (pair.score_chosen - pair.score_rejected)
    return logistic(chosen - rejected - gap, 0.0) + centre_weight * jnp.square(chosen + rejected)


BRADLEY_TERRY = LossSpec(
    name="bradley_terry",
    function=bradley_terry,
    kind="reward",
    needs_reference=False,
    length_normalised=False,
    default_beta=None,
    knobs=CENTRING,
    formula="-log σ(r(chosen) - r(rejected))",
    paper="Bradley & Terry 1952; Ouyang et al. 2022, arXiv:2203.02155",
)

BRADLEY_TERRY_MARGIN = LossSpec(
    name="bradley_terry_margin",
    function=bradley_terry_margin,
    kind="reward",
    needs_reference=False,
    length_normalised=False,
    default_beta=None,
    knobs={**SCALE, **CENTRING},
    formula="-log σ(r(chosen) - r(rejected) - α (score of chosen - score of rejected))",
    paper="Touvron et al. 2023, arXiv:2307.09288",
    columns=("score",),
)
