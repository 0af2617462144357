# SPDX-License-Identifier: Apache-2.0
"""The building blocks of a decoder layer.

Every parameter of a layer carries a leading layer axis ``l``; the decoder scans over it and hands
each block its own slice, so a block's code never sees the axis.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from alignax.models.config import DecoderConfig, RopeScaling


class DropoutKey(NamedTuple):
    """The random key of an adapter's dropout, and whether anything is dropped.

    The switch may be traced, so that one compiled program serves both cases.
    """

    key: Any
    on: Any = True

    def fold(self, index: Any) -> "DropoutKey":
        """Derive the key of one layer."""
        return self._replace(key=jax.random.fold_in(self.key, index))


class LoRAParam(nnx.Variable):
    """A low-rank adapter matrix; separate from ``nnx.Param`` so that it can be split off."""


def along_last(vector: Float[Array, " d"], like: Float[Array, "... d"]) -> Float[Array, "... d"]:
    """Give a vector the leading axes of another array, each of size one."""
    return vector.reshape((1,) * (like.ndim - 1) + vector.shape)


class Linear(nnx.Module):
    """A projection ``x W (+ bias) (+ scale · x A B)``.

    Attributes:
        kernel: [l, in, out].
        bias: [l, out], or None.
        lora_a: [l, in, r], or None without an adapter; float32.
        lora_b: [l, r, out], or None; float32.
        lora_scale: alpha / rank.
        lora_dropout: Dropout on the adapter's input, when a key is given.
    """

    def __init__(self, layers: int, width_in: int, width_out: int, *, bias: bool, dtype: Any):
        """Allocate zeros; ``random_model`` or the loader fills them."""
        self.kernel = nnx.Param(jnp.zeros((layers, width_in, width_out), dtype))
        self.bias = nnx.Param(jnp.zeros((layers, width_out), dtype)) if bias else None
        self.lora_a: LoRAParam | None = nnx.data(None)
        self.lora_b: LoRAParam | None = nnx.data(None)
        self.lora_scale = 1.0
        self.lora_dropout = 0.0

    def __call__(self, x: Float[Array, "... i"], adapter: bool, key: Any) -> Float[Array, "... o"]:
        """Project; the adapter works in float32 whatever the base's dtype."""
        y = x @ self.kernel[...]
        if self.bias is not None:
            y = y + along_last(self.bias[...], y)
        if not adapter or self.lora_a is None or self.lora_b is None:
            return y
        z = x.astype(jnp.float32)
        if key is not None and self.lora_dropout > 0:
            kept = kept_entries(key.key, z.shape, self.lora_dropout)
            dropped = jnp.where(kept, z / (1.0 - self.lora_dropout), 0.0)
            z = jnp.where(key.on, dropped, z)
        update = (z @ self.lora_a[...]) @ self.lora_b[...]
        return y + (self.lora_scale * update).astype(y.dtype)


def kept_entries(key: Any, shape: tuple[int, ...], rate: float) -> Bool[Array, "..."]:
    """Draw which entries survive dropout, each with probability 1 - rate.

    Two random words from the key, then a 32-bit integer hash (Wellons 2018) of each entry's index:
    far cheaper on a CPU than a counter-based generator for each entry, which would be felt in the
    time of a step; and the same on any number of devices.
    """
    first, second = jax.random.bits(key, (2,), jnp.uint32)
    x = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape) + first
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B) + second
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16) >= jnp.uint32(round(rate * 2**32))


class RMSNorm(nnx.Module):
    """Root-mean-square norm (Zhang & Sennrich 2019), computed in float32."""

    def __init__(self, shape: tuple[int, ...], eps: float, dtype: Any):
        """Allocate ones; ``shape`` is [l, d], or [d] outside the layers."""
        self.scale = nnx.Param(jnp.ones(shape, dtype))
        self.eps = eps

    def __call__(self, x: Float[Array, "... d"]) -> Float[Array, "... d"]:
        """Normalise the last axis."""
        wide = x.astype(jnp.float32)
        scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1) + self.eps)
        # As a product, because the gradient of a broadcast is a sum over d, which XLA computes
        # twenty times slower on CPUs than the same sum as a product.
        wide = jnp.einsum("...d,...->...d", wide, scale, precision=jax.lax.Precision.HIGHEST)
        return wide.astype(x.dtype) * along_last(self.scale[...], x)


class GatedMLP(nnx.Module):
    """``down(silu(gate(x)) · up(x))`` (Shazeer 2020)."""

    def __init__(self, config: DecoderConfig, dtype: Any):
        """Allocate the three projections."""

        def linear(name: str) -> Linear:
            return Linear(
                config.layer_count, *config.projections[name], bias=config.mlp_bias, dtype=dtype
            )

        self.gate_proj = linear("gate_proj")
        self.up_proj = linear("up_proj")
        self.down_proj = linear("down_proj")

    def __call__(self, x: Float[Array, "b t d"], adapter: bool, key: Any) -> Float[Array, "b t d"]:
        """Apply the MLP."""
        gate_key, up_key, down_key = split_key(key, 3)
        gate = jax.nn.silu(self.gate_proj(x, adapter, gate_key))
        return self.down_proj(gate * self.up_proj(x, adapter, up_key), adapter, down_key)


def split_key(key: Any, count: int) -> Any:
    """Split a dropout key, or pass None on."""
    if key is None:
        return (None,) * count
    return tuple(DropoutKey(part, key.on) for part in jax.random.split(key.key, count))


def rotary_angles(
    positions_bt: Int[Array, "b t"], head_dim: int, theta: float, scaling: RopeScaling | None
) -> tuple[Float[Array, "b t e"], Float[Array, "b t e"]]:
    """Cosines and sines of rotary embedding (Su et al. 2021), float32, one pair of dims each."""
    inverse = theta ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    if scaling is not None:
        inverse = scaled_frequencies(inverse, scaling)
    angles = positions_bt[..., None].astype(jnp.float32) * inverse[None, None]
    return jnp.cos(angles), jnp.sin(angles)


def scaled_frequencies(inverse: Float[Array, " e"], scaling: RopeScaling) -> Float[Array, " e"]:
    """Stretch rotary frequencies for contexts longer than those of pre-training."""
    if scaling.kind == "linear":
        return inverse / scaling.factor
    wavelength = 2 * math.pi / inverse
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    smooth = (scaling.original_positions / wavelength - low) / (high - low)
    mixed = (1 - smooth) * inverse / scaling.factor + smooth * inverse
    return jnp.where(smooth <= 0, inverse / scaling.factor, jnp.where(smooth >= 1, inverse, mixed))


def rotate(
    x_btnh: Float[Array, "b t n h"], cos_bte: Float[Array, "b t e"], sin_bte: Float[Array, "b t e"]
) -> Float[Array, "b t n h"]:
    """Rotate the two halves of each head against each other."""
    first, second = jnp.split(x_btnh.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos_bte[:, :, None], sin_bte[:, :, None]
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x_btnh.dtype)
