# SPDX-License-Identifier: Apache-2.0
"""A decoder → the same decoder with the projections of its layers kept as codes.

Embeddings, norms, biases, the output head and adapters stay as they are: they are a small share of
a model of useful size, and what they lose in precision every token would feel.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from qwix import QArray

from alignax.errors import ModelError
from alignax.models.codes import BLOCK, code_bytes, encode
from alignax.models.config import DecoderConfig
from alignax.models.decoder import Decoder
from alignax.models.layers import Linear


@dataclass(frozen=True)
class Quantised:
    """What was kept as codes.

    Attributes:
        scheme: Key of ``SCHEMES``.
        tensors: Weight matrices, one a projection and layer.
        weights: Entries of them.
        bytes: What codes and scales take.
    """

    scheme: str
    tensors: int
    weights: int
    bytes: int

    def __str__(self) -> str:
        """Say it in one line."""
        saved = (4 * self.weights - self.bytes) / 2**20
        return (
            f"model.quantize {self.scheme}: {self.tensors} weight matrices in blocks of {BLOCK}, "
            f"{self.bytes / self.weights:.4f} bytes a weight; "
            f"{saved:,.1f} MiB less than in float32"
        )


def require_dense(config: DecoderConfig, scheme: str) -> None:
    """Refuse what cannot be quantised.

    Raises:
        ModelError: The decoder is a mixture of experts.
    """
    if config.experts is not None:
        raise ModelError(
            f"model.quantize {scheme}: {config.family} is a mixture of {config.experts.count} "
            "experts, whose weights cannot be quantised yet",
            hint="leave model.quantize out; model.dtype bfloat16 halves the base",
        )


def keep_codes(model: Decoder, scheme: str) -> dict[str, Linear]:
    """Make room for codes in place of every projection's kernel; they have no values yet.

    Returns:
        Dotted path of each kernel that is no more → its projection.

    Raises:
        ModelError: The decoder has none, or is a mixture of experts.
    """
    require_dense(model.config, scheme)
    found = {
        ".".join(map(str, (*path, "kernel"))): module
        for path, module in nnx.iter_graph(model)
        if isinstance(module, Linear)
    }
    if not found:
        raise ModelError(f"model.quantize {scheme}: the model has no projections to quantise")
    for linear in found.values():
        linear.keep_codes(scheme)
    return found


def encode_layers(linear: Linear, weights: Iterable[tuple[str, np.ndarray]]) -> QArray:
    """Encode one projection, layer after layer.

    Args:
        linear: Says the scheme.
        weights: Each layer's name and weights (out, in); one layer's exist at a time.

    Raises:
        ModelError: Some weights are not finite.
    """
    layers = []
    for name, weight_oi in weights:
        # A sum, because XLA's largest value on CPUs may pass over NaN.
        with np.errstate(invalid="ignore"):
            finite = math.isfinite(weight_oi.sum(dtype=np.float64))
        if not finite:
            raise ModelError(
                f"tensor {name} has weights that are not finite, which no scale fits",
                hint="fetch or export the model again",
            )
        layers.append(encode(weight_oi, str(linear.scheme)))
    return jax.tree.map(lambda *parts: jnp.stack(parts), *layers)


def describe(linears: Iterable[Linear]) -> Quantised:
    """Count what is kept as codes."""
    linears = list(linears)
    return Quantised(
        scheme=str(linears[0].scheme),
        tensors=sum(linear.shape[0] for linear in linears),
        weights=sum(math.prod(linear.shape) for linear in linears),
        bytes=sum(code_bytes(linear.codes) for linear in linears),
    )
