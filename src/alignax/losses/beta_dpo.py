# SPDX-License-Identifier: Apache-2.0
"""Log-probs of a batch → DPO loss whose β follows the batch, over the pairs that look usual."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from alignax.losses.batch import mean_over
from alignax.losses.knobs import TERMS, Knob
from alignax.losses.ratios import log_ratios, logistic
from alignax.losses.spec import LossSpec
from alignax.records import PairLogps

MOMENTUM = 0.9
LOWEST_BETA = 1e-3


def beta_dpo(
    pair: PairLogps,
    valid_p: Bool[Array, " p"],
    *,
    beta: float,
    batch_beta: float = 0.6,
    keep_share: float = 0.8,
) -> Float[Array, " p"]:
    """Compute β-DPO (Wu et al. 2024, eq. 6 to 9).

    M_i = β₀ m_i are the pairs' reward margins, M₀ and σ their running mean and spread (memory
    0.9 a step; the batch's own at the first step and in evaluations). The ``keep_share`` of pairs
    whose M_i lies nearest to M₀ is kept, where the paper draws them with a Gaussian weight around
    M₀: the same pairs are the likely ones, and a run repeats itself. Over those,
    β = β₀ (1 + α (mean M - M₀)), at least 0.001, and loss = mean of -log σ(β m).
    """
    chosen, rejected = log_ratios(pair)
    ratio_p = chosen - rejected
    margin_p = jax.lax.stop_gradient(beta * ratio_p)
    known_p = valid_p & (pair.margin_spread > 0)
    usual = mean_over(jnp.where(known_p, pair.margin_mean, margin_p), valid_p)
    distance_p = jnp.where(valid_p, jnp.abs(margin_p - usual), jnp.inf)
    wanted = jnp.ceil(keep_share * valid_p.sum() - 1e-4)
    rank_p = jnp.argsort(jnp.argsort(distance_p, stable=True))
    kept_p = valid_p & (rank_p < jnp.maximum(wanted, 1))
    moved = batch_beta * (mean_over(margin_p, kept_p) - usual)
    used_beta = jnp.maximum(beta * (1.0 + moved), LOWEST_BETA)
    scale = valid_p.sum() / jnp.maximum(kept_p.sum(), 1)
    return scale * jnp.where(kept_p, logistic(used_beta * ratio_p), 0.0)


def remember(
    memory: Mapping[str, Any], pair: PairLogps, valid_p: Bool[Array, " p"], *, beta: float
) -> dict[str, Any]:
    """Move the running mean and spread of the margins by one batch; the first batch sets them."""
    chosen, rejected = log_ratios(pair)
    margin_p = beta * (chosen - rejected)
    mean = mean_over(margin_p, valid_p)
    spread = jnp.sqrt(mean_over(jnp.square(margin_p - mean), valid_p) + 1e-12)
    keep = jnp.where(memory["margin_spread"] > 0, MOMENTUM, 0.0)
    new = {"margin_mean": mean, "margin_spread": spread}
    return {name: keep * memory[name] + (1.0 - keep) * new[name] for name in new}


BETA_DPO = LossSpec(
    name="beta_dpo",
    function=beta_dpo,
    kind="pair",
    needs_reference=True,
    length_normalised=False,
    default_beta=0.1,
    knobs={
        "batch_beta": Knob(0.6, "how much β follows the batch's mean margin; 0: not at all"),
        "keep_share": Knob(0.8, "share of the batch's pairs that train", low=1e-3, high=1 + 1e-9),
        **TERMS,
    },
    formula="-log σ(β m), β = β₀ (1 + α (batch mean of β₀ m - its running mean))",
    paper="Wu et al. 2024, arXiv:2407.08639",
    batch_level=True,
    remember=remember,
)
