# SPDX-License-Identifier: Apache-2.0
"""Attention within the live tiles of packed rows, by the Pallas kernels for TPUs and GPUs.

Here the packer's list becomes walks (which partner tiles each query tile and each key tile has) and
the tokens' marks become what the kernels compare; the kernels are in ``kernels.py``.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.custom_partitioning import custom_partitioning
from jaxtyping import Array, Float

from alignax.models.attention.kernels import run_backward, run_forward
from alignax.models.attention.mask import (
    GLOBAL,
    PLAIN,
    SAVED,
    AttentionSpec,
    Layout,
    tiles_within,
)
from alignax.shapes import TILE

BRANCHES = 2**10
"""More than the branches of an example: segment · BRANCHES + branch names a branch of a row."""


def flash_attention(
    q_btnh: Float[Array, "b t n h"],
    k_btkh: Float[Array, "b t k h"],
    v_btkh: Float[Array, "b t k h"],
    layout: Layout,
    window: Any = None,
    spec: AttentionSpec = PLAIN,
) -> Float[Array, "b t n h"]:
    """Attend within the listed tile pairs only; equal to ``dense_attention``.

    t is a multiple of ``TILE`` (``whole_tiles`` sees to it); unused tile pairs are negative.
    """
    b, t, n, h = q_btnh.shape
    heads = k_btkh.shape[2]
    q = q_btnh.reshape(b, t, heads, n // heads, h).transpose(0, 2, 3, 1, 4)
    k, v = k_btkh.transpose(0, 2, 1, 3), v_btkh.transpose(0, 2, 1, 3)
    limit = jnp.asarray(GLOBAL if window is None else window, jnp.int32).reshape(1, 1)
    facts = (*_token_facts(layout), limit, *_walks(tiles_within(layout, window), t // TILE))
    out: Any = _attend(spec, q, k, v, facts)
    return out.transpose(0, 3, 1, 2, 4).reshape(b, t, n, h)


def _token_facts(layout):
    """Marks as rows for queries [b, tiles, 3, TILE] and as columns for keys [b, t, 2].

    A key is seen if its code is the query's own (same branch) or the query's base (its prompt).
    """
    base = layout.segments * BRANCHES
    code = base + layout.branches
    seen = layout.segments > 0
    query = jnp.stack([jnp.where(seen, code, -1), jnp.where(seen, base, -1), layout.positions], 1)
    rows = query.reshape(query.shape[0], 3, -1, TILE).transpose(0, 2, 1, 3)
    return rows, jnp.stack([jnp.where(seen, code, -2), layout.positions], -1)


def _walks(tiles_bm2, tile_count):
    """List partners by owner: starts [b, 1, tiles + 1] and partners [b, 1, m], for both owners."""

    def walk(owner_bm, partner_bm):
        owner_bm = jnp.where(owner_bm < 0, tile_count, owner_bm)
        order = jnp.argsort(owner_bm, axis=1, stable=True)
        bounds = jnp.arange(tile_count + 1)
        starts = (owner_bm[:, None, :] < bounds[None, :, None]).sum(-1, dtype=jnp.int32)
        return starts[:, None], jnp.take_along_axis(partner_bm, order, axis=1)[:, None]

    query_bm, key_bm = tiles_bm2[..., 0], tiles_bm2[..., 1]
    return *walk(query_bm, key_bm), *walk(key_bm, query_bm)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(spec, q, k, v, facts):
    """Attend; q is [b, k, g, t, h] (g query heads a key head), k and v are [b, k, t, h]."""
    return _attend_forward(spec, q, k, v, facts)[0]


def _attend_forward(spec, q, k, v, facts):
    out, log_total = (checkpoint_name(x, SAVED) for x in _forward(spec, q, k, v, *facts))
    return out, (q, k, v, facts, out, log_total)


def _attend_backward(spec, kept, grad):
    q, k, v, facts, out, log_total = kept
    inner = (grad.astype(jnp.float32) * out.astype(jnp.float32)).sum(-1)
    inner = inner.reshape(log_total.shape)
    dq, dk, dv = _backward(spec, q, k, v, *facts, grad, log_total, inner)
    return dq, dk, dv, None


_attend.defvjp(_attend_forward, _attend_backward)


def _sharded(run: Any, arrays: str, results: str) -> Any:
    """Let the partitioner split a kernel over rows and key heads, and over nothing else.

    Args:
        run: Function of a static spec and of arrays.
        arrays: Axes of the arrays, a letter each; b (rows) and k (key heads) may be split.
        results: Axes of the results.
    """
    wrapped = custom_partitioning(run, static_argnums=(0,))

    def partition(spec: Any, mesh: Any, arguments: Any, outputs: Any) -> Any:
        places = (jax.tree.map(lambda x: x.sharding, tree) for tree in (outputs, arguments))
        return mesh, partial(run, spec), *places

    rule = " -> ".join(
        ", ".join(" ".join(axes) for axes in side.split()) for side in (arrays, results)
    )
    # The partitioner wants these in the order of their first appearance.
    whole = tuple(axis for axis in dict.fromkeys(arrays + results) if axis not in "bk ")
    wrapped.def_partition(partition, sharding_rule=rule, need_replication_factors=whole)
    return wrapped


_INPUTS = "bkgth bkth bkth bxpz btf oc byu bym byu bym"
_forward = _sharded(run_forward, _INPUTS, "bkgth bkgxyz")
_backward = _sharded(run_backward, f"{_INPUTS} bkgth bkgxyz bkgxyz", "bkgth bkth bkth")
