# SPDX-License-Identifier: Apache-2.0
"""Log-probs of one pair → AlphaPO loss."""

from jaxtyping import Array, Float

from alignax.losses.knobs import TERMS, Knob
from alignax.losses.ratios import logistic, per_token, power
from alignax.losses.spec import LossSpec
from alignax.records import PairLogps


def alphapo(
    pair: PairLogps, *, beta: float, reward_shape: float = 0.25, target_margin: float = 1.0
) -> Float[Array, ""]:
    """Compute the AlphaPO loss of one pair (Gupta et al. 2025, eq. 6 and 7).

    r = β (1 - p^-α) / α with p = exp(mean log-prob per token); loss = -log σ(r_w - r_l - γ). α
    (``reward_shape``) = 0 is SimPO; above 0 the reward is steep where p is small.
    """
    chosen, rejected = per_token(pair.policy_chosen, pair.policy_rejected, pair)
    margin = power(chosen, reward_shape) - power(rejected, reward_shape)
    return logistic(beta * margin - target_margin)


ALPHAPO = LossSpec(
    name="alphapo",
    function=alphapo,
    kind="pair",
    needs_reference=False,
    length_normalised=True,
    default_beta=2.0,
    knobs={
        "reward_shape": Knob(0.25, "α of the reward's shape; 0: logarithm", low=-2.0),
        "target_margin": Knob(1.0, "reward margin γ that chosen must win by"),
        **TERMS,
    },
    formula="-log σ(β · (1 - p_w^-α)/α - β · (1 - p_l^-α)/α - γ), p = exp(mean log π)",
    paper="Gupta et al. 2025, arXiv:2501.03884",
)
