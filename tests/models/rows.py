# SPDX-License-Identifier: Apache-2.0
"""Shared-prefix rows made by hand for the tests of attention and decoder."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from alignax.models.attention import Layout
from alignax.shapes import TILE


class Rows(NamedTuple):
    """What ``Decoder.hidden`` takes, in its order."""

    ids: object
    positions: object
    segments: object
    branches: object
    tiles: object


def shared_prefix_rows(examples_by_row, token_count, *, vocab_size=64, seed=0, unused=3):
    """Lay examples (prompt length, answer lengths …) one after another; the rest is padding."""
    shape = (len(examples_by_row), token_count)
    ids, positions, segments, branches = (np.zeros(shape, np.int32) for _ in range(4))
    rng = np.random.default_rng(seed)
    for b, examples in enumerate(examples_by_row):
        start = 0
        for slot, (prompt, *answers) in enumerate(examples):
            for branch, length in enumerate((prompt, *answers)):
                place = slice(start, start + length)
                ids[b, place] = rng.integers(1, vocab_size, length)
                positions[b, place] = np.arange(length) + (prompt if branch else 0)
                segments[b, place] = slot + 1
                branches[b, place] = branch
                start += length
        assert start <= token_count
    tiles = live_tiles(segments, branches, unused)
    return Rows(*map(jnp.asarray, (ids, positions, segments, branches, tiles)))


def layout_of(rows):
    """What attention takes of rows."""
    return Layout(rows.positions, rows.segments, rows.branches, rows.tiles)


def slow_mask(segments, branches, positions=None, window=None):
    """The shared-prefix rule and the window, token by token: [b, q, k]."""
    segments, branches = np.asarray(segments), np.asarray(branches)
    b, t = segments.shape
    mask = np.zeros((b, t, t), bool)
    for row, q in np.ndindex(b, t):
        for k in range(q + 1):
            same = segments[row, q] == segments[row, k] > 0
            near = window is None or positions[row, q] - positions[row, k] < window
            mask[row, q, k] = same and near and branches[row, k] in (0, branches[row, q])
    return mask


def live_tiles(segments, branches, unused):
    """List the tile pairs with an allowed (q, k); ``unused`` entries follow the longest list."""
    b, t = segments.shape
    q, k = (slice(None), slice(None), None), (slice(None), None)
    mask = (segments[q] == segments[k]) & (segments[q] > 0) & np.tri(t, dtype=bool)
    mask &= (branches[k] == 0) | (branches[k] == branches[q])
    blocks = mask.reshape(b, t // TILE, TILE, t // TILE, TILE).any((2, 4))
    pairs = [np.argwhere(live) for live in blocks]
    tiles = np.full((b, max(map(len, pairs)) + unused, 2), -1, np.int32)
    for row, found in zip(tiles, pairs, strict=True):
        row[: len(found)] = found
    return tiles
