# SPDX-License-Identifier: Apache-2.0
"""Log-probs of a batch → the AOT losses: order the batch, then compare rank by rank."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from alignax.losses.knobs import SMOOTHING, TERMS
from alignax.losses.ratios import logistic
from alignax.losses.spec import LossSpec
from alignax.records import PairLogps


def aot(
    pair: PairLogps, valid_p: Bool[Array, " p"], *, beta: float, label_smoothing: float = 0.0
) -> Float[Array, " p"]:
    """Compute paired AOT (Melnyk et al. 2024, eq. 9): policy margins against reference margins.

    u = log π(y_w) - log π(y_l), v the same under π_ref, both sorted over the batch;
    loss = mean over ranks of -log σ(β (u_(i) - v_(i))).
    """
    policy = ordered(pair.policy_chosen - pair.policy_rejected, valid_p)
    reference = ordered(pair.reference_chosen - pair.reference_rejected, valid_p)
    return by_rank(beta * (policy - reference), valid_p, label_smoothing)


def aot_unpaired(
    pair: PairLogps, valid_p: Bool[Array, " p"], *, beta: float, label_smoothing: float = 0.0
) -> Float[Array, " p"]:
    """Compute unpaired AOT (Melnyk et al. 2024, eq. 10): chosen against rejected log-ratios.

    r = log π/π_ref of chosen and of rejected answers, each sorted over the batch;
    loss = mean over ranks of -log σ(β (r_w(i) - r_l(i))).
    """
    chosen = ordered(pair.policy_chosen - pair.reference_chosen, valid_p)
    rejected = ordered(pair.policy_rejected - pair.reference_rejected, valid_p)
    return by_rank(beta * (chosen - rejected), valid_p, label_smoothing)


def ordered(values_p: Float[Array, " p"], valid_p: Bool[Array, " p"]) -> Float[Array, " p"]:
    """Sort the valid values upwards; the rest comes last, as zeros."""
    sorted_p = jnp.sort(jnp.where(valid_p, values_p, jnp.inf))
    return jnp.where(jnp.arange(valid_p.size) < valid_p.sum(), sorted_p, 0.0)


def by_rank(
    logit_p: Float[Array, " p"], valid_p: Bool[Array, " p"], label_smoothing: float
) -> Float[Array, " p"]:
    """Compute the mean over ranks, and give it to every valid slot."""
    used_p = jnp.arange(valid_p.size) < valid_p.sum()
    losses_p = jnp.where(used_p, logistic(logit_p, label_smoothing), 0.0)
    return jnp.where(valid_p, losses_p.sum() / jnp.maximum(valid_p.sum(), 1), 0.0)


AOT = LossSpec(
    name="aot",
    function=aot,
    kind="pair",
    needs_reference=True,
    length_normalised=False,
    default_beta=0.1,
    knobs={**SMOOTHING, **TERMS},
    formula="-log σ(β (i-th margin of log π - i-th margin of log π_ref)) over sorted margins",
    paper="Melnyk et al. 2024, arXiv:2406.05882",
    batch_level=True,
)

AOT_UNPAIRED = LossSpec(
    name="aot_unpaired",
    function=aot_unpaired,
    kind="pair",
    needs_reference=True,
    length_normalised=False,
    default_beta=0.1,
    knobs={**SMOOTHING, **TERMS},
    formula="-log σ(β (i-th log π/π_ref of chosen - i-th of rejected)), both sides sorted",
    paper="Melnyk et al. 2024, arXiv:2406.05882",
    paired=False,
    batch_level=True,
)
