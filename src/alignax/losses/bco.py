# SPDX-License-Identifier: Apache-2.0
"""Log-probs of a batch → the BCO losses, a classifier of answers around a shifted zero."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from alignax.losses.batch import mean_over, share_out
from alignax.losses.knobs import TERMS, Knob
from alignax.losses.kto import answers
from alignax.losses.spec import LossSpec
from alignax.records import PairLogps

SHIFT = {"reward_shift": Knob(True, "centre the rewards between the two sides of the batch")}


def bco(
    pair: PairLogps, valid_p: Bool[Array, " p"], *, beta: float, reward_shift: bool = True
) -> Float[Array, " p"]:
    """Compute BCO (Jung et al. 2024, eq. 9) on answers that each have a label of their own.

    r = β log π/π_ref; chosen: -log σ(r - δ), rejected: -log σ(δ - r), averaged over answers;
    δ = ½ (mean r of chosen + mean r of rejected) over the batch, without a gradient. The paper
    smooths δ over batches. An answer with 0 tokens is absent.
    """
    losses_ps, used_ps = sides(pair, valid_p, beta, reward_shift)
    return share_out(losses_ps, used_ps, valid_p)


def bco_pair(
    pair: PairLogps, valid_p: Bool[Array, " p"], *, beta: float, reward_shift: bool = True
) -> Float[Array, " p"]:
    """Compute BCO on pairs: the sum over both sides, -log σ(r_w - δ) - log σ(δ - r_l).

    TRL's ``bco_pair`` leaves the paper's δ out, as ``reward_shift`` false does.
    """
    losses_ps, used_ps = sides(pair, valid_p, beta, reward_shift)
    return jnp.where(used_ps, losses_ps, 0.0).sum(-1)


def sides(
    pair: PairLogps, valid_p: Bool[Array, " p"], beta: float, reward_shift: bool
) -> tuple[Float[Array, "p 2"], Bool[Array, "p 2"]]:
    """Compute the loss of every answer, and which answers there are."""
    ratio_ps, used_ps = answers(pair, valid_p)
    reward_ps = beta * ratio_ps
    shift = jnp.zeros(())
    if reward_shift:
        means = [mean_over(reward_ps[:, side], used_ps[:, side]) for side in (0, 1)]
        shift = jax.lax.stop_gradient(sum(means) / 2.0)
    signed_ps = jnp.stack([reward_ps[:, 0] - shift, shift - reward_ps[:, 1]], -1)
    return -jax.nn.log_sigmoid(signed_ps), used_ps


BCO = LossSpec(
    name="bco",
    function=bco,
    kind="pair",
    needs_reference=True,
    length_normalised=False,
    default_beta=0.1,
    knobs={**SHIFT, "kl_weight": TERMS["kl_weight"]},
    formula="-log σ(±(r - δ)), + for chosen, r = β log π/π_ref, δ = middle of the sides' means",
    paper="Jung et al. 2024, arXiv:2404.04656",
    paired=False,
    batch_level=True,
)

BCO_PAIR = LossSpec(
    name="bco_pair",
    function=bco_pair,
    kind="pair",
    needs_reference=True,
    length_normalised=False,
    default_beta=0.1,
    knobs={**SHIFT, **TERMS},
    formula="-log σ(r_w - δ) - log σ(δ - r_l), r = β log π/π_ref, δ = middle of the sides' means",
    paper="Jung et al. 2024, arXiv:2404.04656",
    paired=False,
    batch_level=True,
)
