# SPDX-License-Identifier: Apache-2.0
"""Keys and values of tokens that were already read."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer

from alignax.models.config import DecoderConfig


class KVCache(NamedTuple):
    """Static-size memory of a batch of sequences.

    Keys lie with their tokens last and values with their widths last, as the two products of
    attention read them.

    Attributes:
        keys: [l, b, k, h, c] rotated keys.
        values: [l, b, k, c, h].
        positions: [b, c] position of each stored token; -1 where nothing is stored.
        length: Slots in use, padding included; the next token goes there. One number for all rows,
            or [b] numbers.
    """

    keys: Any
    values: Any
    positions: Any
    length: Any

    @property
    def room(self) -> int:
        """Slots of a row."""
        return self.positions.shape[1]


def init_cache(config: DecoderConfig, batch: int, capacity: int, dtype: Any) -> KVCache:
    """Allocate an empty cache for ``batch`` sequences of up to ``capacity`` tokens."""
    heads = (config.layer_count, batch, config.kv_head_count)
    return KVCache(
        jnp.zeros((*heads, config.head_dim, capacity), dtype),
        jnp.zeros((*heads, capacity, config.head_dim), dtype),
        jnp.full((batch, capacity), -1, jnp.int32),
        jnp.zeros((), jnp.int32),
    )


def require_room(cache: KVCache, tokens: int) -> None:
    """Refuse tokens that do not fit.

    Inside a compiled program the length is not known, and what does not fit would be written over
    earlier slots: whoever compiles one must allocate enough.

    Raises:
        ValueError: The tokens do not fit.
    """
    known = not isinstance(cache.length, Tracer)
    first = int(jnp.max(cache.length)) if known else 0
    if first + tokens > cache.room:
        where = f" from slot {first} on" if known else ""
        raise ValueError(f"{tokens} tokens{where} do not fit into a cache of {cache.room} slots")


def mark(positions_bc: jax.Array, new_bt: jax.Array, length: Any) -> jax.Array:
    """Note the positions of further tokens."""
    return _write(positions_bc, new_bt, length, axis=0)


def store(
    keys_bkhc: jax.Array, values_bkch: jax.Array, k_btkh: jax.Array, v_btkh: jax.Array, length: Any
) -> tuple[jax.Array, jax.Array]:
    """Write keys and values of further tokens of one layer."""
    return (
        _write(keys_bkhc, k_btkh.transpose(0, 2, 3, 1), length, axis=2),
        _write(values_bkch, v_btkh.transpose(0, 2, 1, 3), length, axis=1),
    )


def _write(stored: Any, new: Any, length: Any, *, axis: int) -> Any:
    """Write ``new`` into each row, whose axis of slots is ``axis``, from its length on."""

    def write(row: Any, part: Any, at: Any) -> Any:
        return jax.lax.dynamic_update_slice_in_dim(row, part, at, axis)

    rows = (0, 0, None if jnp.ndim(length) == 0 else 0)
    return jax.vmap(write, rows)(stored, new.astype(stored.dtype), length)
