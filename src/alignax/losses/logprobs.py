# SPDX-License-Identifier: Apache-2.0
"""Final hidden states + output head → log-probs of the answer tokens, chunk by chunk.

Choices:

- Only used answer places pass the head, ``chunk`` places of every row at a time, so memory is
  O(rows · chunk · vocabulary), and no work is done for places beyond the longest row.
- Rows stay an axis of their own and the vocabulary is only ever reduced, never sliced; a mesh may
  shard either.
- Frozen head (LoRA): d log-prob / d hidden = W[target] - softmax · W does not depend on the
  cotangent. The forward pass under differentiation computes it from the logits that it holds
  anyway; the backward pass is a multiplication: two matrix products instead of three.
- Trained head: the backward pass computes each chunk's logits again.
- Logits, softmax and sums are float32 whatever the model's dtype.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from alignax.losses import chunks
from alignax.losses.chunks import Chunks


def token_logps(
    hidden_bad: Float[Array, "b a d"],
    head_vd: Float[Array, "v d"],
    target_ba: Int[Array, "b a"],
    count_b: Int[Array, " b"],
    *,
    softcap: float | None = None,
    train_head: bool = False,
    chunk: int = 256,
) -> Float[Array, "b a"]:
    """Compute log p(target) at every used answer place, in nats, float32; 0 elsewhere.

    Args:
        hidden_bad: Hidden states that predict the answer tokens, used places first.
        head_vd: Output embedding.
        target_ba: The answer tokens.
        count_b: Used places of each row.
        softcap: Logits become ``softcap * tanh(logits / softcap)``.
        train_head: Whether the head gets a gradient; without it, its gradient is zero.
        chunk: Places of each row whose logits exist at one time.
    """
    slot_count = hidden_bad.shape[1]
    options = chunks.fit(slot_count, chunk, softcap, train_head)
    used_ba = chunks.used(target_ba, count_b)
    token_logp_ba = _token_logps(
        chunks.pad(chunks.blank(hidden_bad, used_ba), options),
        head_vd,
        chunks.pad(target_ba, options),
        count_b,
        options,
    )
    return jnp.where(used_ba, token_logp_ba[:, :slot_count], 0.0)


def _plain(
    hidden_bad: Array, head_vd: Array, target_ba: Array, count_b: Array, options: Chunks
) -> Array:
    """Forward pass without differentiation: one matrix product."""

    def body(start: Any, size: int, logp_ba: Array) -> Array:
        logits_bav = chunks.project(chunks.part(hidden_bad, start, size), head_vd, options.softcap)
        *_, log_sum_ba = chunks.log_sum_exp(logits_bav)
        picked_ba = chunks.pick(logits_bav, chunks.part(target_ba, start, size))
        return chunks.put(logp_ba, picked_ba - log_sum_ba, start)

    return chunks.sweep(count_b, options, body, jnp.zeros(target_ba.shape, jnp.float32))


def _forward(
    hidden_bad: Array, head_vd: Array, target_ba: Array, count_b: Array, options: Chunks
) -> tuple[Array, Any]:
    """Forward pass under differentiation."""
    if options.train_head:
        logp_ba = _plain(hidden_bad, head_vd, target_ba, count_b, options)
        return logp_ba, (hidden_bad, head_vd, target_ba, count_b)

    def body(start: Any, size: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        logp_ba, slope_bad = carry
        part_ba = chunks.part(target_ba, start, size)
        logits_bav = chunks.project(chunks.part(hidden_bad, start, size), head_vd, options.softcap)
        exp_bav, sum_ba, log_sum_ba = chunks.log_sum_exp(logits_bav)
        picked_ba = chunks.pick(logits_bav, part_ba)
        weight_bav = exp_bav * chunks.cap_slope(logits_bav, options.softcap)
        mean_bad = jnp.einsum(
            "bav,vd->bad",
            weight_bav.astype(head_vd.dtype),
            head_vd,
            preferred_element_type=jnp.float32,
        )
        own_bad = head_vd[part_ba].astype(jnp.float32)
        if options.softcap is not None:
            own_bad *= jnp.asarray(chunks.cap_slope(picked_ba, options.softcap))[..., None]
        slope = own_bad - mean_bad / sum_ba[..., None]
        return chunks.put(logp_ba, picked_ba - log_sum_ba, start), chunks.put(
            slope_bad, slope, start
        )

    zeros = jnp.zeros(target_ba.shape, jnp.float32), jnp.zeros_like(hidden_bad)
    return chunks.sweep(count_b, options, body, zeros)


def _backward(options: Chunks, residuals: Any, cotangent_ba: Array) -> tuple[Any, ...]:
    """Gradients for hidden states and, if it is trained, for the head."""
    if not options.train_head:
        slope_bad = residuals
        grad_bad = cotangent_ba[..., None] * slope_bad.astype(jnp.float32)
        return grad_bad.astype(slope_bad.dtype), None, None, None
    hidden_bad, head_vd, target_ba, count_b = residuals
    place_v = jnp.arange(head_vd.shape[0])[None, None]

    def body(start: Any, size: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        grad_bad, grad_vd = carry
        part_bad = chunks.part(hidden_bad, start, size)
        logits_bav = chunks.project(part_bad, head_vd, options.softcap)
        exp_bav, sum_ba, _ = chunks.log_sum_exp(logits_bav)
        own_bav = place_v == chunks.part(target_ba, start, size)[..., None]
        slope_bav = own_bav - exp_bav / sum_ba[..., None]
        slope_bav *= chunks.part(cotangent_ba, start, size)[..., None]
        slope_bav *= chunks.cap_slope(logits_bav, options.softcap)
        return chunks.add_products(grad_bad, grad_vd, slope_bav, part_bad, head_vd, start)

    zeros = jnp.zeros_like(hidden_bad), jnp.zeros(head_vd.shape, jnp.float32)
    grad_bad, grad_vd = chunks.sweep(count_b, options, body, zeros)
    return grad_bad, grad_vd.astype(head_vd.dtype), None, None


_token_logps = jax.custom_vjp(_plain, nondiff_argnums=(4,))
_token_logps.defvjp(_forward, _backward)


def answer_sums(
    values_ba: Float[Array, "b a"],
    answer_slot_ba: Int[Array, "b a"],
    answer_count_b: Int[Array, " b"],
    slot_count: int,
) -> tuple[Float[Array, "b s"], Int[Array, "b s"]]:
    """Sum per-token values over each answer of a row.

    Args:
        values_ba: One value an answer token.
        answer_slot_ba: Answer that each place belongs to; ``slot_count`` or more for unused.
        answer_count_b: Used places of each row.
        slot_count: Answers a row has room for.

    Returns:
        Sums (float32) and token counts (int32) of every answer slot.
    """
    used_ba = chunks.used(values_ba, answer_count_b)
    slot_ba = jnp.where(used_ba, answer_slot_ba, slot_count)
    values_ba = jnp.where(used_ba, values_ba.astype(jnp.float32), 0.0)

    def one_row(values_a: Array, slot_a: Array) -> tuple[Array, Array]:
        add = partial(jax.ops.segment_sum, segment_ids=slot_a, num_segments=slot_count + 1)
        return add(values_a)[:-1], add(jnp.ones_like(slot_a, jnp.int32))[:-1]

    return jax.vmap(one_row)(values_ba, slot_ba)
