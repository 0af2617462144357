# SPDX-License-Identifier: Apache-2.0
"""A decoder → the same decoder with low-rank adapters, and back (Hu et al. 2021).

An adapted projection computes ``x W + (alpha / rank) · dropout(x) A B`` with A drawn at random and
B zero, so a fresh adapter changes nothing. Tensor names outside are PEFT's.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from alignax.errors import ModelError, UsageError
from alignax.models.decoder import Decoder
from alignax.models.layers import GatedMLP, Linear, LoRAParam

BLOCKS = {
    "q_proj": "self_attn", "k_proj": "self_attn", "v_proj": "self_attn", "o_proj": "self_attn",
    "gate_proj": "mlp", "up_proj": "mlp", "down_proj": "mlp",
}  # fmt: skip
"""Projection → the block that holds it in published checkpoints."""


@dataclass(frozen=True)
class LoraSpec:
    """Shape of an adapter.

    Attributes:
        rank: Width of the low-rank update.
        alpha: The update is scaled by alpha / rank.
        dropout: Dropout on the adapter's input while training.
        targets: Projection names, or ``"all-linear"``.
        rslora: Scaled by alpha / √rank instead, so that a high rank learns as fast as a low one
            (Kalajdzievski 2023).
    """

    rank: int
    alpha: float
    dropout: float
    targets: tuple[str, ...] | Literal["all-linear"]
    rslora: bool = False

    @property
    def scale(self) -> float:
        """Factor of the update."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)

    @property
    def names(self) -> tuple[str, ...]:
        """The projections by name."""
        return tuple(BLOCKS) if self.targets == "all-linear" else tuple(self.targets)


def projections(model: Decoder) -> dict[str, Linear]:
    """Every stacked projection of a decoder by its published name; experts are none."""
    blocks: dict[str, nnx.Module] = {"self_attn": model.layers.attention}
    if isinstance(model.layers.mlp, GatedMLP):
        blocks["mlp"] = model.layers.mlp
    return {name: getattr(blocks[block], name) for name, block in BLOCKS.items() if block in blocks}


def adapted(model: Decoder) -> dict[str, Linear]:
    """The projections that carry an adapter."""
    return {n: p for n, p in projections(model).items() if p.lora_a is not None}


def add_lora(model: Decoder, spec: LoraSpec, *, key: jax.Array) -> None:
    """Give the target projections a fresh adapter: A uniform as PEFT draws it, B zero.

    Raises:
        UsageError: Some targets match no projection; tried and available names are listed.
    """
    available = projections(model)
    wanted = tuple(available) if spec.targets == "all-linear" else spec.names
    unknown = [name for name in wanted if name not in available]
    if unknown or not wanted:
        raise UsageError(
            f"lora.targets match no projection: tried {', '.join(wanted) or 'nothing'}; "
            f"without a match: {', '.join(unknown) or 'all'}",
            hint=f"available: {', '.join(available)}, or all-linear",
        )
    for index, name in enumerate(BLOCKS):
        if name not in wanted:
            continue
        linear = available[name]
        layers, width_in, width_out = linear.shape
        # Kaiming-uniform with a = √5, as PEFT: bound = 1 / √(width in).
        bound = 1.0 / math.sqrt(width_in)
        shape = (layers, width_in, spec.rank)
        drawn = jax.random.uniform(
            jax.random.fold_in(key, index), shape, jnp.float32, -bound, bound
        )
        linear.lora_a = nnx.data(LoRAParam(drawn))
        linear.lora_b = nnx.data(LoRAParam(jnp.zeros((layers, spec.rank, width_out), jnp.float32)))
        linear.lora_scale = spec.scale
        linear.lora_dropout = spec.dropout


def merged(model: Decoder, dtype: Any = None) -> Decoder:
    """Fold the adapter into a copy of the weights: W + scale · A B, computed in float32.

    A scalar head that was trained beside the adapter becomes a weight like any other.

    Args:
        model: A decoder, with an adapter or without.
        dtype: Dtype of the kernels that were kept as codes, and are plain in the copy; None: the
            model's own.
    """
    graphdef, state = nnx.split(model)
    copy = nnx.merge(graphdef, state)
    if copy.score is not None:
        copy.score.weight = nnx.Param(copy.score.weight[...].astype(dtype or model.dtype))
    for linear in projections(copy).values():
        if linear.lora_a is None and linear.scheme is None:
            continue
        weights = linear.weights()
        kept = (dtype or model.dtype) if linear.scheme is not None else weights.dtype
        linear.keep_weights((weights.astype(jnp.float32) + _delta(linear)).astype(kept))
        linear.lora_a = nnx.data(None)
        linear.lora_b = nnx.data(None)
    return copy


def _delta(linear: Linear) -> Any:
    """What an adapter adds to the weights, [l, in, out] float32; 0 without one."""
    if linear.lora_a is None or linear.lora_b is None:
        return 0.0
    delta = jnp.einsum("lir,lro->lio", linear.lora_a[...], linear.lora_b[...])
    return linear.lora_scale * delta


def tensor_name(projection: str, layer: int, side: Literal["A", "B"]) -> str:
    """PEFT's name of one adapter matrix."""
    block = f"model.layers.{layer}.{BLOCKS[projection]}.{projection}"
    return f"base_model.model.{block}.lora_{side}.weight"


def adapter_to_peft(model: Decoder) -> dict[str, np.ndarray]:
    """Name every adapter matrix as PEFT does: A is [r, in], B is [out, r], float32."""
    tensors = {}
    for name, linear in adapted(model).items():
        assert linear.lora_a is not None
        assert linear.lora_b is not None
        for layer, (a, b) in enumerate(
            zip(np.asarray(linear.lora_a[...]), np.asarray(linear.lora_b[...]), strict=True)
        ):
            tensors[tensor_name(name, layer, "A")] = np.ascontiguousarray(a.T)
            tensors[tensor_name(name, layer, "B")] = np.ascontiguousarray(b.T)
    return tensors


def peft_to_adapter(model: Decoder, tensors: Mapping[str, np.ndarray]) -> None:
    """Fill a decoder's adapter from PEFT tensors.

    Raises:
        ModelError: Missing, unexpected or mis-shaped tensors; all are listed at once.
    """
    wanted = adapter_to_peft(model)
    problems = [f"missing: {name}" for name in sorted(wanted.keys() - tensors.keys())]
    problems += [f"unexpected: {name}" for name in sorted(tensors.keys() - wanted.keys())]
    problems += [
        f"mis-shaped: {name} is {tensors[name].shape}, expected {wanted[name].shape}"
        for name in sorted(wanted.keys() & tensors.keys())
        if tensors[name].shape != wanted[name].shape
    ]
    if problems:
        raise ModelError(
            f"the adapter does not fit the model ({len(problems)} tensors)", problems=problems
        )
    for name, linear in adapted(model).items():
        sides = {
            side: jnp.stack(
                [
                    jnp.asarray(tensors[tensor_name(name, layer, side)].T, jnp.float32)
                    for layer in range(model.config.layer_count)
                ]
            )
            for side in ("A", "B")
        }
        linear.lora_a = nnx.data(LoRAParam(sides["A"]))
        linear.lora_b = nnx.data(LoRAParam(sides["B"]))
