# SPDX-License-Identifier: Apache-2.0
"""Pallas kernels of attention within live tiles: forward, and both halves of the gradient.

One program of the grid owns a query tile (values, gradient of the queries) or a key tile (gradient
of keys and values) of one head, walks the listed partner tiles and evaluates the mask from the
tokens' marks, so shared prefixes, windows and padding are exact. Keys are the rows of every score
matrix: peaks, sums and the queries' marks are then row vectors, and none has to be turned. The
method is that of FlashAttention (Dao et al. 2022). On a CPU the kernels run interpreted.

Arrays (b rows, k key heads, g query heads of a key head, t tokens, h width, x tiles of ``TILE``):

    q, out, grad         [b, k, g, t, h]           k, v               [b, k, t, h]
    log_total, inner     [b, k, g, x, 1, TILE]     window             [1, 1]
    queries              [b, x, 3, TILE]           code, base, position
    keys                 [b, t, 2]                 code, position
    starts, partners     [b, 1, x + 1], [b, 1, m]  partners of tile i: starts[i] … starts[i + 1]
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as pltriton

from alignax.models.attention.mask import FLOOR, MASKED
from alignax.shapes import TILE

COMPILER: dict[str, Any] = {
    "tpu": pltpu.CompilerParams(dimension_semantics=("parallel",) * 4),
    "gpu": pltriton.CompilerParams(num_warps=8, num_stages=2),
}
"""Platform → settings; the GPU's name Triton, whose kernels read rows from global memory."""


def _dot(a: Any, b: Any, over_a: int, over_b: int) -> Any:
    """Multiply matrices over one axis of each, summing in float32; float32 inputs exactly."""
    return jax.lax.dot_general(
        a,
        b,
        (((over_a,), (over_b,)), ((), ())),
        precision=jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None,
        preferred_element_type=jnp.float32,
    )


def _place(tile: Any) -> Any:
    """Tokens of a tile."""
    return pl.ds(pl.multiple_of(tile * TILE, TILE), TILE)


def _scores(spec: Any, q: Any, k: Any, marks: Any, query_tile: Any, key_tile: Any) -> Any:
    """Compute a tile pair's capped scores [keys, queries] and their mask."""
    (code, base, position), (key_code, key_position), window = marks
    scores = spec.capped(_dot(k, q, 1, 1) * spec.scale_of(q.shape[-1]))
    shape = scores.shape
    later = key_tile * TILE + jax.lax.broadcasted_iota(
        jnp.int32, shape, 0
    ) > query_tile * TILE + jax.lax.broadcasted_iota(jnp.int32, shape, 1)
    mask = ((key_code == code) | (key_code == base)) & (position - key_position < window)
    return scores, mask & ~later


def _query_marks(queries: Any, *tile: Any) -> Any:
    """Read code, base and position of a tile's queries: [1, TILE] each."""
    return tuple(queries[(*tile, pl.ds(row, 1), slice(None))] for row in range(3))


def _key_marks(keys: Any, tile: Any) -> Any:
    """Read code and position of a tile's keys: [TILE, 1] each."""
    return tuple(keys[_place(tile), pl.ds(column, 1)] for column in range(2))


def _forward_kernel(spec, starts, partners, window, queries, keys, q_ref, k_ref, v_ref, *outputs):  # noqa: PLR0913
    """Own a query tile: fold its key tiles with a running softmax."""
    out_ref, log_total_ref = outputs
    query_tile = pl.program_id(3)
    q = q_ref[...]
    query_marks = _query_marks(queries)

    def body(index: Any, carry: Any) -> Any:
        values, peak, total = carry
        key_tile = partners[0, index]
        marks = query_marks, _key_marks(keys, key_tile), window[0, 0]
        scores, mask = _scores(spec, q, k_ref[_place(key_tile), :], marks, query_tile, key_tile)
        scores = jnp.where(mask, scores, MASKED)
        new = jnp.maximum(peak, jnp.max(scores, axis=0, keepdims=True))
        weights = jnp.exp(scores - new)
        shrink = jnp.exp(peak - new)
        v = v_ref[_place(key_tile), :]
        values = values * shrink + _dot(v, weights.astype(v.dtype), 0, 0)
        return values, new, total * shrink + jnp.sum(weights, axis=0, keepdims=True)

    row = jnp.zeros((1, TILE), jnp.float32)
    start = (jnp.zeros((q.shape[-1], TILE), jnp.float32), row + FLOOR, row)
    values, peak, total = jax.lax.fori_loop(
        starts[0, query_tile], starts[0, query_tile + 1], body, start
    )
    safe = jnp.where(total > 0, total, 1.0)
    out_ref[...] = (values / safe).astype(out_ref.dtype)
    log_total_ref[...] = jnp.where(total > 0, peak + jnp.log(safe), 0.0)


