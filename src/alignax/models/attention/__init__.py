# SPDX-License-Identifier: Apache-2.0
"""Queries, keys and values of packed rows → attended values: one interface, several ways.

Every way is ``attend(q_btnh, k_btkh, v_btkh, layout, window, spec) -> values_btnh`` and equals
``dense_attention``. ``window`` is a traced scalar, so layers with and without one run in one scan.
``check.py`` chooses between them.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import jax.numpy as jnp

from alignax.models.attention.dense import dense_attention, masked_attention
from alignax.models.attention.mask import GLOBAL, PLAIN, SAVED, AttentionSpec, Layout
from alignax.models.attention.tiled import tiled_attention
from alignax.shapes import TILE

__all__ = [
    "BACKENDS", "GLOBAL", "PLAIN", "SAVED", "AttentionSpec", "Layout", "dense_attention",
    "masked_attention", "tiled_attention",
]  # fmt: skip


def whole_tiles(attend: Callable[..., Any]) -> Callable[..., Any]:
    """Let rows end within a tile: what is added belongs to no segment and is cut off again."""

    @wraps(attend)
    def padded(q_btnh: Any, k_btkh: Any, v_btkh: Any, layout: Layout, *rest: Any) -> Any:
        t = q_btnh.shape[1]
        if t % TILE == 0:
            return attend(q_btnh, k_btkh, v_btkh, layout, *rest)

        def pad(values: Any) -> Any:
            return jnp.pad(values, [(0, 0), (0, -t % TILE), *[(0, 0)] * (values.ndim - 2)])

        positions, segments, branches, tiles = layout
        wider = Layout(pad(positions), pad(segments), pad(branches), tiles)
        return attend(pad(q_btnh), pad(k_btkh), pad(v_btkh), wider, *rest)[:, :t]

    return padded


def pallas_attention(*arguments: Any) -> Any:
    """Attend by the Pallas kernels.

    Only their use imports them: it takes a tenth of a second, and what a platform lacks of Pallas
    then concerns no other way.
    """
    from alignax.models.attention.flash import flash_attention

    return flash_attention(*arguments)


BACKENDS: dict[str, Callable[..., Any]] = {
    "dense": dense_attention,
    "tiled": whole_tiles(tiled_attention),
    "pallas": whole_tiles(pallas_attention),
}
"""Name → way of attending: the oracle, plain JAX, and kernels for TPUs and GPUs."""
