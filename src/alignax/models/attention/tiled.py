# SPDX-License-Identifier: Apache-2.0
"""Attention within the live tiles of packed rows, in plain JAX.

A row is cut into tiles of ``TILE`` tokens and only the tile pairs that hold an allowed (q, k) are
computed (the packer lists them), so the cost grows with what can attend and not with the square of
the row. One pair is computed after another, with a running softmax (Milakov & Gimelshein 2018), so
that a pair's scores stay in the cache; the backward pass keeps the output and the log of the
softmax's denominator and computes the scores again (Dao et al. 2022).
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from alignax.models.attention.mask import (
    FLOOR,
    MASKED,
    PLAIN,
    SAVED,
    AttentionSpec,
    Layout,
    Marks,
    allowed,
    tiles_within,
)
from alignax.shapes import TILE


def tiled_attention(
    q_btnh: Float[Array, "b t n h"],
    k_btkh: Float[Array, "b t k h"],
    v_btkh: Float[Array, "b t k h"],
    layout: Layout,
    window: Any = None,
    spec: AttentionSpec = PLAIN,
) -> Float[Array, "b t n h"]:
    """Attend within the listed tile pairs only; equal to ``dense_attention``.

    t is a multiple of ``TILE`` (``whole_tiles`` sees to it). Pairs may come in any order;
    unused entries are negative and cost nothing at the end of the list, as do pairs that the window
    rules out.
    """
    b, t, n, h = q_btnh.shape
    heads = k_btkh.shape[2]
    facts = (layout.positions, layout.segments, layout.branches)
    marks = tuple(x.reshape(b, -1, TILE) for x in facts)
    tiled = (_to_tiles(x, heads) for x in (q_btnh, k_btkh, v_btkh))
    out: Any = _attend(spec, *tiled, marks, tiles_within(layout, window), window)
    out = out.reshape(b, t // TILE, heads, n // heads, TILE, h).transpose(0, 1, 4, 2, 3, 5)
    return out.reshape(b, t, n, h)


def _to_tiles(x_btnh, heads):
    """Cut a row: [b, tiles, key heads, (query heads of it ·) TILE, h]."""
    b, t, n, h = x_btnh.shape
    x = x_btnh.reshape(b, t // TILE, TILE, heads, n // heads, h)
    return x.transpose(0, 1, 3, 4, 2, 5).reshape(b, t // TILE, heads, -1, h)


def _get(x, tile_b):
    """Take one tile of each row."""
    return jax.vmap(lambda row, tile: jax.lax.dynamic_index_in_dim(row, tile, keepdims=False))(
        x, tile_b
    )


def _put(x, value, tile_b):
    """Replace one tile of each row."""
    return jax.vmap(lambda r, v, i: jax.lax.dynamic_update_index_in_dim(r, v, i, 0))(
        x, value, tile_b
    )


def _tile_mask(marks, tiles_b2, window):
    """Evaluate the mask within one tile pair of each row: [b, 1, 1, TILE, TILE]."""

    def facts(tile_b):
        index_bt = tile_b[:, None] * TILE + jnp.arange(TILE)[None]
        return Marks(index_bt, *(_get(x, jnp.maximum(tile_b, 0)) for x in marks))

    queries, keys = (facts(tile_b) for tile_b in tiles_b2.T)
    rule = allowed(queries, keys, window)
    return (rule & (tiles_b2[:, :1, None] >= 0))[:, None, None]


def _over_tiles(tiles_bm2, body, carry):
    """Fold ``body(carry, tiles_b2, query_b, key_b)`` over the list up to its last used entry."""
    used_m = (tiles_bm2[..., 0] >= 0).any(0)
    end = jnp.max(jnp.where(used_m, jnp.arange(used_m.shape[0]) + 1, 0))

    def step(m, carry):
        tiles_b2 = jax.lax.dynamic_index_in_dim(tiles_bm2, m, axis=1, keepdims=False)
        return body(carry, tiles_b2, *jnp.maximum(tiles_b2, 0).T)

    return jax.lax.fori_loop(0, end, step, carry)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(spec, q, k, v, marks, tiles_bm2, window):
    """Attend; q is [b, tiles, k, groups · TILE, h], k and v are [b, tiles, k, TILE, h]."""
    return _attend_forward(spec, q, k, v, marks, tiles_bm2, window)[0]


def _attend_forward(spec, q, k, v, marks, tiles_bm2, window):
    *batch, heads, rows, h = q.shape
    groups = rows // TILE
    scale = spec.scale_of(h)

    def body(carry, tiles_b2, query_b, key_b):
        values, peak, total = carry
        mask = _tile_mask(marks, tiles_b2, window)
        scores = _product("bkqh,bkch->bkqc", _get(q, query_b), _get(k, key_b)) * scale
        scores = spec.capped(scores).reshape(-1, heads, groups, TILE, TILE)
        scores = jnp.where(mask, scores, MASKED).reshape(-1, heads, rows, TILE)
        old = _get(peak, query_b)
        new = jnp.maximum(jnp.maximum(old, scores.max(-1)), FLOOR)
        weights = jnp.exp(scores - new[..., None])
        shrink = jnp.exp(old - new)
        update = _product("bkqc,bkch->bkqh", weights.astype(v.dtype), _get(v, key_b))
        values = _put(values, _get(values, query_b) * shrink[..., None] + update, query_b)
        total = _put(total, _get(total, query_b) * shrink + weights.sum(-1), query_b)
        return values, _put(peak, new, query_b), total

    zeros = jnp.zeros(q.shape[:-1], jnp.float32)
    carry = (jnp.zeros(q.shape, jnp.float32), zeros + MASKED, zeros)
    values, peak, total = _over_tiles(tiles_bm2, body, carry)
    safe = jnp.where(total > 0, total, 1.0)
    out = checkpoint_name((values / safe[..., None]).astype(q.dtype), SAVED)
    log_total = checkpoint_name(jnp.where(total > 0, peak + jnp.log(safe), 0.0), SAVED)
    return out, (q, k, v, marks, tiles_bm2, window, out, log_total)


def _attend_backward(spec, kept, grad):
    q, k, v, marks, tiles_bm2, window, out, log_total = kept
    *batch, heads, rows, h = q.shape
    groups = rows // TILE
    scale = spec.scale_of(h)
    # As a product: XLA sums along the last axis twenty times slower on CPUs.
    inner = _product("btkqh,btkqh->btkq", grad, out)

    # Keys are the rows of every score matrix here: three of the four products that use the
    # weights then need no transposition, which costs more than a product on a CPU.
    def body(carry, tiles_b2, query_b, key_b):
        dq, dk, dv = carry
        mask = _tile_mask(marks, tiles_b2, window).swapaxes(-1, -2).swapaxes(2, 3)
        queries, keys, grads = _get(q, query_b), _get(k, key_b), _get(grad, query_b)
        scores = spec.capped(_product("bkch,bkqh->bkcq", keys, queries) * scale)
        weights = jnp.exp(scores - _get(log_total, query_b)[:, :, None])
        weights = weights.reshape(-1, heads, TILE, groups, TILE)
        weights = jnp.where(mask, weights, 0.0).reshape(-1, heads, TILE, rows)
        d_values = _product("bkcq,bkqh->bkch", weights.astype(v.dtype), grads)
        d_weights = _product("bkch,bkqh->bkcq", _get(v, key_b), grads)
        d_scores = weights * (d_weights - _get(inner, query_b)[:, :, None])
        d_scores = spec.through_cap(d_scores, scores).astype(q.dtype)
        d_queries = _product("bkch,bkcq->bkhq", keys, d_scores)
        d_keys = _product("bkcq,bkqh->bkch", d_scores, queries)
        return (
            _put(dq, _get(dq, query_b) + d_queries, query_b),
            _put(dk, _get(dk, key_b) + d_keys, key_b),
            _put(dv, _get(dv, key_b) + d_values, key_b),
        )

    zeros = jnp.zeros(k.shape, jnp.float32)
    carry = (jnp.zeros((*batch, heads, h, rows), jnp.float32), zeros, zeros)
    dq, dk, dv = _over_tiles(tiles_bm2, body, carry)
    dq = (dq.swapaxes(-1, -2) * scale).astype(q.dtype)
    return dq, (dk * scale).astype(k.dtype), dv.astype(v.dtype), None, None, None


_attend.defvjp(_attend_forward, _attend_backward)


def _product(equation, left, right):
    """Multiply matrices, summing in float32."""
    return jnp.einsum(equation, left, right, preferred_element_type=jnp.float32)
