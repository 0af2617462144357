# SPDX-License-Identifier: Apache-2.0
"""Weights ↔ codes of four or eight bits with a scale a block, and the product with such weights.

Definitions:

- A projection's weights are read as published files hold them, (out, in), row by row, in blocks of
  ``BLOCK``. Where ``in`` is a multiple of it, a block is 64 consecutive inputs of one output.
- A block is stored as codes and one float32 scale, in a ``QArray`` of Qwix, which also rounds: a
  scale is the block's largest absolute value divided by the largest that a code stands for (whole
  numbers: and a half), a code is that of the nearest value.
- ``nf4`` is 4-bit NormalFloat (Dettmers et al. 2023, appendix E), ``fp8`` is float8_e4m3fn.

Shapes: ``qvalue`` [l, r, c], ``scale`` [l, r, c / 64], where r × c is out × in, or 1 × (in · out,
filled up with zeros) where blocks run across outputs.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import qwix
from jaxtyping import Array, Float, Float32
from qwix import QArray

BLOCK = 64
"""Weights that share a scale."""

SCHEMES: dict[str, Any] = {
    "nf4": "nf4",
    "int4": jnp.int4,
    "int8": jnp.int8,
    "fp8": jnp.float8_e4m3fn,
}
"""Value of ``model.quantize`` → Qwix's name of it."""

STORED: dict[str, Any] = SCHEMES | {"nf4": jnp.uint4}
"""Value of ``model.quantize`` → dtype of a code."""


def code_shape(width_in: int, width_out: int) -> tuple[int, int]:
    """Say how the weights of one projection lie as codes: (r, c)."""
    if width_in % BLOCK == 0:
        return width_out, width_in
    return 1, math.ceil(width_in * width_out / BLOCK) * BLOCK


def abstract_codes(shape: tuple[int, int, int], scheme: str) -> QArray:
    """Codes without values, for a kernel [l, in, out]."""
    layers, rows, row = shape[0], *code_shape(*shape[1:])
    codes: Any = jax.ShapeDtypeStruct((layers, rows, row), STORED[scheme])
    scales: Any = jax.ShapeDtypeStruct((layers, rows, row // BLOCK), jnp.float32)
    return QArray(codes, scales, None, SCHEMES[scheme])


def code_bytes(codes: QArray) -> int:
    """What codes and scales take in memory, where two codes of four bits share a byte."""
    name = jnp.dtype(codes.qvalue.dtype).name
    return codes.qvalue.size * (4 if name.endswith("int4") else 8) // 8 + codes.scale.size * 4


def encode(weight_oi: np.ndarray, scheme: str) -> QArray:
    """Encode one projection's weights, of any float dtype."""
    flat = np.asarray(weight_oi, np.float32).reshape(-1)
    rows, row = code_shape(weight_oi.shape[1], weight_oi.shape[0])
    flat = np.pad(flat, (0, rows * row - flat.size)) if rows * row > flat.size else flat
    return _encode(flat.reshape(rows, row), scheme)


@partial(jax.jit, static_argnums=1)
def _encode(weights_rc: Float32[Array, "r c"], scheme: str) -> QArray:
    """Round to codes; compiled, so that no distance to 16 values exists for a whole tensor."""
    return qwix.quantize(weights_rc, SCHEMES[scheme], channelwise_axes=(0,), tiled_axes={1: BLOCK})


def decode(codes: QArray, width_in: int, width_out: int) -> Float32[Array, "*l o i"]:
    """Read weights (out, in) back from their codes, float32."""
    lead = codes.shape[:-2]
    flat = qwix.dequantize(codes).reshape(*lead, -1)
    return flat[..., : width_in * width_out].reshape(*lead, width_out, width_in)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def code_product(x: Float[Array, "... i"], codes: QArray, width_out: int) -> Float[Array, "... o"]:
    """Multiply with weights of one layer that are kept as codes, in the dtype of ``x``.

    The backward pass keeps the codes and reads the weights from them again; decoded weights exist
    for one projection at a time. The codes themselves have no gradient.
    """
    weight_oi = decode(codes, x.shape[-1], width_out).astype(x.dtype)
    return jnp.einsum("...i,oi->...o", x, weight_oi)


def _forward(x: Any, codes: QArray, width_out: int) -> tuple[Any, Any]:
    # An empty part of x carries its width and dtype, which the codes do not say.
    return code_product(x, codes, width_out), (codes, x[..., :0, :])


def _backward(width_out: int, kept: Any, slope: Any) -> tuple[Any, Any]:
    codes, like = kept
    weight_oi = decode(codes, like.shape[-1], width_out).astype(like.dtype)
    return jnp.einsum("...o,oi->...i", slope, weight_oi), None


code_product.defvjp(_forward, _backward)
