# SPDX-License-Identifier: Apache-2.0
"""Sizes of a training step → bytes that it holds on one device; nothing is allocated.

Choices:

- Weights are counted on the abstract model, and what the backward pass keeps is read off the traced
  program: the outputs of ``jax.vjp`` that are not its inputs. Both follow the decoder as it is.
- What the compiler adds has no trace before it compiles and is a formula: the arrays of one layer
  at work, a chunk of logits, gradients in flight. ``benchmarks/memory.py`` compares it with
  measured processes.
- A device of a mesh is a decoder with its share of heads and MLP on its share of the rows.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from qwix import QArray

from alignax.models.codes import code_bytes
from alignax.models.config import DecoderConfig
from alignax.models.decoder import Decoder
from alignax.models.layers import DropoutKey, LoRAParam
from alignax.models.lora import LoraSpec, add_lora
from alignax.models.quantize import keep_codes
from alignax.shapes import TILE

WIDE = 4
"""Bytes of a float32 or int32."""


@dataclass(frozen=True)
class Job:
    """One training step, as far as its memory depends on it.

    Attributes:
        config: Shape of the decoder.
        lora: The adapter that is trained; None: all weights are trained.
        dtype: Dtype of the base and of the computation.
        rows: Rows of a micro-batch on one device.
        tokens: Tokens of a row.
        answers: Answer places of a row.
        tiles: Attention tiles of a row.
        microbatches: Micro-batches of a step.
        live_reference: Whether the reference's log-probs are computed in the step.
        chunk: Answer places of a row whose logits exist at one time.
        fsdp: Devices that split the weights.
        tensor: Devices that split heads, MLP and vocabulary.
        variants: Adapters that are trained over one base.
        at_once: Variants whose passes run together.
        quantize: Value of ``model.quantize``.
    """

    config: DecoderConfig
    lora: LoraSpec | None
    dtype: Literal["float32", "bfloat16"]
    rows: int
    tokens: int
    answers: int
    tiles: int
    microbatches: int
    live_reference: bool
    chunk: int
    fsdp: int = 1
    tensor: int = 1
    variants: int = 1
    at_once: int = 1
    quantize: str = "none"

    @property
    def narrow(self) -> int:
        """Bytes of one weight or activation."""
        return jnp.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Footprint:
    """Bytes on one device, by what they are for.

    Attributes:
        weights: The base (with LoRA: frozen), or the cast copy that full training computes with.
        trainable: Trained arrays, float32.
        optimizer: Two moments of every trained entry, float32.
        reference: Weights that only the reference needs.
        gradients: Sum over micro-batches and the micro-batch's own part.
        activations: What the forward pass keeps for the backward pass.
        layer: Arrays of the one layer that is at work in the backward pass.
        head: A chunk of logits, its exponentials, and the answers' hidden states.
        batch: Ids, masks and targets of a step.
    """

    weights: int
    trainable: int
    optimizer: int
    reference: int
    gradients: int
    activations: int
    layer: int
    head: int
    batch: int

    @property
    def peak(self) -> int:
        """Largest sum of what exists at one time: head and layer work one after the other."""
        held = self.weights + self.trainable + self.optimizer + self.reference + self.batch
        return held + self.gradients + self.activations + max(self.layer, self.head)


def abstract_model(
    config: DecoderConfig, lora: LoraSpec | None, dtype: str, quantize: str = "none"
) -> Decoder:
    """Build a decoder whose arrays have shapes and no values."""

    def build() -> Decoder:
        model = Decoder(config, dtype=jnp.dtype(dtype))
        if lora is not None:
            add_lora(model, lora, key=jax.random.key(0))
        return model

    model = nnx.eval_shape(build)
    if quantize != "none":
        keep_codes(model, quantize)
    return model


@cache
def parameter_counts(config: DecoderConfig, lora: LoraSpec | None) -> tuple[int, int]:
    """Count the entries of the base and of its adapter."""
    model = abstract_model(config, lora, "float32")
    counts = (
        sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, kind)))
        for kind in (nnx.Param, LoRAParam)
    )
    base, adapter = counts
    return base, adapter


@cache
def base_bytes(config: DecoderConfig, dtype: str, quantize: str) -> int:
    """Bytes of the base's weights on one device, codes and their scales included."""
    state = nnx.state(abstract_model(config, None, dtype, quantize), nnx.Param)
    leaves = jax.tree.leaves(state, is_leaf=lambda leaf: isinstance(leaf, QArray))
    return sum(
        code_bytes(leaf) if isinstance(leaf, QArray) else leaf.size * leaf.dtype.itemsize
        for leaf in leaves
    )


def share(config: DecoderConfig, tensor: int) -> DecoderConfig:
    """The decoder that one of ``tensor`` devices computes; what does not divide stays whole."""
    heads, keys = config.head_count, config.kv_head_count
    if heads % tensor == 0 and keys % tensor == 0:
        heads, keys = heads // tensor, keys // tensor
    mlp = config.mlp_dim // tensor if config.mlp_dim % tensor == 0 else config.mlp_dim
    return replace(config, head_count=heads, kv_head_count=keys, mlp_dim=mlp)


