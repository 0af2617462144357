# SPDX-License-Identifier: Apache-2.0
"""Log-probs of a batch → the KTO losses, whose zero point is an estimate over the batch."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from alignax.losses.batch import mean_over, share_out
from alignax.losses.knobs import TERMS, Knob
from alignax.losses.spec import LossSpec
from alignax.records import PairLogps

WEIGHTS = {
    "desirable_weight": Knob(1.0, "λ_D, weight of chosen answers"),
    "undesirable_weight": Knob(1.0, "λ_U, weight of rejected answers"),
}


def kto(
    pair: PairLogps,
    valid_p: Bool[Array, " p"],
    *,
    beta: float,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> Float[Array, " p"]:
    """Compute KTO (Ethayarajh et al. 2024, eq. 8) on answers that each have a label of their own.

    r = log π/π_ref; chosen: λ_D (1 - σ(β (r - z))), rejected: λ_U (1 - σ(β (z - r))), averaged
    over answers. z = max(0, mean of r over the batch's answers), without a gradient, estimates
    KL(π ‖ π_ref). The paper takes that mean over mismatched prompts and answers, which costs a
    pass over answers that nobody gave; the batch's own answers cost nothing.

    An answer with 0 tokens is absent, so a batch may hold single labelled answers.
    """
    ratio_ps, used_ps = answers(pair, valid_p)
    zero = zero_point(ratio_ps, used_ps)
    losses_ps = around(ratio_ps, (zero, zero), beta, (desirable_weight, undesirable_weight))
    return share_out(losses_ps, used_ps, valid_p)


def kto_pair(
    pair: PairLogps,
    valid_p: Bool[Array, " p"],
    *,
    beta: float,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> Float[Array, " p"]:
    """Compute KTO on pairs: each side's zero point is the other side's mean.

    r = log π/π_ref; chosen: λ_D (1 - σ(β (r_w - z_l))), rejected: λ_U (1 - σ(β (z_w - r_l))) with
    z = max(0, mean of r over that side of the batch), without a gradient; averaged over answers
    (Ethayarajh et al. 2024, the form for paired data of their code).
    """
    ratio_ps, used_ps = answers(pair, valid_p)
    chosen, rejected = (zero_point(ratio_ps[:, side], used_ps[:, side]) for side in (0, 1))
    losses_ps = around(ratio_ps, (rejected, chosen), beta, (desirable_weight, undesirable_weight))
    return share_out(losses_ps, used_ps, valid_p)


def zero_point(ratios: Float[Array, "..."], used: Bool[Array, "..."]) -> Float[Array, ""]:
    """Estimate the KL that counts as zero: max(0, mean log-ratio), without a gradient."""
    return jax.lax.stop_gradient(jax.nn.relu(mean_over(ratios, used)))


def around(
    ratio_ps: Float[Array, "p 2"],
    zeros: tuple[Any, Any],
    beta: float,
    weights: tuple[float, float],
) -> Float[Array, "p 2"]:
    """Compute the loss of every answer around the zero point of its side."""
    (chosen_zero, rejected_zero), (desirable, undesirable) = zeros, weights
    losses_p = [
        desirable * jax.nn.sigmoid(beta * (chosen_zero - ratio_ps[:, 0])),
        undesirable * jax.nn.sigmoid(beta * (ratio_ps[:, 1] - rejected_zero)),
    ]
    return jnp.stack(losses_p, -1)


def answers(
    pair: PairLogps, valid_p: Bool[Array, " p"]
) -> tuple[Float[Array, "p 2"], Bool[Array, "p 2"]]:
    """Lay both sides beside each other: log-ratios, and which answers there are."""
    ratio_ps = jnp.stack(
        [
            pair.policy_chosen - pair.reference_chosen,
            pair.policy_rejected - pair.reference_rejected,
        ],
        -1,
    )
    tokens_ps = jnp.stack([pair.chosen_tokens, pair.rejected_tokens], -1)
    return ratio_ps, valid_p[:, None] & (tokens_ps > 0)


KTO = LossSpec(
    name="kto",
    function=kto,
    kind="pair",
    needs_reference=True,
    length_normalised=False,
    default_beta=0.1,
    knobs={**WEIGHTS, "kl_weight": TERMS["kl_weight"]},
    formula="1 - σ(±β (log π/π_ref - z)), + for chosen, z = max(0, batch mean of log π/π_ref)",
    paper="Ethayarajh et al. 2024, arXiv:2402.01306",
    paired=False,
    batch_level=True,
)

KTO_PAIR = LossSpec(
    name="kto_pair",
    function=kto_pair,
    kind="pair",
    needs_reference=True,
    length_normalised=False,
    default_beta=0.1,
    knobs={**WEIGHTS, **TERMS},
    formula="1 - σ(±β (log π/π_ref - z)), + for chosen, z = max(0, mean of the other side)",
    paper="Ethayarajh et al. 2024, arXiv:2402.01306",
    paired=False,
    batch_level=True,
)
