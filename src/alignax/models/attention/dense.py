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
    return masked_attention(q_btnh, k_btkh, v_btkh, allowed(marks, marks, window), spec)


def masked_attention(
    q_btnh: Float[Array, "b t n h"],
    k_bckh: Float[Array, "b c k h"],
    v_bckh: Float[Array, "b c k h"],
    mask_btc: Bool[Array, "b t c"],
    spec: AttentionSpec = PLAIN,
) -> Float[Array, "b t n h"]:
    """Attend under an explicit mask, heads grouped by key head, softmax in float32."""
    b, t, n, h = q_btnh.shape
    heads = k_bckh.shape[2]
    grouped = q_btnh.reshape(b, t, heads, n // heads, h)
    scores = jnp.einsum("btkgh,bckh->bkgtc", grouped, k_bckh, preferred_element_type=jnp.float32)
    scores = spec.capped(scores * spec.scale_of(h))
    mask = mask_btc[:, None, None]
    weights = jax.nn.softmax(jnp.where(mask, scores, MASKED), axis=-1)
    weights = jnp.where(mask, weights, 0.0).astype(v_bckh.dtype)
    return jnp.einsum("bkgtc,bckh->btkgh", weights, v_bckh).reshape(b, t, n, h)
