# SPDX-License-Identifier: Apache-2.0
"""Dense attention equals a token-by-token loop, and tiled attention equals dense attention."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alignax.models.attention import (
    BACKENDS,
    GLOBAL,
    AttentionSpec,
    Layout,
    dense_attention,
    tiled_attention,
)
from alignax.models.attention.mask import tiles_within
from alignax.shapes import TILE
from tests.models.rows import layout_of, shared_prefix_rows, slow_mask

# Within a tile, across one edge, across several, two examples in a tile, a long answer, one branch.
ROWS = [
    [(50, 30, 20), (40, 10, 9), (100, 60, 45)],
    [(300, 40, 35)],
]
TOKENS = 3 * TILE


def inputs(rows, *, heads=4, kv_heads=2, width=8, dtype=jnp.float32):
    """Random q, k, v and a cotangent for rows."""
    b, t = rows.ids.shape
    keys = jax.random.split(jax.random.key(0), 4)
    counts = (heads, kv_heads, kv_heads, heads)
    return [
        jax.random.normal(key, (b, t, n, width), dtype) for key, n in zip(keys, counts, strict=True)
    ]


def slow_attention(q, k, v, mask, *, scale=None, cap=None):
    """One query, one head, one softmax at a time."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    out = np.zeros_like(q)
    groups = q.shape[2] // k.shape[2]
    for b, t, n in np.ndindex(*q.shape[:3]):
        seen = mask[b, t]
        if seen.any():
            scores = k[b, seen, n // groups] @ q[b, t, n] * scale
            scores = scores if cap is None else cap * np.tanh(scores / cap)
            weights = np.exp(scores - scores.max())
            out[b, t, n] = weights / weights.sum() @ v[b, seen, n // groups]
    return out


def both(rows, q, k, v, grad, *more):
    """Values and gradients of (dense, tiled) attention; ``more``: window and spec."""

    def run(attend):
        out, pull = jax.vjp(lambda *x: attend(*x, layout_of(rows), *more), q, k, v)
        return out, pull(grad)

    return jax.jit(lambda: (run(dense_attention), run(tiled_attention)))()


def test_dense_attention_equals_a_loop():
    rows = shared_prefix_rows([[(5, 4, 3), (2, 3, 1)], [(9, 2, 6)]], TILE)
    q, k, v, _ = inputs(rows)
    out = dense_attention(q, k, v, layout_of(rows))
    want = slow_attention(q, k, v, slow_mask(rows.segments, rows.branches))
    np.testing.assert_allclose(out, want, rtol=0, atol=2e-6)


@pytest.mark.parametrize("window", [None, 4])
def test_dense_attention_with_window_scale_and_cap_equals_a_loop(window):
    rows = shared_prefix_rows([[(5, 4, 3), (2, 3, 1)], [(9, 2, 6)]], TILE)
    q, k, v, _ = inputs(rows)
    out = dense_attention(q, k, v, layout_of(rows), window, AttentionSpec(0.7, 1.5))
    mask = slow_mask(rows.segments, rows.branches, rows.positions, window)
    want = slow_attention(q, k, v, mask, scale=0.7, cap=1.5)
    np.testing.assert_allclose(out, want, rtol=0, atol=2e-6)


def test_a_window_is_decided_on_positions():
    """p0 p1 c0 c1 r0 r1 at positions 0 1 2 3 2 3, window 3: r0 sees p0, four places back."""
    rows = shared_prefix_rows([[(2, 2, 2)]], TILE)
    q, k, v, _ = inputs(rows, heads=1, kv_heads=1)
    q, v = jnp.zeros_like(q), jnp.zeros_like(v).at[0, :6, 0, :6].set(jnp.eye(6))
    out = dense_attention(q, k, v, layout_of(rows), 3)[0, :6, 0, :6]
    seen = [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [0, 1, 1, 1, 0, 0],
        [1, 1, 0, 0, 1, 0],
        [0, 1, 0, 0, 1, 1],
    ]
    want = np.array(seen) / np.sum(seen, axis=1, keepdims=True)
    np.testing.assert_allclose(out, want, rtol=0, atol=1e-6)


def test_branches_do_not_see_each_other():
    """p0 p1 c0 c1 r0 r1: r1 sees the prompt and its own branch, never the chosen answer."""
    rows = shared_prefix_rows([[(2, 2, 2)]], TILE)
    seen = slow_mask(rows.segments, rows.branches)[0, :6, :6].astype(int)
    np.testing.assert_array_equal(
        seen,
        [
            [1, 0, 0, 0, 0, 0],
            [1, 1, 0, 0, 0, 0],
            [1, 1, 1, 0, 0, 0],
            [1, 1, 1, 1, 0, 0],
            [1, 1, 0, 0, 1, 0],
            [1, 1, 0, 0, 1, 1],
        ],
    )


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (3, 3), (6, 1)])
def test_tiled_equals_dense(heads, kv_heads):
    rows = shared_prefix_rows(ROWS, TOKENS)
    dense, tiled = both(rows, *inputs(rows, heads=heads, kv_heads=kv_heads))
    np.testing.assert_allclose(tiled[0], dense[0], rtol=0, atol=1e-5)
    for got, want in zip(tiled[1], dense[1], strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 * float(jnp.abs(want).max()))