@cache
def kept_by_tile(
    config: DecoderConfig, lora: LoraSpec | None, dtype: str, remat: str, quantize: str = "none"
) -> int:
    """Bytes that a forward pass keeps for the backward pass, for each ``TILE`` tokens.

    Args:
        config: Shape of the decoder on one device.
        lora: The adapter that is trained; None: all weights are.
        dtype: Dtype of base and activations.
        remat: Key of ``models.decoder.REMAT``.
        quantize: Value of ``model.quantize``.
    """
    model = abstract_model(config, lora, dtype, quantize)
    graphdef, base, adapter = nnx.split(model, nnx.Param, LoRAParam)
    trained, frozen = (base, adapter) if lora is None else (adapter, base)

    def forward(trained: Any, frozen: Any, key: Any, batch: Any) -> Any:
        def hidden(trained: Any) -> Any:
            weights = (trained, frozen) if lora is None else (frozen, trained)
            drawn = DropoutKey(jax.random.wrap_key_data(key), jnp.array(True))
            return nnx.merge(graphdef, *weights).hidden(
                *batch, remat=remat, dropout_key=None if lora is None else drawn
            )

        return jax.vjp(hidden, trained)

    row = jax.ShapeDtypeStruct((1, TILE), jnp.int32)
    batch = (row, row, row, row, jax.ShapeDtypeStruct((1, 1, 2), jnp.int32))
    key = jax.ShapeDtypeStruct((2,), jnp.uint32)
    program = jax.make_jaxpr(forward)(trained, frozen, key, batch).jaxpr
    given = set(map(id, program.invars))
    fresh = {id(out): out.aval for out in program.outvars if id(out) not in given}
    return sum(aval.size * aval.dtype.itemsize for aval in fresh.values())


def footprint(job: Job, remat: str) -> Footprint:
    """Estimate what a step holds on one device.

    Args:
        job: The step.
        remat: Key of ``models.decoder.REMAT``.
    """
    base, adapter = parameter_counts(job.config, job.lora)
    split = job.fsdp * job.tensor
    weights = base_bytes(job.config, job.dtype, job.quantize) // split
    full = job.lora is None
    trained = base // split if full else adapter
    cast = weights if full and job.narrow < WIDE else 0
    copy = weights if full else adapter * WIDE if job.live_reference else 0
    part = trained * WIDE
    return Footprint(
        weights=cast if full else weights,
        trainable=trained * WIDE * job.variants,
        optimizer=2 * trained * WIDE * job.variants,
        reference=copy,
        gradients=2 * part * job.at_once,
        activations=activation_bytes(job, remat) * job.at_once,
        layer=layer_bytes(job, remat) * job.at_once,
        head=head_bytes(job) * job.at_once,
        batch=job.microbatches
        * job.rows
        * (4 * job.tokens + 3 * job.answers + 2 * job.tiles)
        * WIDE,
    )


def activation_bytes(job: Job, remat: str) -> int:
    """What a micro-batch keeps between its forward and its backward pass."""
    config = share(job.config, job.tensor)
    by_tile = kept_by_tile(config, job.lora, job.dtype, remat, job.quantize)
    return by_tile * job.rows * job.tokens // TILE


def layer_bytes(job: Job, remat: str) -> int:
    """Arrays of the layer at work in the backward pass.

    A layer's own values, made again where the policy did not keep them, and the gradients of its
    widest stretch: of gate, up and their product, and of the residual stream. With ``fsdp`` its
    gathered weights lie beside them.
    """
    config = share(job.config, job.tensor)
    places = job.rows * job.tokens
    slopes = places * (3 * config.mlp_dim + 2 * config.d_model) * job.narrow
    one = config.with_layers(1)
    everything, kept = (
        kept_by_tile(one, job.lora, job.dtype, policy, job.quantize) for policy in ("none", remat)
    )
    remade = (everything - kept) * places // TILE
    layer = job.config.body_parameters // job.config.layer_count * job.narrow
    gathered = layer // job.tensor if job.fsdp > 1 else 0
    return slopes + remade + gathered + decoded_bytes(job)


def decoded_bytes(job: Job) -> int:
    """The weights of one projection, read back from their codes; 0 where they are plain."""
    if job.quantize == "none":
        return 0
    return max(i * o for i, o in job.config.projections.values()) // job.tensor * job.narrow


def head_bytes(job: Job) -> int:
    """A chunk's float32 logits and their exponentials, and the hidden states with their slopes."""
    logits = job.rows * job.chunk * job.config.vocab_size // job.tensor * WIDE
    states = job.rows * (2 * job.answers + 4 * job.tokens) * job.config.d_model * job.narrow
    table = job.config.vocab_size * job.config.d_model // job.tensor
    gathered = table * job.narrow if job.fsdp > 1 else 0
    slope = table * WIDE // job.fsdp if job.lora is None else 0
    return 2 * logits + states + gathered + slope
