# SPDX-License-Identifier: Apache-2.0
"""Final hidden states → sums over the whole vocabulary at every answer place, chunk by chunk.

What losses and evaluation need besides log-probs. As in ``logprobs``, the logits of a few places
exist at one time, the vocabulary is only reduced, and sums are float32.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from alignax.losses import chunks
from alignax.losses.chunks import Chunks


def token_kl(
    policy_hidden_bad: Float[Array, "b a d"],
    reference_hidden_bad: Float[Array, "b a d"],
    policy_head_vd: Float[Array, "v d"],
    reference_head_vd: Float[Array, "v d"],
    count_b: Int[Array, " b"],
    *,
    forward: bool = False,
    softcap: float | None = None,
    chunk: int = 256,
) -> Float[Array, "b a"]:
    """Compute KL(policy ‖ reference) over the whole vocabulary at every used answer place.

    With ``forward`` it is KL(reference ‖ policy). Nats, float32, 0 in unused places.
    Differentiable in the policy's arguments; the reference is a constant. The backward pass
    computes each chunk's logits again.
    """
    slot_count = policy_hidden_bad.shape[1]
    options = chunks.fit(slot_count, chunk, softcap)
    used_ba = chunks.used(policy_hidden_bad[..., 0], count_b)
    ours_bad, theirs_bad = (
        chunks.pad(chunks.blank(hidden_bad, used_ba), options)
        for hidden_bad in (policy_hidden_bad, reference_hidden_bad)
    )
    kl_ba: Any = _kl(
        options, forward, ours_bad, theirs_bad, policy_head_vd, reference_head_vd, count_b
    )
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


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _kl(
    options: Chunks,
    forward: bool,
    ours_bad: Array,
    theirs_bad: Array,
    our_head_vd: Array,
    their_head_vd: Array,
    count_b: Array,
) -> Array:
    """KL of every place, chunk by chunk."""

    def body(start: Any, size: int, kl_ba: Array) -> Array:
        ours_bav = chunks.project(chunks.part(ours_bad, start, size), our_head_vd, options.softcap)
        theirs_bav = chunks.project(
            chunks.part(theirs_bad, start, size), their_head_vd, options.softcap
        )
        p_bav, q_bav = (theirs_bav, ours_bav) if forward else (ours_bav, theirs_bav)
        exp_bav, sum_ba, p_log_sum_ba = chunks.log_sum_exp(p_bav)
        *_, q_log_sum_ba = chunks.log_sum_exp(q_bav)
        mean_ba = chunks.row_sum(exp_bav * (p_bav - q_bav)) / sum_ba
        return chunks.put(kl_ba, mean_ba - p_log_sum_ba + q_log_sum_ba, start)

    return chunks.sweep(count_b, options, body, jnp.zeros(ours_bad.shape[:2], jnp.float32))


def _keep_arguments(options: Chunks, forward: bool, *arrays: Array) -> tuple[Array, Any]:
    """Forward pass under differentiation."""
    return _kl(options, forward, *arrays), arrays


def _backward(
    options: Chunks, forward: bool, residuals: Any, cotangent_ba: Array
) -> tuple[Any, ...]:
    """Gradients for the policy's hidden states and its head."""
    ours_bad, theirs_bad, our_head_vd, their_head_vd, count_b = residuals
    slope = _forward_slope if forward else _reverse_slope

    def body(start: Any, size: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        grad_bad, grad_vd = carry
        part_bad = chunks.part(ours_bad, start, size)
        ours_bav = chunks.project(part_bad, our_head_vd, options.softcap)
        theirs_bav = chunks.project(
            chunks.part(theirs_bad, start, size), their_head_vd, options.softcap
        )
        slope_bav = slope(ours_bav, theirs_bav) * chunks.part(cotangent_ba, start, size)[..., None]
        slope_bav *= chunks.cap_slope(ours_bav, options.softcap)
        return chunks.add_products(grad_bad, grad_vd, slope_bav, part_bad, our_head_vd, start)

    zeros = jnp.zeros_like(ours_bad), jnp.zeros(our_head_vd.shape, jnp.float32)
    grad_bad, grad_vd = chunks.sweep(count_b, options, body, zeros)
    return grad_bad, None, grad_vd.astype(our_head_vd.dtype), None, None


_kl.defvjp(_keep_arguments, _backward)


def _reverse_slope(ours_bav: Array, theirs_bav: Array) -> Array:
    """D KL(ours ‖ theirs) / d logit = p · (log ratio - its mean under p); normalisers cancel."""
    gap_bav = ours_bav - theirs_bav
    exp_bav, sum_ba, _ = chunks.log_sum_exp(ours_bav)
    mean_ba = chunks.row_sum(exp_bav * gap_bav) / sum_ba
    return exp_bav / sum_ba[..., None] * (gap_bav - mean_ba[..., None])


def _forward_slope(ours_bav: Array, theirs_bav: Array) -> Array:
    """D KL(theirs ‖ ours) / d logit = p_ours - p_theirs."""
    our_exp_bav, our_sum_ba, _ = chunks.log_sum_exp(ours_bav)
    their_exp_bav, their_sum_ba, _ = chunks.log_sum_exp(theirs_bav)
    return our_exp_bav / our_sum_ba[..., None] - their_exp_bav / their_sum_ba[..., None]
