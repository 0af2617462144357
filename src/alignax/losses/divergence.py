# SPDX-License-Identifier: Apache-2.0
"""Final hidden states → sums over the whole vocabulary at every answer place, chunk by chunk.

What token-level losses need besides log-probs. As in ``logprobs``, the logits of a few places
exist at one time, the vocabulary is only reduced, and sums are float32.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from alignax.losses import chunks
from alignax.losses.chunks import Chunks


def token_forward_kl(
    policy_hidden_bad: Float[Array, "b a d"],
    reference_hidden_bad: Float[Array, "b a d"],
    policy_head_vd: Float[Array, "v d"],
    reference_head_vd: Float[Array, "v d"],
    count_b: Int[Array, " b"],
    *,
    softcap: float | None = None,
    chunk: int = 256,
) -> Float[Array, "b a"]:
    """Compute KL(reference ‖ policy) over the whole vocabulary at every used answer place.

    Nats, float32, 0 in unused places. Differentiable in the policy's arguments; the reference is
    a constant. The backward pass computes each chunk's logits again.
    """
    slot_count = policy_hidden_bad.shape[1]
    options = chunks.fit(slot_count, chunk, softcap)
    used_ba = chunks.used(policy_hidden_bad[..., 0], count_b)
    ours_bad, theirs_bad = (
        chunks.pad(chunks.blank(hidden_bad, used_ba), options)
        for hidden_bad in (policy_hidden_bad, reference_hidden_bad)
    )
    kl_ba = _forward_kl(ours_bad, theirs_bad, policy_head_vd, reference_head_vd, count_b, options)
    return jnp.where(used_ba, kl_ba[:, :slot_count], 0.0)


def token_squares(
    hidden_bad: Float[Array, "b a d"],
    head_vd: Float[Array, "v d"],
    count_b: Int[Array, " b"],
    *,
    softcap: float | None = None,
    chunk: int = 256,
) -> Float[Array, "b a"]:
    """Compute log Σ_v p(v)² at every used answer place: the log of the expected probability.

    Float32, 0 in unused places. A constant: no gradient flows.
    """
    slot_count = hidden_bad.shape[1]
    options = chunks.fit(slot_count, chunk, softcap)
    used_ba = chunks.used(hidden_bad[..., 0], count_b)
    hidden_bad, head_vd = jax.lax.stop_gradient((hidden_bad, head_vd))
    padded_bad = chunks.pad(chunks.blank(hidden_bad, used_ba), options)

    def body(start: Any, size: int, squares_ba: Array) -> Array:
        logits_bav = chunks.project(chunks.part(padded_bad, start, size), head_vd, softcap)
        exp_bav, sum_ba, _ = chunks.log_sum_exp(logits_bav)
        square_ba = chunks.row_sum(jnp.square(exp_bav))
        return chunks.put(squares_ba, jnp.log(square_ba) - 2.0 * jnp.log(sum_ba), start)

    zeros = jnp.zeros(padded_bad.shape[:2], jnp.float32)
    squares_ba = chunks.sweep(count_b, options, body, zeros)
    return jnp.where(used_ba, squares_ba[:, :slot_count], 0.0)


def _plain(
    ours_bad: Array,
    theirs_bad: Array,
    our_head_vd: Array,
    their_head_vd: Array,
    count_b: Array,
    options: Chunks,
) -> Array:
    """KL of every place, chunk by chunk."""

    def body(start: Any, size: int, kl_ba: Array) -> Array:
        ours_bav = chunks.project(chunks.part(ours_bad, start, size), our_head_vd, options.softcap)
        theirs_bav = chunks.project(
            chunks.part(theirs_bad, start, size), their_head_vd, options.softcap
        )
        *_, our_log_sum_ba = chunks.log_sum_exp(ours_bav)
        exp_bav, sum_ba, their_log_sum_ba = chunks.log_sum_exp(theirs_bav)
        mean_ba = chunks.row_sum(exp_bav * (theirs_bav - ours_bav)) / sum_ba
        return chunks.put(kl_ba, mean_ba + our_log_sum_ba - their_log_sum_ba, start)

    return chunks.sweep(count_b, options, body, jnp.zeros(ours_bad.shape[:2], jnp.float32))


def _forward(*args: Any) -> tuple[Array, Any]:
    """Keep the arguments only; the backward pass computes each chunk's logits again."""
    return _plain(*args), args[:-1]


def _backward(options: Chunks, residuals: Any, cotangent_ba: Array) -> tuple[Any, ...]:
    """D KL / d logit of the policy = p_policy - p_reference."""
    ours_bad, theirs_bad, our_head_vd, their_head_vd, count_b = residuals

    def body(start: Any, size: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        grad_bad, grad_vd = carry
        part_bad = chunks.part(ours_bad, start, size)
        ours_bav = chunks.project(part_bad, our_head_vd, options.softcap)
        theirs_bav = chunks.project(
            chunks.part(theirs_bad, start, size), their_head_vd, options.softcap
        )
        our_exp_bav, our_sum_ba, _ = chunks.log_sum_exp(ours_bav)
        their_exp_bav, their_sum_ba, _ = chunks.log_sum_exp(theirs_bav)
        slope_bav = our_exp_bav / our_sum_ba[..., None] - their_exp_bav / their_sum_ba[..., None]
        slope_bav *= chunks.part(cotangent_ba, start, size)[..., None]
        slope_bav *= chunks.cap_slope(ours_bav, options.softcap)
        return chunks.add_products(grad_bad, grad_vd, slope_bav, part_bad, our_head_vd, start)

    zeros = jnp.zeros_like(ours_bad), jnp.zeros(our_head_vd.shape, jnp.float32)
    grad_bad, grad_vd = chunks.sweep(count_b, options, body, zeros)
    return grad_bad, None, grad_vd.astype(our_head_vd.dtype), None, None


_forward_kl = jax.custom_vjp(_plain, nondiff_argnums=(5,))
_forward_kl.defvjp(_forward, _backward)
