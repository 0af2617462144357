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

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

TAIL = 64
"""Places in a chunk of the last, incomplete stretch."""


class _Options(NamedTuple):
    """Static settings of one call; ``chunk`` is a multiple of ``tail``."""

    softcap: float | None
    train_head: bool
    chunk: int
    tail: int


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
    tail = min(TAIL, chunk, slot_count)
    options = _Options(softcap, train_head, min(chunk, slot_count) // tail * tail, tail)
    padding = -slot_count % tail
    used_ba = _used(target_ba, count_b)
    token_logp_ba = _token_logps(
        jnp.pad(_blank(hidden_bad, used_ba), ((0, 0), (0, padding), (0, 0))),
        head_vd,
        jnp.pad(target_ba, ((0, 0), (0, padding))),
        count_b,
        options,
    )
    return jnp.where(used_ba, token_logp_ba[:, :slot_count], 0.0)


def _sweep(
    count_b: Array, options: _Options, body: Callable[[Any, int, Any], Any], carry: Any
) -> Any:
    """Fold ``body(start, size, carry)`` over all places that any row uses.

    The number of rounds depends on the data; this is why the gradient is written by hand.
    """
    used, (_, _, chunk, tail) = count_b.max(), options
    whole = used // chunk
    if chunk > tail:
        carry = jax.lax.fori_loop(0, whole, lambda i, c: body(i * chunk, chunk, c), carry)
    rest = 0 if chunk == tail else whole * chunk
    rounds = (used - rest + tail - 1) // tail
    return jax.lax.fori_loop(0, rounds, lambda i, c: body(rest + i * tail, tail, c), carry)


def _part(values: Array, start: Any, size: int) -> Array:
    """Take ``size`` places of every row."""
    return jax.lax.dynamic_slice_in_dim(values, start, size, axis=1)


def _put(values: Array, part: Array, start: Any) -> Array:
    """Write the places that ``_part`` took."""
    return jax.lax.dynamic_update_slice_in_dim(values, part.astype(values.dtype), start, axis=1)


def _logits(hidden_bad: Array, head_vd: Array, softcap: float | None) -> Array:
    """Project to the vocabulary in float32."""
    logits_bav = jnp.einsum("bad,vd->bav", hidden_bad, head_vd, preferred_element_type=jnp.float32)
    return logits_bav if softcap is None else softcap * jnp.tanh(logits_bav / softcap)


def _row_sum(values_bav: Array) -> Array:
    """Sum over the vocabulary; as a product because XLA does not vectorise that sum on CPUs."""
    ones_v = jnp.ones(values_bav.shape[-1], values_bav.dtype)
    return jnp.einsum("bav,v->ba", values_bav, ones_v, precision=jax.lax.Precision.HIGHEST)


def _log_sum_exp(logits_bav: Array) -> tuple[Array, Array, Array]:
    """Return shifted exponentials, their sum, and the log of the unshifted sum."""
    peak_ba = logits_bav.max(-1)
    exp_bav = jnp.exp(logits_bav - peak_ba[..., None])
    sum_ba = _row_sum(exp_bav)
    return exp_bav, sum_ba, peak_ba + jnp.log(sum_ba)


def _pick(values_bav: Array, target_ba: Array) -> Array:
    """Take the target's entry."""
    return jnp.take_along_axis(values_bav, target_ba[..., None], axis=-1)[..., 0]


def _used(places_ba: Array, count_b: Array) -> Array:
    """[b, a] mask of used places."""
    return jnp.arange(places_ba.shape[1])[None] < count_b[:, None]


def _blank(hidden_bad: Array, used_ba: Array) -> Array:
    """Zero the unused places, so that whatever lies there (NaN too) stays out of gradients."""
    return jnp.where(used_ba[..., None], hidden_bad, 0)


def _cap_slope(logits: Array, softcap: float | None) -> Array | float:
    """Derivative of the soft cap, from its output."""
    return 1.0 if softcap is None else 1.0 - jnp.square(logits / softcap)


def _plain(
    hidden_bad: Array, head_vd: Array, target_ba: Array, count_b: Array, options: _Options
) -> Array:
    """Forward pass without differentiation: one matrix product."""

    def body(start: Any, size: int, logp_ba: Array) -> Array:
        logits_bav = _logits(_part(hidden_bad, start, size), head_vd, options.softcap)
        *_, log_sum_ba = _log_sum_exp(logits_bav)
        picked_ba = _pick(logits_bav, _part(target_ba, start, size))
        return _put(logp_ba, picked_ba - log_sum_ba, start)

    return _sweep(count_b, options, body, jnp.zeros(target_ba.shape, jnp.float32))


def _forward(
    hidden_bad: Array, head_vd: Array, target_ba: Array, count_b: Array, options: _Options
) -> tuple[Array, Any]:
    """Forward pass under differentiation."""
    if options.train_head:
        logp_ba = _plain(hidden_bad, head_vd, target_ba, count_b, options)
        return logp_ba, (hidden_bad, head_vd, target_ba, count_b)

    def body(start: Any, size: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        logp_ba, slope_bad = carry
        part_ba = _part(target_ba, start, size)
        logits_bav = _logits(_part(hidden_bad, start, size), head_vd, options.softcap)
        exp_bav, sum_ba, log_sum_ba = _log_sum_exp(logits_bav)
        picked_ba = _pick(logits_bav, part_ba)
        weight_bav = exp_bav * _cap_slope(logits_bav, options.softcap)
        mean_bad = jnp.einsum(
            "bav,vd->bad",
            weight_bav.astype(head_vd.dtype),
            head_vd,
            preferred_element_type=jnp.float32,
        )
        own_bad = head_vd[part_ba].astype(jnp.float32)
        if options.softcap is not None:
            own_bad *= jnp.asarray(_cap_slope(picked_ba, options.softcap))[..., None]
        slope = own_bad - mean_bad / sum_ba[..., None]
        return _put(logp_ba, picked_ba - log_sum_ba, start), _put(slope_bad, slope, start)

    zeros = jnp.zeros(target_ba.shape, jnp.float32), jnp.zeros_like(hidden_bad)
    return _sweep(count_b, options, body, zeros)


def _backward(options: _Options, residuals: Any, cotangent_ba: Array) -> tuple[Any, ...]:
    """Gradients for hidden states and, if it is trained, for the head."""
    if not options.train_head:
        slope_bad = residuals
        grad_bad = cotangent_ba[..., None] * slope_bad.astype(jnp.float32)
        return grad_bad.astype(slope_bad.dtype), None, None, None
    hidden_bad, head_vd, target_ba, count_b = residuals
    place_v = jnp.arange(head_vd.shape[0])[None, None]

    def body(start: Any, size: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        grad_bad, grad_vd = carry
        part_bad = _part(hidden_bad, start, size)
        logits_bav = _logits(part_bad, head_vd, options.softcap)
        exp_bav, sum_ba, _ = _log_sum_exp(logits_bav)
        own_bav = place_v == _part(target_ba, start, size)[..., None]
        slope_bav = own_bav - exp_bav / sum_ba[..., None]
        slope_bav *= _part(cotangent_ba, start, size)[..., None]
        slope_bav *= _cap_slope(logits_bav, options.softcap)
        slope_bav = slope_bav.astype(head_vd.dtype)
        product = partial(jnp.einsum, preferred_element_type=jnp.float32)
        grad_bad = _put(grad_bad, product("bav,vd->bad", slope_bav, head_vd), start)
        return grad_bad, grad_vd + product("bav,bad->vd", slope_bav, part_bad)

    zeros = jnp.zeros_like(hidden_bad), jnp.zeros(head_vd.shape, jnp.float32)
    grad_bad, grad_vd = _sweep(count_b, options, body, zeros)
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
    used_ba = _used(values_ba, answer_count_b)
    slot_ba = jnp.where(used_ba, answer_slot_ba, slot_count)
    values_ba = jnp.where(used_ba, values_ba.astype(jnp.float32), 0.0)

    def one_row(values_a: Array, slot_a: Array) -> tuple[Array, Array]:
        add = partial(jax.ops.segment_sum, segment_ids=slot_a, num_segments=slot_count + 1)
        return add(values_a)[:-1], add(jnp.ones_like(slot_a, jnp.int32))[:-1]

    return jax.vmap(one_row)(values_ba, slot_ba)


def _plain_divergence(
    ours_bad: Array, our_head_vd: Array, theirs_bad: Array, their_head_vd: Array, softcap: Any
) -> Array:
    """KL of one chunk."""
    ours_bav = _logits(ours_bad, our_head_vd, softcap)
    theirs_bav = _logits(theirs_bad, their_head_vd, softcap)
    exp_bav, sum_ba, our_log_sum_ba = _log_sum_exp(ours_bav)
    *_, their_log_sum_ba = _log_sum_exp(theirs_bav)
    mean_ba = _row_sum(exp_bav * (ours_bav - theirs_bav)) / sum_ba
    return mean_ba - our_log_sum_ba + their_log_sum_ba


def _forward_divergence(*args: Any) -> tuple[Array, Any]:
    """Keep the arguments only: logits of all chunks must not be stored."""
    return _plain_divergence(*args), args[:-1]


def _backward_divergence(softcap: Any, residuals: Any, cotangent_ba: Array) -> tuple[Any, ...]:
    """d KL / d logit = p · (log ratio - its mean under p); the normalisers cancel."""
    ours_bad, our_head_vd, theirs_bad, their_head_vd = residuals
    ours_bav = _logits(ours_bad, our_head_vd, softcap)
    gap_bav = ours_bav - _logits(theirs_bad, their_head_vd, softcap)
    exp_bav, sum_ba, _ = _log_sum_exp(ours_bav)
    mean_ba = _row_sum(exp_bav * gap_bav) / sum_ba
    slope_bav = exp_bav * (gap_bav - mean_ba[..., None]) * (cotangent_ba / sum_ba)[..., None]
    slope_bav = (slope_bav * _cap_slope(ours_bav, softcap)).astype(our_head_vd.dtype)
    product = partial(jnp.einsum, preferred_element_type=jnp.float32)
    grad_bad = product("bav,vd->bad", slope_bav, our_head_vd).astype(ours_bad.dtype)
    grad_vd = product("bav,bad->vd", slope_bav, ours_bad).astype(our_head_vd.dtype)
    return grad_bad, grad_vd, None, None


_divergence = jax.custom_vjp(_plain_divergence, nondiff_argnums=(4,))
_divergence.defvjp(_forward_divergence, _backward_divergence)


def token_kl(
    policy_hidden_bad: Float[Array, "b a d"],
    reference_hidden_bad: Float[Array, "b a d"],
    policy_head_vd: Float[Array, "v d"],
    reference_head_vd: Float[Array, "v d"],
    count_b: Int[Array, " b"],
    *,
    softcap: float | None = None,
    chunk: int = 256,
) -> Float[Array, "b a"]:
    """Compute KL(policy ‖ reference) over the whole vocabulary at every used answer place.

    Nats, float32, 0 in unused places. Differentiable in the policy's arguments; the reference is
    a constant. The backward pass computes each chunk's logits again.
    """
    row_count, slot_count, _ = policy_hidden_bad.shape
    chunk = min(chunk, slot_count)
    rounds = -(-slot_count // chunk)
    padding = ((0, 0), (0, rounds * chunk - slot_count), (0, 0))
    used_ba = _used(policy_hidden_bad[..., 0], count_b)
    policy_bad = jnp.pad(_blank(policy_hidden_bad, used_ba), padding)
    reference_bad = jnp.pad(_blank(reference_hidden_bad, used_ba), padding)

    def one_chunk(start: Any) -> Array:
        def measure() -> Array:
            ours_bad, theirs_bad = (_part(x, start, chunk) for x in (policy_bad, reference_bad))
            return _divergence(ours_bad, policy_head_vd, theirs_bad, reference_head_vd, softcap)

        blank_ba = jnp.zeros((row_count, chunk), jnp.float32)
        return jax.lax.cond(start < count_b.max(), measure, lambda: blank_ba)

    kl_gba = jax.lax.map(one_chunk, jnp.arange(rounds) * chunk)
    kl_ba = jnp.moveaxis(kl_gba, 0, 1).reshape(row_count, -1)[:, :slot_count]
    return jnp.where(used_ba, kl_ba, 0.0)
