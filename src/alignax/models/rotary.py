# SPDX-License-Identifier: Apache-2.0
"""Positions → cosines and sines of rotary embedding (Su et al. 2021), for every kind of layer.

Layers may differ in how they rotate: by another base where they see a window only, or not at all.
Each way is one table; layers choose by a scanned index, so the program does not grow with depth.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from alignax.models.config import DecoderConfig, RopeScaling


def rotary_tables(
    config: DecoderConfig, positions_bt: Int[Array, "b t"], lengths_bt: Any
) -> tuple[Any, Int[Array, " l"] | None]:
    """Compute what the layers rotate by.

    Args:
        config: Shape of the decoder.
        positions_bt: Positions, none negative.
        lengths_bt: Length of each token's sequence; read only where frequencies depend on it.

    Returns:
        (cosines, sines), and None; where layers differ, both have a leading axis of tables, and the
        second result is each layer's place on it.
    """
    width = config.rotary_dim or config.head_dim
    tables = [
        rotary_angles(positions_bt, width, config.rope_theta, config.rope_scaling, lengths_bt)
    ]
    places = [0] * config.layer_count
    if config.local_rope_theta is not None:
        tables.append(rotary_angles(positions_bt, width, config.local_rope_theta, None))
        places = [int(window is not None) for window in config.windows]
    if not all(config.rotary_layers):
        ones = jnp.ones_like(tables[0][0])
        tables.append((ones, jnp.zeros_like(ones)))
        still = len(tables) - 1
        turning = zip(places, config.rotary_layers, strict=True)
        places = [place if turns else still for place, turns in turning]
    if len(tables) == 1:
        return tables[0], None
    cos, sin = (jnp.stack(parts) for parts in zip(*tables, strict=True))
    return (cos, sin), jnp.array(places, jnp.int32)


def example_lengths(
    config: DecoderConfig, positions_bt: Int[Array, "b t"], segments_bt: Int[Array, "b t"]
) -> Int[Array, "b t"] | None:
    """Length of the example that each token of a packed row belongs to, with its longest answer.

    None where frequencies do not depend on it.
    """
    if config.rope_scaling is None or not config.rope_scaling.by_length:
        return None
    count = positions_bt.shape[1] + 1
    longest = jax.vmap(partial(jax.ops.segment_max, num_segments=count))(positions_bt, segments_bt)
    return jnp.take_along_axis(longest, segments_bt, axis=1) + 1


def rotary_angles(
    positions_bt: Int[Array, "b t"],
    width: int,
    theta: float,
    scaling: RopeScaling | None,
    lengths_bt: Any = None,
) -> tuple[Float[Array, "b t e"], Float[Array, "b t e"]]:
    """Compute float32 cosines and sines, one pair of dims each."""
    inverse = theta ** (-jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    if scaling is not None and scaling.by_length:
        inverse = frequencies_by_length(inverse, theta, scaling, lengths_bt)
    elif scaling is not None:
        inverse = scaled_frequencies(inverse, scaling, theta)[None, None]
    else:
        inverse = inverse[None, None]
    angles = positions_bt[..., None].astype(jnp.float32) * inverse
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    if scaling is None or scaling.magnitude == 1.0:
        return cos, sin
    return cos * scaling.magnitude, sin * scaling.magnitude


def scaled_frequencies(
    inverse: Float[Array, " e"], scaling: RopeScaling, theta: float
) -> Float[Array, " e"]:
    """Stretch rotary frequencies, the same for all sequences."""
    if scaling.kind == "linear":
        return inverse / scaling.factor
    if scaling.kind == "yarn":
        keep = yarn_kept(2 * inverse.shape[0], scaling, theta)
    else:
        wavelength = 2 * math.pi / inverse
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        keep = jnp.clip((scaling.original_positions / wavelength - low) / (high - low), 0, 1)
    return (1 - keep) * inverse / scaling.factor + keep * inverse


def yarn_kept(width: int, scaling: RopeScaling, theta: float) -> Float[Array, " e"]:
    """Share of each frequency that YaRN keeps: 1 for the fast ones, 0 for the slow ones."""

    def place(turns: float) -> float:
        """Dimension whose frequency makes so many turns within the original length."""
        ratio = scaling.original_positions / (turns * 2 * math.pi)
        return width * math.log(ratio) / (2 * math.log(theta))

    low, high = place(scaling.beta_fast), place(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    steps = jnp.arange(width // 2, dtype=jnp.float32)
    # A passage of no width would divide by zero; published code widens it by this much.
    return 1 - jnp.clip((steps - low) / ((high - low) or 0.001), 0, 1)


def frequencies_by_length(
    inverse: Float[Array, " e"], theta: float, scaling: RopeScaling, lengths_bt: Int[Array, "b t"]
) -> Float[Array, "b t e"]:
    """Stretch rotary frequencies by what a token's sequence is long."""
    length_bt1 = lengths_bt[..., None]
    original = scaling.original_positions
    if scaling.kind == "longrope":
        long, short = (jnp.asarray(x) for x in (scaling.long_factors, scaling.short_factors))
        beyond = length_bt1 > original
        return inverse[None, None] / jnp.where(beyond, long[None, None], short[None, None])
    width = 2 * inverse.shape[0]
    ratio = jnp.maximum(length_bt1, original).astype(jnp.float32) / original
    growth = (scaling.factor * ratio - (scaling.factor - 1)) ** (width / (width - 2))
    exponent = -jnp.arange(0, width, 2, dtype=jnp.float32) / width
    return (theta * growth) ** exponent[None, None]


def rotate(
    x_btnh: Float[Array, "b t n h"], cos_bte: Float[Array, "b t e"], sin_bte: Float[Array, "b t e"]
) -> Float[Array, "b t n h"]:
    """Rotate the two halves of each head (of its leading 2 e entries) against each other."""
    width = 2 * cos_bte.shape[-1]
    if width < x_btnh.shape[-1]:
        turned = rotate(x_btnh[..., :width], cos_bte, sin_bte)
        return jnp.concatenate([turned, x_btnh[..., width:]], axis=-1)
    first, second = jnp.split(x_btnh.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos_bte[:, :, None], sin_bte[:, :, None]
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x_btnh.dtype)
