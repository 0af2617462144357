# SPDX-License-Identifier: Apache-2.0
"""The building blocks of a decoder layer.

Every parameter of a layer carries a leading layer axis ``l``; the decoder scans over it and hands
each block its own slice, so a block's code never sees the axis.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float
from qwix import QArray

from alignax.models.codes import abstract_codes, code_product, decode
from alignax.models.config import DecoderConfig
from alignax.models.rotary import rotate


class DropoutKey(NamedTuple):
    """The random key of an adapter's dropout, and whether anything is dropped.

    The switch may be traced, so that one compiled program serves both cases.
    """

    key: Any
    on: Any = True

    def fold(self, index: Any) -> "DropoutKey":
        """Derive the key of one layer."""
        return self._replace(key=jax.random.fold_in(self.key, index))


CODED = "coded_product"
"""Name of the products with weights that are kept as codes, for ``jax.checkpoint``."""


class LoRAParam(nnx.Variable):
    """A low-rank adapter matrix; separate from ``nnx.Param`` so that it can be split off."""


def along_last(vector: Float[Array, " d"], like: Float[Array, "... d"]) -> Float[Array, "... d"]:
    """Give a vector the leading axes of another array, each of size one."""
    return vector.reshape((1,) * (like.ndim - 1) + vector.shape)


class Linear(nnx.Module):
    """A projection ``x W (+ bias) (+ scale · x A B)``.

    Attributes:
        shape: (l, in, out).
        scheme: Key of ``models.codes.SCHEMES``, or None for plain weights.
        kernel: [l, in, out], or the codes of such weights (``models.codes``).
        bias: [l, out], or None.
        lora_a: [l, in, r], or None without an adapter; float32.
        lora_b: [l, r, out], or None; float32.
        lora_scale: ``LoraSpec.scale``.
        lora_dropout: Dropout on the adapter's input, when a key is given.
    """

    def __init__(self, layers: int, width_in: int, width_out: int, *, bias: bool, dtype: Any):
        """Allocate zeros; ``random_model`` or the loader fills them."""
        self.shape = (layers, width_in, width_out)
        self.scheme: str | None = None
        self.kernel = nnx.Param(jnp.zeros(self.shape, dtype))
        self.bias = nnx.Param(jnp.zeros((layers, width_out), dtype)) if bias else None
        self.lora_a: LoRAParam | None = nnx.data(None)
        self.lora_b: LoRAParam | None = nnx.data(None)
        self.lora_scale = 1.0
        self.lora_dropout = 0.0

    def __call__(self, x: Float[Array, "... i"], adapter: bool, key: Any) -> Float[Array, "... o"]:
        """Project; the adapter works in float32 whatever the base's dtype."""
        y = self._product(x)
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

    def _product(self, x: Float[Array, "... i"]) -> Float[Array, "... o"]:
        """Multiply with the base's weights of one layer."""
        if self.scheme is None:
            return x @ self.kernel[...]
        y = code_product(x, self.codes, self.shape[2])
        # A policy of what to keep sees no products within this one.
        return checkpoint_name(y, CODED)

    @property
    def codes(self) -> QArray:
        """What the kernel is where a scheme is named."""
        codes = self.kernel.get_value()
        assert isinstance(codes, QArray)
        return codes

    def keep_codes(self, scheme: str) -> None:
        """Make room for codes, without values, in place of the weights."""
        self.scheme = scheme
        self.kernel = nnx.Param(abstract_codes(self.shape, scheme))

    def weights(self) -> Float[Array, "l i o"]:
        """The base's weights; read back from codes they are float32."""
        if self.scheme is None:
            return self.kernel[...]
        return decode(self.codes, *self.shape[1:]).swapaxes(1, 2)

    def keep_weights(self, weights_lio: Float[Array, "l i o"]) -> None:
        """Take plain weights in place of what there was."""
        self.scheme = None
        self.kernel = nnx.Param(weights_lio)


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

    def __init__(self, shape: tuple[int, ...], config: DecoderConfig, dtype: Any):
        """Start at a factor of one; ``shape`` is [l, d], or [d] outside the layers."""
        self.scale = nnx.Param(jnp.full(shape, 1.0 - config.norm_offset, dtype))
        self.eps = config.norm_eps
        self.offset = config.norm_offset

    def __call__(self, x: Float[Array, "... d"]) -> Float[Array, "... d"]:
        """Normalise the last axis."""
        wide = x.astype(jnp.float32)
        scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1) + self.eps)
        # As a product, because the gradient of a broadcast is a sum over d, which XLA computes
        # twenty times slower on CPUs than the same sum as a product.
        wide = jnp.einsum("...d,...->...d", wide, scale, precision=jax.lax.Precision.HIGHEST)
        if self.offset:
            factor = self.scale[...].astype(jnp.float32) + self.offset
            return (wide * along_last(factor, x)).astype(x.dtype)
        return wide.astype(x.dtype) * along_last(self.scale[...], x)


ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "silu": jax.nn.silu,
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": partial(jax.nn.gelu, approximate=True),
}
"""Value of ``DecoderConfig.activation`` → function."""