@pytest.mark.parametrize("tokens", [TOKENS - 1, TOKENS - 9])
def test_rows_may_end_within_a_tile(tokens):
    """375 of 384 tokens are used, so that the last row of queries lies in a tile that is cut."""
    rows = shared_prefix_rows(ROWS, TOKENS)
    q, k, v, grad = (x[:, :tokens] for x in inputs(rows))
    *facts, tiles = layout_of(rows)
    layout = Layout(*(x[:, :tokens] for x in facts), tiles)
    want, pull = jax.vjp(lambda *x: dense_attention(*x, layout), q, k, v)
    out, pulled = jax.vjp(lambda *x: BACKENDS["tiled"](*x, layout, None), q, k, v)
    np.testing.assert_allclose(out, want, rtol=0, atol=1e-5)
    for got, right in zip(pulled(grad), pull(grad), strict=True):
        np.testing.assert_allclose(got, right, rtol=0, atol=1e-4 * float(jnp.abs(right).max()))


def test_tiled_takes_pairs_in_any_order_and_skips_unused():
    rows = shared_prefix_rows(ROWS, TOKENS, unused=0)
    order = np.random.default_rng(0).permutation(rows.tiles.shape[1])
    mixed = jnp.concatenate([jnp.full((2, 2, 2), -1), rows.tiles[:, order]], axis=1)
    tensors = inputs(rows)
    want = both(rows, *tensors)[1]
    got = both(rows._replace(tiles=mixed), *tensors)[1]
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)


@pytest.mark.parametrize("window", [2, 50, 140, GLOBAL])
def test_tiled_equals_dense_with_window_and_cap(window):
    rows = shared_prefix_rows(ROWS, TOKENS)
    dense, tiled = both(rows, *inputs(rows), jnp.int32(window), AttentionSpec(0.5, 1.5))
    np.testing.assert_allclose(tiled[0], dense[0], rtol=0, atol=1e-5)
    for got, want in zip(tiled[1], dense[1], strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 * float(jnp.abs(want).max()))


def test_tiles_out_of_the_window_are_dropped():
    """A prompt of four tiles: each tile sees itself and, 128 back, the one before."""
    layout = layout_of(shared_prefix_rows([[(4 * TILE - 2, 1, 1)]], 4 * TILE))
    kept = np.asarray(tiles_within(layout, TILE))[0]
    near = [[0, 0], [1, 0], [1, 1], [2, 1], [2, 2], [3, 2], [3, 3]]
    np.testing.assert_array_equal(kept[: len(near)], near)
    assert (kept[len(near) :] == -1).all()
    np.testing.assert_array_equal(tiles_within(layout, GLOBAL), layout.tiles)


@pytest.mark.parametrize("attend", ["dense", "tiled"])
def test_padding_gives_zeros_and_no_gradient(attend):
    rows = shared_prefix_rows([[(50, 30, 20)], []], 2 * TILE)
    pair = both(rows, *inputs(rows))
    out, grads = pair[attend == "tiled"]
    for x in (out, *grads):
        assert jnp.isfinite(x).all()
        np.testing.assert_array_equal(x[0, 100:], 0.0)
        np.testing.assert_array_equal(x[1], 0.0)


@pytest.mark.parametrize("scale", [1e-3, 30.0])
def test_tiled_is_stable_for_flat_and_sharp_scores(scale):
    """A row's largest score may lie in any of its tiles."""
    rows = shared_prefix_rows([[(200, 90, 60)]], TOKENS)
    q, k, v, grad = inputs(rows)
    dense, tiled = both(rows, q * scale, k, v, grad)
    np.testing.assert_allclose(tiled[0], dense[0], rtol=0, atol=2e-5)
    for got, want in zip(tiled[1], dense[1], strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 * float(jnp.abs(want).max()))


def test_bfloat16_stays_near_float32():
    rows = shared_prefix_rows(ROWS, TOKENS)
    tensors = inputs(rows, dtype=jnp.bfloat16)
    _, (out, grads) = both(rows, *tensors)
    (want, _), _ = both(rows, *(x.astype(jnp.float32) for x in tensors))
    assert out.dtype == jnp.bfloat16
    assert all(x.dtype == jnp.bfloat16 for x in grads)
    np.testing.assert_allclose(out.astype(jnp.float32), want, rtol=0, atol=0.03)
