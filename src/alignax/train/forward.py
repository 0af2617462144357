# SPDX-License-Identifier: Apache-2.0
"""Weights + packed batch → log-probs of the answers: the forward pass that everything shares.

Training, the reference, evaluation and ``score`` all go through ``answer_logps``, so they cannot
disagree about the boundary, the mask or the dtype.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from alignax.losses.logprobs import answer_sums, token_logps
from alignax.models.decoder import Decoder
from alignax.models.lora import LoRAParam
from alignax.models.reward import answer_rewards
from alignax.records import PackedBatch


class Weights(NamedTuple):
    """A policy's or a reference's arrays: base weights and adapter (an empty state for none)."""

    base: Any
    adapter: Any


class AnswerLogps(NamedTuple):
    """What the forward pass says about a batch's answers.

    Attributes:
        token_logp: [b, a] log-prob of every answer token, float32, 0 in unused places.
        sums: [b, p, s] log-prob of every answer; of a reward model: its reward.
        tokens: [b, p, s] scored tokens of every answer.
        hidden: [b, a, d] final hidden states that predict the answer tokens.
        head: [v, d] output embedding.
    """

    token_logp: Any
    sums: Any
    tokens: Any
    hidden: Any
    head: Any


@dataclass(frozen=True)
class Network:
    """The static half of a model, and which of its arrays are trained.

    Attributes:
        graphdef: Structure of the decoder as ``nnx.split`` gives it.
        trains: ``"adapter"`` (LoRA) or ``"base"`` (full fine-tuning).
        compute_dtype: Master weights are cast to it when the base itself is trained.
        remat: What the backward pass recomputes: a key of ``models.decoder.REMAT``.
        answers: Answers of one example: 2 for pairs, 1 for SFT.
        attention: Key of ``models.attention.BACKENDS``.
        chunk: Answer places of a row whose logits exist at one time.
        logit_cap: Of ``DecoderConfig``.
        adapter_scale: What the adapter's update is multiplied with; None for 1. Variants of a
            sweep share one graph, whose own scale is that of its widest adapter.
        scores: Of ``DecoderConfig``: answers have a reward in place of a log-prob.
    """

    graphdef: nnx.GraphDef
    trains: Literal["adapter", "base"]
    compute_dtype: str = "float32"
    remat: str = "dots"
    answers: int = 2
    attention: str = "tiled"
    chunk: int = 256
    logit_cap: float | None = None
    adapter_scale: Any = None
    scores: bool = False

    def join(self, trainable: Any, frozen: Any) -> Weights:
        """Put trained and frozen arrays back into their places."""
        if self.trains == "adapter":
            return Weights(base=frozen, adapter=_scaled(trainable, self.adapter_scale))
        dtype = jnp.dtype(self.compute_dtype)
        return Weights(base=jax.tree.map(lambda x: x.astype(dtype), trainable), adapter=frozen)

    def part(self, weights: Weights) -> tuple[Any, Any]:
        """Split weights into (trainable, frozen); the inverse of ``join``."""
        if self.trains == "adapter":
            return weights.adapter, weights.base
        return weights.base, weights.adapter


def with_adapter_scale(network: Network, factor: Any) -> Network:
    """The network with another ``adapter_scale``."""
    return replace(network, adapter_scale=factor)


def _scaled(adapter: Any, factor: Any) -> Any:
    """Multiply an adapter's update A B, by way of B."""
    if factor is None:
        return adapter

    def scale(path: Any, leaf: Any) -> Any:
        return factor * leaf if "lora_b" in jax.tree_util.keystr(path) else leaf

    return jax.tree_util.tree_map_with_path(scale, adapter)


def split_model(
    model: Decoder,
    *,
    trains: Literal["adapter", "base"],
    answers: int,
    compute_dtype: str = "float32",
    remat: str = "dots",
) -> tuple[Network, Weights]:
    """Take a decoder apart into its static half and its arrays."""
    graphdef, base, adapter = nnx.split(model, nnx.Param, LoRAParam)
    network = Network(
        graphdef,
        trains,
        compute_dtype,
        remat,
        answers,
        logit_cap=model.config.logit_cap,
        scores=model.config.scores,
    )
    return network, Weights(base, adapter)


def answer_logps(
    network: Network,
    weights: Weights,
    batch: PackedBatch,
    *,
    adapter: bool = True,
    train_head: bool = False,
    dropout_key: Any = None,
    attention: str | None = None,
) -> AnswerLogps:
    """Score the answers of one micro-batch ([b, ...] arrays).

    Only answer tokens pass the output head (in chunks), so ``[b, t, v]`` never exists.

    Args:
        network: Static half of the model.
        weights: Arrays of the policy or of the reference.
        batch: One micro-batch.
        adapter: Whether the adapter takes part.
        train_head: Whether a gradient for the output head is wanted.
        dropout_key: ``DropoutKey`` of the adapter's dropout; None for none.
        attention: Overrides the network's; ``"dense"`` is the oracle.
    """
    model = nnx.merge(network.graphdef, weights.base, weights.adapter)
    hidden_btd = model.hidden(
        batch.ids,
        batch.positions,
        batch.segments,
        batch.branches,
        batch.tiles,
        adapter=adapter,
        dropout_key=dropout_key,
        remat=network.remat,
        attention=attention or network.attention,
    )
    hidden_bad = jnp.take_along_axis(hidden_btd, batch.answer_index[..., None], axis=1)
    head_vd = model.head_vd
    if model.score is not None:
        weight_1d = model.score.weight[...]
        rewards_bps = answer_rewards(hidden_btd, weight_1d, batch, network.answers)
        no_logp_ba = jnp.zeros(batch.answer_target.shape, jnp.float32)
        _, tokens_bps = per_answer(no_logp_ba, batch, network.answers)
        return AnswerLogps(no_logp_ba, rewards_bps, tokens_bps, hidden_bad, head_vd)
    with jax.named_scope("head"):
        token_logp_ba = token_logps(
            hidden_bad,
            head_vd,
            batch.answer_target,
            batch.answer_count,
            softcap=network.logit_cap,
            train_head=train_head,
            chunk=network.chunk,
        )
    sums_bps, tokens_bps = per_answer(token_logp_ba, batch, network.answers)
    return AnswerLogps(token_logp_ba, sums_bps, tokens_bps, hidden_bad, head_vd)


def per_answer(
    values_ba: Float[Array, "b a"], batch: PackedBatch, answers: int
) -> tuple[Float[Array, "b p s"], Int[Array, "b p s"]]:
    """Sum per-token values over each answer: sums and token counts."""
    rows, slots = batch.example.shape
    sums, tokens = answer_sums(values_ba, batch.answer_slot, batch.answer_count, slots * answers)
    return sums.reshape(rows, slots, answers), tokens.reshape(rows, slots, answers)