def projection(config: DecoderConfig, name: str, dtype: Any) -> Linear:
    """Allocate one of ``DecoderConfig.projections`` in all layers."""
    widths = config.projections[name]
    return Linear(config.layer_count, *widths, bias=config.has_bias(name), dtype=dtype)


class Attention(nnx.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, config: DecoderConfig, dtype: Any):
        """Allocate the four projections, and the norms of queries and keys if there are any."""
        self.q_proj = projection(config, "q_proj", dtype)
        self.k_proj = projection(config, "k_proj", dtype)
        self.v_proj = projection(config, "v_proj", dtype)
        self.o_proj = projection(config, "o_proj", dtype)
        self.head_dim = config.head_dim
        self.qk_norm = config.qk_norm
        norms: list[Any] = [
            RMSNorm((config.layer_count, width), config, dtype)
            if config.qk_norm
            else nnx.data(None)
            for width in self._normed_widths(config)
        ]
        self.q_norm, self.k_norm = norms

    @staticmethod
    def _normed_widths(config: DecoderConfig) -> tuple[int, int]:
        """Entries that the norms of queries and of keys see at one time."""
        if config.qk_norm == "head":
            return config.head_dim, config.head_dim
        return config.head_count * config.head_dim, config.kv_head_count * config.head_dim

    def __call__(
        self, x: Float[Array, "b t d"], rotary: Any, attend: Callable[..., Any], adapter: bool,
        key: Any,
    ) -> tuple[Float[Array, "b t d"], Any]:  # fmt: skip
        """Project, norm, rotate, ``attend(q, k, v) → (values, memory)``, project."""
        b, t, _ = x.shape
        q_key, k_key, v_key, o_key = split_key(key, 4)
        q, k = self.q_proj(x, adapter, q_key), self.k_proj(x, adapter, k_key)
        if self.qk_norm == "width":
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = (y.reshape(b, t, -1, self.head_dim) for y in (q, k))
        if self.qk_norm == "head":
            q, k = self.q_norm(q), self.k_norm(k)
        v = self.v_proj(x, adapter, v_key).reshape(b, t, -1, self.head_dim)
        with jax.named_scope("attention"):
            values, memory = attend(rotate(q, *rotary), rotate(k, *rotary), v)
        return self.o_proj(values.reshape(b, t, -1), adapter, o_key), memory


class GatedMLP(nnx.Module):
    """``down(activation(gate(x)) · up(x))`` (Shazeer 2020)."""

    def __init__(self, config: DecoderConfig, dtype: Any):
        """Allocate the three projections."""
        self.gate_proj = projection(config, "gate_proj", dtype)
        self.up_proj = projection(config, "up_proj", dtype)
        self.down_proj = projection(config, "down_proj", dtype)
        self.activation = config.activation

    def __call__(self, x: Float[Array, "b t d"], adapter: bool, key: Any) -> Float[Array, "b t d"]:
        """Apply the MLP."""
        gate_key, up_key, down_key = split_key(key, 3)
        gate = ACTIVATIONS[self.activation](self.gate_proj(x, adapter, gate_key))
        return self.down_proj(gate * self.up_proj(x, adapter, up_key), adapter, down_key)


def split_key(key: Any, count: int) -> Any:
    """Split a dropout key, or pass None on."""
    if key is None:
        return (None,) * count
    return tuple(DropoutKey(part, key.on) for part in jax.random.split(key.key, count))