def _score_gradient(spec, q, k, v, grad, log_total, inner, marks, query_tile, key_tile):
    """Compute a pair's weights and gradient of its unscaled scores: [keys, queries] each."""
    scores, mask = _scores(spec, q, k, marks, query_tile, key_tile)
    weights = jnp.where(mask, jnp.exp(scores - log_total), 0.0)
    d_scores = weights * (_dot(v, grad, 1, 1) - inner) * spec.scale_of(q.shape[-1])
    return weights, spec.through_cap(d_scores, scores)


def _query_gradient_kernel(
    spec, starts, partners, window, queries, keys, q_ref, k_ref, v_ref, grad_ref, log_total_ref,
    inner_ref, dq_ref,
):  # fmt: skip
    """Own a query tile: sum its gradient over its key tiles."""
    query_tile = pl.program_id(3)
    q, grad, log_total, inner = (x[...] for x in (q_ref, grad_ref, log_total_ref, inner_ref))
    query_marks = _query_marks(queries)

    def body(index: Any, dq: Any) -> Any:
        key_tile = partners[0, index]
        marks = query_marks, _key_marks(keys, key_tile), window[0, 0]
        k, v = (x[_place(key_tile), :] for x in (k_ref, v_ref))
        _, d_scores = _score_gradient(
            spec, q, k, v, grad, log_total, inner, marks, query_tile, key_tile
        )
        return dq + _dot(k, d_scores.astype(k.dtype), 0, 0)

    dq_ref[...] = jax.lax.fori_loop(
        starts[0, query_tile], starts[0, query_tile + 1], body, jnp.zeros(dq_ref.shape, jnp.float32)
    ).astype(dq_ref.dtype)


def _key_gradient_kernel(
    spec, starts, partners, window, queries, keys, q_ref, k_ref, v_ref, grad_ref, log_total_ref,
    inner_ref, dk_ref, dv_ref,
):  # fmt: skip
    """Own a key tile: sum the gradients of its keys and values over one head's query tiles."""
    key_tile = pl.program_id(3)
    k, v = k_ref[...], v_ref[...]
    key_marks = tuple(keys[:, pl.ds(column, 1)] for column in range(2))

    def body(index: Any, carry: Any) -> Any:
        dk, dv = carry
        query_tile = partners[0, index]
        q, grad = (x[_place(query_tile), :] for x in (q_ref, grad_ref))
        marks = _query_marks(queries, query_tile), key_marks, window[0, 0]
        weights, d_scores = _score_gradient(
            spec, q, k, v, grad, log_total_ref[query_tile], inner_ref[query_tile], marks,
            query_tile, key_tile,
        )  # fmt: skip
        return dk + _dot(d_scores.astype(q.dtype), q, 1, 0), dv + _dot(
            weights.astype(grad.dtype), grad, 1, 0
        )

    zeros = jnp.zeros(dk_ref.shape, jnp.float32)
    dk_ref[...], dv_ref[...] = jax.lax.fori_loop(
        starts[0, key_tile], starts[0, key_tile + 1], body, (zeros, zeros)
    )


