# SPDX-License-Identifier: Apache-2.0
"""Asked-for way of attending + this machine → the way that is used, checked against the oracle.

A compiled kernel is only as good as the compiler and device it meets. Before its first use it
computes values and gradients of a small random problem, in rows as long as the run's, and dense
attention computes the same; if they differ, or the kernel does not compile, ``tiled`` is used.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from alignax.errors import UsageError
from alignax.models.attention import BACKENDS
from alignax.models.attention.dense import dense_attention
from alignax.models.attention.mask import Layout, Marks, allowed
from alignax.models.config import DecoderConfig
from alignax.shapes import TILE

FAST: dict[str, Callable[[int], bool]] = {
    "tpu": lambda head_dim: head_dim % 8 == 0,
    "gpu": lambda head_dim: head_dim >= 16 and head_dim & (head_dim - 1) == 0,
}
"""Platform that has the ``pallas`` kernels → whether they take heads of a width."""

TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2}
"""Largest difference from the oracle, as a share of its largest entry."""

TILES = 3
"""Tiles of the small problem."""


@dataclass(frozen=True)
class Use:
    """How attention will be used.

    Attributes:
        config: The decoder's shape.
        dtype: Dtype of queries, keys and values.
        tokens: Length of a row; a multiple of ``TILE``.
        rows: Rows of a micro-batch.
        place: Puts [b, t, heads, h] arrays where the run will have them.
    """

    config: DecoderConfig
    dtype: str
    tokens: int
    rows: int = 1
    place: Callable[[Any], Any] = jnp.asarray


def choose_attention(name: str, platform: str, head_dim: int) -> str:
    """Resolve ``auto``, and refuse what this machine cannot do.

    Raises:
        UsageError: The name is unknown, or the platform or the shape rules it out.
    """
    takes = FAST.get(platform)
    if name == "auto":
        return "pallas" if takes is not None and takes(head_dim) else "tiled"
    if name not in BACKENDS:
        raise UsageError(
            f"model.attention {name!r} is unknown", hint=f"use auto, {', '.join(BACKENDS)}"
        )
    if name == "pallas" and takes is None:
        raise UsageError(
            f"model.attention pallas needs {' or '.join(FAST)}, this machine has {platform}",
            hint="leave model.attention at auto",
        )
    if name == "pallas" and takes is not None and not takes(head_dim):
        raise UsageError(
            f"model.attention pallas does not take heads of width {head_dim} on {platform}",
            hint="leave model.attention at auto",
        )
    return name


def settle_attention(name: str, platform: str, use: Use) -> tuple[str, str | None]:
    """Choose the way of attending and check it if it is a compiled kernel.

    Returns:
        The way, and why it is not the chosen one (None if it is).

    Raises:
        UsageError: As ``choose_attention``.
    """
    chosen = choose_attention(name, platform, use.config.head_dim)
    if chosen != "pallas":
        return chosen, None
    cause = fault(BACKENDS[chosen], use)
    if cause is None:
        return chosen, None
    return "tiled", f"{chosen} attention is not used on this {platform}, tiled instead: {cause}"


def fault(attend: Callable[..., Any], use: Use) -> str | None:
    """Compare a way of attending with ``dense_attention``; returns what is wrong, or None."""
    small = TILES * TILE
    tokens = max(use.tokens, small)
    layout = small_layout(use.rows)
    tensors = [_random(use, seed) for seed in range(4)]
    windows = [w for w in use.config.windows if w is not None]
    window = jnp.int32(min(*windows, TILE + 5)) if windows else None
    longer = [(0, 0), (0, tokens - small)]
    positions, segments, branches = (np.pad(x, longer) for x in layout[:3])
    wide = Layout(positions, segments, branches, layout.tiles)
    placed = [use.place(np.pad(x, [*longer, (0, 0), (0, 0)])) for x in tensors]
    try:
        got = jax.device_get(_values_and_gradients(attend, placed, wide, window, use))
    except Exception as error:  # whatever a compiler or a device may raise; the notice names it
        text = str(error).strip() or "no message"
        return f"{type(error).__name__}: {text.splitlines()[0][:300]}"
    with jax.default_matmul_precision("highest"):
        want = jax.device_get(_values_and_gradients(dense_attention, tensors, layout, window, use))
    for what, one, other in zip(("values", "dq", "dk", "dv"), got, want, strict=True):
        one, other = one.astype(np.float32), other.astype(np.float32)
        error = np.abs(one - np.pad(other, [*longer, (0, 0), (0, 0)])).max()
        if not error <= TOLERANCE[use.dtype] * np.abs(other).max():
            return f"{what} differ by {error:.2g} from the oracle's, of {np.abs(other).max():.2g}"
    return None


def small_layout(rows: int) -> Layout:
    """Lay out rows that have all that a mask may meet: several examples, branches, padding."""
    lengths = [(150, 40, 30), (60, 20, 25), (9, 1, 2)]
    segments, branches, positions = (np.zeros((rows, TILES * TILE), np.int32) for _ in range(3))
    start = 0
    for slot, (prompt, *answers) in enumerate(lengths, 1):
        for branch, length in enumerate((prompt, *answers)):
            place = np.s_[:, start : start + length]
            segments[place], branches[place] = slot, branch
            positions[place] = np.arange(length) + (prompt if branch else 0)
            start += length
    index = np.arange(TILES * TILE)
    marks = Marks(index, positions[0], segments[0], branches[0])
    live = np.asarray(allowed(marks, marks)).reshape(TILES, TILE, TILES, TILE).any((1, 3))
    tiles = np.tile(np.argwhere(live).astype(np.int32), (rows, 1, 1))
    return Layout(positions, segments, branches, tiles)


def _random(use: Use, seed: int) -> Any:
    """Draw queries, keys, values and the gradient of the values (seeds 0 to 3)."""
    config = use.config
    heads = config.kv_head_count if seed in (1, 2) else config.head_count
    shape = (use.rows, TILES * TILE, heads, config.head_dim)
    drawn = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return drawn.astype(jnp.dtype(use.dtype))


def _values_and_gradients(
    attend: Callable[..., Any], tensors: Any, layout: Layout, window: Any, use: Use
) -> Any:
    """Run forward and backward in one compiled program."""

    def run(q: Any, k: Any, v: Any, grad: Any, layout: Layout, window: Any) -> Any:
        spec = use.config.attention
        values, pull = jax.vjp(lambda *x: attend(*x, layout, window, spec), q, k, v)
        return values, *pull(grad)

    return jax.jit(run)(*tensors, layout, window)
