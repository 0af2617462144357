# SPDX-License-Identifier: Apache-2.0
"""Marks of a packed row's tokens → who may attend to whom, and what a score is.

Query token q may attend to key token k iff both have the same segment, k ≤ q in the row, the key's
branch is 0 (prompt) or the query's own, and, in a layer with a window, position(q) - position(k) is
below the window. The window is decided on positions, never on places in the row: both answers
of a pair follow the prompt, wherever they lie.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from alignax.shapes import TILE

MASKED = -1e30
"""Finite, so that a fully masked row gives zeros and not NaN."""

FLOOR = -1e29
"""Least peak of a row's scores: far above ``MASKED``, so that masked scores weigh exactly 0."""

SAVED = "attention"
"""Name under which a checkpoint policy keeps what the backward pass of attention by tiles needs."""

GLOBAL = 2**30
"""A window that no position leaves: how a layer without one reads among layers with one."""


@dataclass(frozen=True)
class AttentionSpec:
    """What a model family does to the scores; the same in all its layers.

    Attributes:
        scale: Factor of query · key; None for 1 / √(width of a head).
        soft_cap: Scores become cap · tanh(score / cap) before the mask (Gemma 2); None for none.
    """

    scale: float | None = None
    soft_cap: float | None = None

    def scale_of(self, head_dim: int) -> float:
        """Factor of query · key."""
        return head_dim**-0.5 if self.scale is None else self.scale

    def capped(self, scores: Any) -> Any:
        """Cap scaled scores."""
        return scores if self.soft_cap is None else self.soft_cap * jnp.tanh(scores / self.soft_cap)

    def through_cap(self, gradient: Any, capped: Any) -> Any:
        """Turn a gradient of capped scores into one of scaled scores: times 1 - (capped / cap)²."""
        return gradient if self.soft_cap is None else gradient * (1 - (capped / self.soft_cap) ** 2)


PLAIN = AttentionSpec()
"""Scaled by the width of a head, not capped."""


class Layout(NamedTuple):
    """What attention must know of packed rows (fields of ``PackedBatch``).

    Attributes:
        positions: [b, t] positions.
        segments: [b, t] 1 + slot of the example; 0 in padding.
        branches: [b, t] 0 for a prompt, 1 … for answers.
        tiles: [b, m, 2] live pairs (query tile, key tile) of ``TILE`` tokens; negative: unused.
    """

    positions: Any
    segments: Any
    branches: Any
    tiles: Any


class Marks(NamedTuple):
    """Integers along the last axis that decide whether a token may see another."""

    index: Any
    position: Any
    segment: Any
    branch: Any


def row_marks(layout: Layout) -> Marks:
    """Marks of whole rows: [1 or b, t] each."""
    index = jnp.arange(layout.segments.shape[-1])[None]
    return Marks(index, layout.positions, layout.segments, layout.branches)


def allowed(query: Marks, key: Marks, window: Any = None) -> Bool[Array, "..."]:
    """Evaluate the rule for all (query, key) of the last axes: [..., q, k].

    Args:
        query: Marks of the queries.
        key: Marks of the keys.
        window: Scalar: how far back a query sees, itself included; None for no limit.
    """
    q, k = (..., slice(None), None), (..., None, slice(None))
    same = (query.segment[q] == key.segment[k]) & (query.segment[q] > 0)
    before = key.index[k] <= query.index[q]
    branch = (key.branch[k] == 0) | (key.branch[k] == query.branch[q])
    rule = same & before & branch
    return rule if window is None else rule & (query.position[q] - key.position[k] < window)


def tiles_within(layout: Layout, window: Int[Array, ""] | None) -> Int[Array, "b m 2"]:
    """Drop listed tile pairs that lie wholly outside the window, and close the gaps.

    A pair stays if its smallest query position and its largest key position are within reach,
    so some pairs stay in which nothing is allowed; the mask decides.
    """
    tiles = layout.tiles
    if window is None:
        return tiles
    by_tile = layout.positions.reshape(tiles.shape[0], -1, TILE)
    query, key = jnp.maximum(tiles, 0).transpose(2, 0, 1)
    first = jnp.take_along_axis(by_tile.min(-1), query, axis=1)
    last = jnp.take_along_axis(by_tile.max(-1), key, axis=1)
    dead = (tiles[..., 0] < 0) | (first - last >= window)
    order = jnp.argsort(dead, axis=1, stable=True)
    kept = jnp.where(dead[..., None], -1, tiles)
    return jnp.take_along_axis(kept, order[..., None], axis=1)
