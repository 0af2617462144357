# SPDX-License-Identifier: Apache-2.0
"""Sums over the used slots of a batch, for losses that read the whole batch."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def mean_over(values: Float[Array, "..."], used: Bool[Array, "..."]) -> Float[Array, ""]:
    """Average the used entries; 0 if there are none."""
    return jnp.where(used, values, 0.0).sum() / jnp.maximum(used.sum(), 1)


def share_out(
    losses_ps: Float[Array, "p 2"], used_ps: Bool[Array, "p 2"], valid_p: Bool[Array, " p"]
) -> Float[Array, " p"]:
    """Give every pair slot its share of the mean over answers.

    Summed over the valid pairs and divided by their number, the result is the mean of the used
    answers' losses, also where some pairs hold one answer only.
    """
    scale = valid_p.sum() / jnp.maximum(used_ps.sum(), 1)
    return scale * jnp.where(used_ps, losses_ps, 0.0).sum(-1)
