# SPDX-License-Identifier: Apache-2.0
"""A language model → a reward model: a scalar head on the hidden state of an answer's last token.

The head reads what the output head would read. It is what transformers calls sequence
classification with one label: ``score.weight`` [1, d], no bias.
"""

from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from alignax.models.decoder import Decoder, Embedding
from alignax.models.layers import LoRAParam
from alignax.records import PackedBatch


def add_score(model: Decoder, *, beside_adapter: bool) -> None:
    """Give a decoder a scalar head of zeros, or make the one that it has trainable.

    Zeros make every reward 0, so the loss before the first update is known, and the first update
    is along the difference of the hidden states.

    Args:
        model: Changed in place; an output head of its own is dropped.
        beside_adapter: Whether the head is trained together with an adapter, over a frozen base.
    """
    if model.score is None:
        model.score = nnx.data(Embedding(1, model.config.d_model, jnp.float32))
        model.lm_head = nnx.data(None)
        model.config = replace(model.config, scores=True)
    if beside_adapter:
        values = model.score.weight[...].astype(jnp.float32)
        model.score.weight = LoRAParam(values)


def answer_rewards(
    hidden_btd: Float[Array, "b t d"],
    weight_1d: Float[Array, "1 d"],
    batch: PackedBatch,
    answers: int,
) -> Float[Array, "b p s"]:
    """Compute the reward of every answer from its last token, in float32; 0 in unused slots.

    The last token is the stop token, unless the answer was cut.
    """
    rows, slots = batch.example.shape
    count = slots * answers
    index_t = jnp.arange(batch.ids.shape[1])
    owned_bt = (batch.segments > 0) & (batch.branches > 0)
    owner_bt = (batch.segments - 1) * answers + batch.branches - 1
    owner_bt = jnp.where(owned_bt, owner_bt, count)
    last_bn = jax.vmap(lambda owner_t: jax.ops.segment_max(index_t, owner_t, count + 1))(owner_bt)
    last_bn = last_bn[:, :count]
    hidden_bnd = jnp.take_along_axis(hidden_btd, jnp.maximum(last_bn, 0)[..., None], axis=1)
    rewards_bn = jnp.einsum(
        "bnd,d->bn",
        hidden_bnd.astype(jnp.float32),
        weight_1d[0].astype(jnp.float32),
        precision=jax.lax.Precision.HIGHEST,
    )
    # An empty segment's maximum is the least integer.
    return jnp.where(last_bn >= 0, rewards_bn, 0.0).reshape(rows, slots, answers)


def text_rewards(model: Decoder, texts: Sequence[Sequence[int]]) -> np.ndarray:
    """Compute the reward of whole texts, one to a padded row, by dense attention: [texts]."""
    lengths = np.array([len(ids) for ids in texts])
    rows = np.zeros((len(texts), lengths.max()), np.int32)
    for row, ids in zip(rows, texts, strict=True):
        row[: len(ids)] = ids
    used = (np.arange(rows.shape[1]) < lengths[:, None]).astype(np.int32)
    positions = np.broadcast_to(np.arange(rows.shape[1], dtype=np.int32), rows.shape)
    no_tiles = np.full((len(texts), 1, 2), -1, np.int32)
    arrays = map(jnp.asarray, (rows, positions, used, np.zeros_like(used), no_tiles))
    hidden = model.hidden(*arrays, attention="dense")
    assert model.score is not None
    last = hidden[np.arange(len(texts)), lengths - 1].astype(jnp.float32)
    return np.asarray(last @ model.score.weight[0].astype(jnp.float32))
