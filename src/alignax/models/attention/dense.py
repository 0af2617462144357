# SPDX-License-Identifier: Apache-2.0
"""Attention by the full score matrix: the oracle of all other ways, and the way of decoding."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from alignax.models.attention.mask import MASKED, PLAIN, AttentionSpec, Layout, allowed, row_marks


def dense_attention(
    q_btnh: Float[Array, "b t n h"],
    k_btkh: Float[Array, "b t k h"],
    v_btkh: Float[Array, "b t k h"],
    layout: Layout,
    window: Any = None,
    spec: AttentionSpec = PLAIN,
) -> Float[Array, "b t n h"]:
    """Attend by the full t × t score matrix; padding rows give zeros."""
    marks = row_marks(layout)
    keys_bkht, values_bkth = k_btkh.transpose(0, 2, 3, 1), v_btkh.transpose(0, 2, 1, 3)
    return masked_attention(q_btnh, keys_bkht, values_bkth, allowed(marks, marks, window), spec)


def masked_attention(
    q_btnh: Float[Array, "b t n h"],
    keys_bkhc: Float[Array, "b k h c"],
    values_bkch: Float[Array, "b k c h"],
    mask_btc: Bool[Array, "b t c"],
    spec: AttentionSpec = PLAIN,
) -> Float[Array, "b t n h"]:
    """Attend under an explicit mask, heads grouped by key head, softmax in float32.

    Keys and values lie as the two products read them.
    """
    b, t, n, h = q_btnh.shape
    heads = keys_bkhc.shape[1]
    grouped = q_btnh.reshape(b, t, heads, n // heads, h)
    # Converted first: XLA has no product of bfloat16 into float32 for all of these forms on CPUs.
    scores = jnp.einsum(
        "btkgh,bkhc->bkgtc", grouped.astype(jnp.float32), keys_bkhc.astype(jnp.float32)
    )
    scores = spec.capped(scores * spec.scale_of(h))
    mask = mask_btc[:, None, None]
    weights = jax.nn.softmax(jnp.where(mask, scores, MASKED), axis=-1)
    weights = jnp.where(mask, weights, 0.0).astype(values_bkch.dtype)
    return jnp.einsum("bkgtc,bkch->btkgh", weights, values_bkch).reshape(b, t, n, h)
