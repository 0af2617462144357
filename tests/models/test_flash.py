# SPDX-License-Identifier: Apache-2.0
"""The Pallas kernels, interpreted, equal dense attention; on one device and on four."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from alignax.models.attention import (
    GLOBAL,
    PLAIN,
    AttentionSpec,
    Layout,
    dense_attention,
)
from alignax.models.attention.flash import flash_attention
from alignax.models.sharding import build_mesh
from alignax.shapes import TILE
from tests.models.rows import layout_of, shared_prefix_rows

# Examples across the edge of tiles and several in one; a row that is mostly padding, an empty one.
ROWS = [[(100, 60, 45), (30, 8, 9)], [(50, 30, 20)], [], [(9, 140, 90)]]
TOKENS = 2 * TILE


def tensors(rows, heads, kv_heads, dtype=jnp.float32):
    """Random q, k, v and a gradient of the values."""
    shape = *rows.ids.shape, 8
    keys = jax.random.split(jax.random.key(0), 4)
    counts = (heads, kv_heads, kv_heads, heads)
    return [
        jax.random.normal(key, (*shape[:2], n, shape[2]), dtype)
        for key, n in zip(keys, counts, strict=True)
    ]


def run(attend, spec):
    """A compiled function of (q, k, v, gradient, layout, window) that gives values, dq, dk, dv."""

    def values_and_gradients(q, k, v, grad, layout, window):
        out, pull = jax.vjp(lambda *x: attend(*x, layout, window, spec), q, k, v)
        return out, *pull(grad)

    return jax.jit(values_and_gradients)


def assert_close(got, want, tolerance):
    """Every array within a share of its largest entry."""
    for one, other in zip(got, want, strict=True):
        one, other = np.asarray(one, np.float32), np.asarray(other, np.float32)
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * np.abs(other).max())


@pytest.mark.parametrize(
    ("heads", "kv_heads", "spec", "windows"),
    [(6, 2, PLAIN, [None]), (2, 2, AttentionSpec(0.5, 1.5), [2, 50, 140, GLOBAL])],
)
def test_kernels_equal_dense(heads, kv_heads, spec, windows):
    rows = shared_prefix_rows(ROWS, TOKENS)
    arrays = tensors(rows, heads, kv_heads)
    dense, flash = run(dense_attention, spec), run(flash_attention, spec)
    for window in windows:
        limit = None if window is None else jnp.int32(window)
        got = flash(*arrays, layout_of(rows), limit)
        assert_close(got, dense(*arrays, layout_of(rows), limit), 1e-5)
        padding = np.asarray(rows.segments) == 0
        assert all((np.asarray(x)[padding] == 0).all() for x in got)


def test_kernels_take_bfloat16():
    rows = shared_prefix_rows(ROWS, TOKENS)
    arrays = tensors(rows, 2, 1, jnp.bfloat16)
    got = run(flash_attention, PLAIN)(*arrays, layout_of(rows), None)
    wide = [x.astype(jnp.float32) for x in arrays]
    want = run(dense_attention, PLAIN)(*wide, layout_of(rows), None)
    assert all(x.dtype == jnp.bfloat16 for x in got)
    assert_close(got, want, 1e-2)


def test_kernels_are_split_over_rows_and_heads_and_nothing_is_gathered():
    """Four rows over two devices, four heads of two key heads over two."""
    mesh = build_mesh(2, 1, 2)
    rows = shared_prefix_rows(ROWS, TOKENS)
    arrays = tensors(rows, 4, 2)
    want = run(dense_attention, PLAIN)(*arrays, layout_of(rows), None)

    def put(x, *axes):
        return jax.device_put(x, NamedSharding(mesh, P("data", *axes)))

    arrays = [put(x, None, "tensor") for x in arrays]
    layout = Layout(*map(put, layout_of(rows)))
    program = run(flash_attention, PLAIN).lower(*arrays, layout, None).compile()
    assert "all-gather" not in program.as_text()
    got = program(*arrays, layout, None)
    assert_close(got, want, 1e-5)
    assert got[0].sharding.shard_shape(got[0].shape) == (2, TOKENS, 2, 8)
