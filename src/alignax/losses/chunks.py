# SPDX-License-Identifier: Apache-2.0
"""Hidden states of many places → logits of a few places at a time.

What log-probs and KL share: how the places of all rows are walked through in chunks, and the
float32 sums over the vocabulary. Rows stay an axis of their own and the vocabulary is only ever
reduced, never sliced, so a mesh may shard either.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

TAIL = 64
"""Places in a chunk of the last, incomplete stretch."""

BLOCKS = (16, 128)
"""Least and most vocabulary entries that are summed at one time."""

SHARDS = 8
"""Devices up to which a block never lies on two of them."""


class Chunks(NamedTuple):
    """Static settings of one call; ``chunk`` is a multiple of ``tail``."""

    softcap: float | None
    train_head: bool
    chunk: int
    tail: int


def places(rows: int, vocabulary: int, limit: int, most: int = 1024) -> int:
    """Choose a chunk: the most places (a power of two) whose float32 logits take ``limit`` bytes.

    Args:
        rows: Rows of a micro-batch on one device.
        vocabulary: Entries of the vocabulary on one device.
        limit: Bytes of ``[rows, places, vocabulary]``; one place is the least, whatever it takes.
        most: Places beyond which a product gains nothing.
    """
    fitting = min(limit // (4 * rows * vocabulary), most)
    return 1 << max(fitting.bit_length() - 1, 0)


def fit(slot_count: int, chunk: int, softcap: float | None, train_head: bool = False) -> Chunks:
    """Fit the chunk to the places that there are."""
    tail = min(TAIL, chunk, slot_count)
    return Chunks(softcap, train_head, min(chunk, slot_count) // tail * tail, tail)


def pad(values: Array, options: Chunks) -> Array:
    """Add places until short chunks fit."""
    widths = [(0, 0)] * values.ndim
    widths[1] = (0, -values.shape[1] % options.tail)
    return jnp.pad(values, widths)


def sweep(count_b: Array, options: Chunks, body: Callable[[Any, int, Any], Any], carry: Any) -> Any:
    """Fold ``body(start, size, carry)`` over all places that any row uses.

    The number of rounds depends on the data; this is why the gradient is written by hand.
    """
    longest, (_, _, chunk, tail) = count_b.max(), options
    whole = longest // chunk
    if chunk > tail:
        carry = jax.lax.fori_loop(0, whole, lambda i, c: body(i * chunk, chunk, c), carry)
    rest = 0 if chunk == tail else whole * chunk
    rounds = (longest - rest + tail - 1) // tail
    return jax.lax.fori_loop(0, rounds, lambda i, c: body(rest + i * tail, tail, c), carry)


def part(values: Array, start: Any, size: int) -> Array:
    """Take ``size`` places of every row."""
    return jax.lax.dynamic_slice_in_dim(values, start, size, axis=1)


def put(values: Array, piece: Array, start: Any) -> Array:
    """Write the places that ``part`` took."""
    return jax.lax.dynamic_update_slice_in_dim(values, piece.astype(values.dtype), start, axis=1)


def project(hidden_bad: Array, head_vd: Array, softcap: float | None) -> Array:
    """Project to the vocabulary in float32."""
    logits_bav = jnp.einsum("bad,vd->bav", hidden_bad, head_vd, preferred_element_type=jnp.float32)
    return logits_bav if softcap is None else softcap * jnp.tanh(logits_bav / softcap)


def block_of(entries: int) -> int | None:
    """Choose how many entries of a vocabulary make a block; None if no block fits.

    A block across the border of two devices would have the logits moved between them, so blocks
    are as small as it takes for ``SHARDS`` devices, if that is not too small to be of use.
    """
    least, most = BLOCKS
    even = entries & -entries
    block = min(max(even // SHARDS, least), most)
    return block if even % block == 0 else None


def row_sum(values_bav: Array) -> Array:
    """Sum over the vocabulary: blocks first, then their sums.

    One running float32 sum over fifty thousand small probabilities can lose 1e-5 of a log-prob,
    always in the same direction, which adds up over an answer. A block is summed as a product,
    because XLA does not vectorise such a sum on CPUs.
    """
    rows, places, entries = values_bav.shape
    block = block_of(entries)
    if block is None:
        return values_bav.sum(-1)
    blocks = values_bav.reshape(rows, places, entries // block, block)
    ones = jnp.ones(block, values_bav.dtype)
    sums = jnp.einsum("bacv,v->bac", blocks, ones, precision=jax.lax.Precision.HIGHEST)
    return sums.sum(-1)


def log_sum_exp(logits_bav: Array) -> tuple[Array, Array, Array]:
    """Return shifted exponentials, their sum, and the log of the unshifted sum."""
    peak_ba = logits_bav.max(-1)
    exp_bav = jnp.exp(logits_bav - peak_ba[..., None])
    sum_ba = row_sum(exp_bav)
    return exp_bav, sum_ba, peak_ba + jnp.log(sum_ba)


def pick(values_bav: Array, target_ba: Array) -> Array:
    """Take the target's entry."""
    return jnp.take_along_axis(values_bav, target_ba[..., None], axis=-1)[..., 0]


def used(places_ba: Array, count_b: Array) -> Array:
    """[b, a] mask of used places."""
    return jnp.arange(places_ba.shape[1])[None] < count_b[:, None]


def blank(hidden_bad: Array, used_ba: Array) -> Array:
    """Zero the unused places, so that whatever lies there (NaN too) stays out of gradients."""
    return jnp.where(used_ba[..., None], hidden_bad, 0)


def cap_slope(logits: Array, softcap: float | None) -> Array | float:
    """Derivative of the soft cap, from its output."""
    return 1.0 if softcap is None else 1.0 - jnp.square(logits / softcap)


def add_products(
    grad_bad: Array, grad_vd: Array, slope_bav: Array, part_bad: Array, head_vd: Array, start: Any
) -> tuple[Array, Array]:
    """Carry the slope of a chunk's logits to its hidden states and to the head."""
    slope_bav = slope_bav.astype(head_vd.dtype)
    product = partial(jnp.einsum, preferred_element_type=jnp.float32)
    grad_bad = put(grad_bad, product("bav,vd->bad", slope_bav, head_vd), start)
    return grad_bad, grad_vd + product("bav,bad->vd", slope_bav, part_bad)
