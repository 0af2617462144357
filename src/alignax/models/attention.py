# SPDX-License-Identifier: Apache-2.0
"""Queries, keys and values of packed rows → attended values, under the shared-prefix mask.

Query token q may attend to key token k iff both have the same segment, k ≤ q in the row, and the
key's branch is 0 (prompt) or the query's own. ``dense_attention`` is the oracle. In
``tiled_attention`` a row is cut into tiles of ``TILE`` tokens and only the tile pairs that hold an
allowed (q, k) are computed (the packer lists them), so the cost grows with what can attend and not
with the square of the row.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from alignax.shapes import TILE

MASKED = -1e30
"""Finite, so that a fully masked row gives zeros and not NaN."""


def allowed(
    query_index: Int[Array, "... q"],
    key_index: Int[Array, "... k"],
    query_segment: Int[Array, "... q"],
    key_segment: Int[Array, "... k"],
    query_branch: Int[Array, "... q"],
    key_branch: Int[Array, "... k"],
) -> Bool[Array, "..."]:
    """Evaluate the shared-prefix rule for all (query, key) of the last axes."""
    q, k = (..., slice(None), None), (..., None, slice(None))
    same = (query_segment[q] == key_segment[k]) & (query_segment[q] > 0)
    before = key_index[k] <= query_index[q]
    branch = (key_branch[k] == 0) | (key_branch[k] == query_branch[q])
    return same & before & branch


def dense_attention(
    q_btnh: Float[Array, "b t n h"],
    k_btkh: Float[Array, "b t k h"],
    v_btkh: Float[Array, "b t k h"],
    segments_bt: Int[Array, "b t"],
    branches_bt: Int[Array, "b t"],
) -> Float[Array, "b t n h"]:
    """Attend by the full t × t score matrix; padding rows give zeros."""
    index = jnp.arange(q_btnh.shape[1])[None]
    mask_btt = allowed(index, index, segments_bt, segments_bt, branches_bt, branches_bt)
    return masked_attention(q_btnh, k_btkh, v_btkh, mask_btt)


def masked_attention(
    q_btnh: Float[Array, "b t n h"],
    k_bckh: Float[Array, "b c k h"],
    v_bckh: Float[Array, "b c k h"],
    mask_btc: Bool[Array, "b t c"],
) -> Float[Array, "b t n h"]:
    """Attend under an explicit mask, heads grouped by key head, softmax in float32."""
    b, t, n, h = q_btnh.shape
    heads = k_bckh.shape[2]
    grouped = q_btnh.reshape(b, t, heads, n // heads, h)
    scores = jnp.einsum(
        "btkgh,bckh->bkgtc", grouped, k_bckh, preferred_element_type=jnp.float32
    ) * (h**-0.5)
    mask = mask_btc[:, None, None]
    weights = jax.nn.softmax(jnp.where(mask, scores, MASKED), axis=-1)
    weights = jnp.where(mask, weights, 0.0).astype(v_bckh.dtype)
    return jnp.einsum("bkgtc,bckh->btkgh", weights, v_bckh).reshape(b, t, n, h)


def tiled_attention(
    q_btnh: Float[Array, "b t n h"],
    k_btkh: Float[Array, "b t k h"],
    v_btkh: Float[Array, "b t k h"],
    segments_bt: Int[Array, "b t"],
    branches_bt: Int[Array, "b t"],
    tiles_bm2: Int[Array, "b m 2"],
) -> Float[Array, "b t n h"]:
    """Attend within the listed tile pairs only; equal to ``dense_attention``."""
    return jax.vmap(_tiled_row)(q_btnh, k_btkh, v_btkh, segments_bt, branches_bt, tiles_bm2)


def _tiled_row(q_tnh, k_tkh, v_tkh, segments_t, branches_t, tiles_m2):
    t, n, h = q_tnh.shape
    heads = k_tkh.shape[1]
    count = t // TILE
    groups = n // heads
    # Query heads that share a key head lie one after another in the rows of one matrix product.
    q = q_tnh.reshape(count, TILE, heads, groups, h).transpose(0, 2, 3, 1, 4)
    q = q.reshape(count, heads, groups * TILE, h)
    k = k_tkh.reshape(count, TILE, heads, h).transpose(0, 2, 1, 3)
    v = v_tkh.reshape(count, TILE, heads, h).transpose(0, 2, 1, 3)
    # Unused entries are sent to a tile past the end, which is cut off.
    query_m = jnp.where(tiles_m2[:, 0] < 0, count, tiles_m2[:, 0])
    key_m = jnp.maximum(tiles_m2[:, 1], 0)
    gather_m = jnp.minimum(query_m, count - 1)
    mask = _tile_mask(segments_t, branches_t, gather_m, key_m) & (query_m < count)[:, None, None]
    mask = jnp.tile(mask, (1, groups, 1))[:, None]
    scores = jnp.einsum(
        "mkqh,mkch->mkqc", q[gather_m], k[key_m], preferred_element_type=jnp.float32
    ) * (h**-0.5)
    scores = jnp.where(mask, scores, MASKED)

    def merge(x):
        return jax.ops.segment_sum(x, query_m, count + 1, indices_are_sorted=True)

    peak = jax.ops.segment_max(
        jax.lax.stop_gradient(scores.max(-1)), query_m, count + 1, indices_are_sorted=True
    )
    weights = jnp.where(mask, jnp.exp(scores - peak[query_m][..., None]), 0.0)
    total = merge(weights.sum(-1))[:count]
    values = jnp.einsum("mkqc,mkch->mkqh", weights.astype(v.dtype), v[key_m])
    out = merge(values.astype(jnp.float32))[:count] / jnp.maximum(total, 1e-30)[..., None]
    out = out.reshape(count, heads, groups, TILE, h).transpose(0, 3, 1, 2, 4)
    return out.reshape(t, n, h).astype(q_tnh.dtype)


def _tile_mask(segments_t, branches_t, query_m, key_m):
    """Shared-prefix rule within each tile pair: [m, TILE, TILE]."""
    segments, branches = segments_t.reshape(-1, TILE), branches_t.reshape(-1, TILE)
    index = jnp.arange(segments_t.shape[0]).reshape(-1, TILE)
    return allowed(
        index[query_m], index[key_m], segments[query_m], segments[key_m],
        branches[query_m], branches[key_m],
    )  # fmt: skip