def _spec(axes: str, shape: Any, *, scalars: bool = False) -> pl.BlockSpec:
    """Cut an array for the program (row b, key head k, group g, tile i).

    ``axes`` names each axis: b, k and g give one entry each, i entry i, T the i-th ``TILE`` tokens;
    any other axis comes whole.
    """
    block = tuple(
        None if axis in "bkgi" else TILE if axis == "T" else size
        for axis, size in zip(axes, shape, strict=True)
    )

    def index(b: Any, k: Any, g: Any, i: Any) -> Any:
        place = {"b": b, "k": k, "g": g, "i": i, "T": i}
        return tuple(place.get(axis, 0) for axis in axes)

    if scalars and jax.default_backend() != "gpu":
        return pl.BlockSpec(block, index, memory_space=pltpu.SMEM)
    return pl.BlockSpec(block, index)


def _call(kernel: Any, inputs: Any, outputs: Any, tile_count: int) -> Any:
    """Run a kernel once for every tile of every head of every row.

    Args:
        kernel: Takes a ref for each input, then for each output.
        inputs: (axes for ``_spec``, array); the first three hold scalars.
        outputs: (axes, shape and dtype).
        tile_count: Tiles of a row.
    """
    backend = jax.default_backend()
    b, heads, groups, *_ = outputs[0][1].shape
    return pl.pallas_call(
        kernel,
        grid=(b, heads, groups, tile_count),
        in_specs=[_spec(a, x.shape, scalars=i < 3) for i, (a, x) in enumerate(inputs)],
        out_specs=[_spec(axes, x.shape) for axes, x in outputs],
        out_shape=[x for _, x in outputs],
        compiler_params=COMPILER.get(backend),
        interpret=backend == "cpu",
    )(*(x for _, x in inputs))


def run_forward(
    spec: Any, q: Any, k: Any, v: Any, queries: Any, keys: Any, window: Any, starts: Any,
    partners: Any, key_starts: Any, key_partners: Any,
) -> Any:  # fmt: skip
    """Compute (out, log_total)."""
    del key_starts, key_partners
    *lead, t, h = q.shape
    lists = (("b1u", starts), ("b1m", partners), ("11", window), ("bi3t", queries))
    out, log_total = _call(
        partial(_forward_kernel, spec),
        (*lists, ("bt2", keys), ("bkgTh", q), ("bkth", k), ("bkth", v)),
        (
            ("bkghT", jax.ShapeDtypeStruct((*lead, h, t), q.dtype)),
            ("bkgi1t", jax.ShapeDtypeStruct((*lead, t // TILE, 1, TILE), jnp.float32)),
        ),
        t // TILE,
    )
    return out.swapaxes(-1, -2), log_total


def run_backward(
    spec: Any, q: Any, k: Any, v: Any, queries: Any, keys: Any, window: Any, starts: Any,
    partners: Any, key_starts: Any, key_partners: Any, grad: Any, log_total: Any, inner: Any,
) -> Any:  # fmt: skip
    """Compute (dq, dk, dv)."""
    *lead, t, h = q.shape
    (dq,) = _call(
        partial(_query_gradient_kernel, spec),
        (
            ("b1u", starts), ("b1m", partners), ("11", window), ("bi3t", queries), ("bt2", keys),
            ("bkgTh", q), ("bkth", k), ("bkth", v), ("bkgTh", grad), ("bkgi1t", log_total),
            ("bkgi1t", inner),
        ),
        (("bkghT", jax.ShapeDtypeStruct((*lead, h, t), q.dtype)),),
        t // TILE,
    )  # fmt: skip
    per_head = ("bkgTh", jax.ShapeDtypeStruct(q.shape, jnp.float32))
    dk, dv = _call(
        partial(_key_gradient_kernel, spec),
        (
            ("b1u", key_starts), ("b1m", key_partners), ("11", window), ("bx3t", queries),
            ("bT2", keys), ("bkgth", q), ("bkTh", k), ("bkTh", v), ("bkgth", grad),
            ("bkgx1t", log_total), ("bkgx1t", inner),
        ),
        (per_head, per_head),
        t // TILE,
    )  # fmt: skip
    return dq.swapaxes(-1, -2), dk.sum(2).astype(k.dtype), dv.sum(2).astype(v.dtype)
