# SPDX-License-Identifier: Apache-2.0
"""Keys and values of tokens that were already read."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer

from alignax.models.config import DecoderConfig


class KVCache(NamedTuple):
    """Static-size memory of a batch of sequences.

    Attributes:
        keys: [l, b, c, k, h] rotated keys.
        values: [l, b, c, k, h].
        positions: [b, c] position of each stored token; -1 where nothing is stored.
        length: Slots in use, padding included; the next token goes there. One number for all rows,
            or [b] numbers.
    """

    keys: Any
    values: Any
    positions: Any
    length: Any


def init_cache(config: DecoderConfig, batch: int, capacity: int, dtype: Any) -> KVCache:
    """Allocate an empty cache for ``batch`` sequences of up to ``capacity`` tokens."""
    shape = (config.layer_count, batch, capacity, config.kv_head_count, config.head_dim)
    return KVCache(
        jnp.zeros(shape, dtype),
        jnp.zeros(shape, dtype),
        jnp.full((batch, capacity), -1, jnp.int32),
        jnp.zeros((), jnp.int32),
    )


def extend(stored: jax.Array, new: jax.Array, start: Any) -> jax.Array:
    """Write [b, t, …] into [b, c, …] from slot ``start`` on, which may be another for each row.

    Inside a compiled program the start is not known here, and what does not fit would be written
    over earlier slots: whoever compiles one must allocate enough.

    Raises:
        ValueError: The tokens do not fit.
    """
    slots, known = stored.shape[1], not isinstance(start, Tracer)
    first = int(jnp.max(start)) if known else 0
    if first + new.shape[1] > slots:
        where = f" from slot {first} on" if known else ""
        raise ValueError(f"{new.shape[1]} tokens{where} do not fit into a cache of {slots} slots")
    new = new.astype(stored.dtype)
    if jnp.ndim(start) == 0:
        return jax.lax.dynamic_update_slice_in_dim(stored, new, start, axis=1)
    place = jax.vmap(lambda row, part, at: jax.lax.dynamic_update_slice_in_dim(row, part, at, 0))
    return place(stored, new, start)
