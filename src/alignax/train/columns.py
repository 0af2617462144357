# SPDX-License-Identifier: Apache-2.0
"""Forward passes of policy and reference → the log-probs and further columns that a loss reads."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from alignax.losses import Alternatives, Objective
from alignax.losses.divergence import token_kl, token_squares
from alignax.records import PackedBatch, PairLogps
from alignax.train.forward import AnswerLogps, Network, per_answer


def measure_pairs(
    objective: Objective | Alternatives,
    network: Network,
    policy: AnswerLogps,
    reference: Any,
    batch: PackedBatch,
    scores: Any = None,
) -> PairLogps:
    """Collect all that the objective reads of a micro-batch, one entry a pair slot.

    Args:
        objective: Says which columns are wanted.
        network: Static half of the model.
        policy: The policy's log-probs.
        reference: A live ``AnswerLogps``, [b, p, s] cached sums, or None for zeros.
        batch: The micro-batch.
        scores: [b, p, s] scores of the answers, or None.
    """
    live = reference if isinstance(reference, AnswerLogps) else None
    sums = live.sums if live else reference
    if sums is None:
        sums = jnp.zeros_like(policy.sums)
    columns = answer_columns(objective.columns, network, policy, live, batch)
    if scores is not None:
        columns["score"] = scores
    pair = pair_logps(policy.sums, sums, policy.tokens, columns)
    shape = pair.policy_chosen.shape
    return PairLogps(*[jnp.broadcast_to(jnp.asarray(x), shape) for x in pair])


def pair_logps(
    policy_bps: Any, reference_bps: Any, tokens_bps: Any, columns: Mapping[str, Any] | None = None
) -> PairLogps:
    """Flatten [b, p, 2] values of a micro-batch's answers into one entry a pair slot."""
    flat = [x.reshape(-1, 2) for x in (policy_bps, reference_bps, tokens_bps)]
    (policy, reference, tokens) = flat
    further = {
        f"{name}_{side}": values_bps.reshape(-1, 2)[:, index]
        for name, values_bps in (columns or {}).items()
        for index, side in enumerate(("chosen", "rejected"))
        if f"{name}_{side}" in PairLogps._fields
    }
    return PairLogps(
        policy_chosen=policy[:, 0],
        policy_rejected=policy[:, 1],
        reference_chosen=reference[:, 0],
        reference_rejected=reference[:, 1],
        chosen_tokens=tokens[:, 0],
        rejected_tokens=tokens[:, 1],
        **further,
    )


def answer_columns(
    names: tuple[str, ...],
    network: Network,
    policy: AnswerLogps,
    reference: AnswerLogps | None,
    batch: PackedBatch,
    kl_bps: Any = None,
) -> dict[str, Any]:
    """Compute the wanted columns, [b, p, s] each; those of an absent reference are left out.

    ``kl_bps`` is what ``answer_kl`` gives, if it is known already.
    """
    columns: dict[str, Any] = {}
    if "tail" in names:
        tail_ba = beyond_the_shorter(policy.tokens, batch)
        for side, logps in (("policy_tail", policy), ("reference_tail", reference)):
            if logps is not None:
                values_ba = jnp.where(tail_ba, logps.token_logp, 0.0)
                columns[side] = per_answer(values_ba, batch, network.answers)[0]
    if "squares" in names:
        squares_ba = token_squares(
            policy.hidden,
            policy.head,
            batch.answer_count,
            softcap=network.logit_cap,
            chunk=network.chunk,
        )
        columns["squares"] = per_answer(squares_ba, batch, network.answers)[0]
    if reference is None:
        return columns
    if "forward_kl" in names:
        columns["forward_kl"] = answer_kl(network, policy, reference, batch, forward=True)
    if "kl" in names:
        kl_bps = answer_kl(network, policy, reference, batch) if kl_bps is None else kl_bps
        columns["kl"] = kl_bps / jnp.maximum(policy.tokens, 1)
    return columns


def answer_kl(
    network: Network,
    policy: AnswerLogps,
    reference: AnswerLogps,
    batch: PackedBatch,
    *,
    forward: bool = False,
) -> Any:
    """Exact KL (see ``token_kl``), summed over the tokens of each answer: [b, p, s]."""
    kl_ba = token_kl(
        policy.hidden,
        reference.hidden,
        policy.head,
        reference.head,
        batch.answer_count,
        forward=forward,
        softcap=network.logit_cap,
        chunk=network.chunk,
    )
    return per_answer(kl_ba, batch, network.answers)[0]


def beyond_the_shorter(tokens_bps: Int[Array, "b p s"], batch: PackedBatch) -> Float[Array, "b a"]:
    """Mark the answer places that lie beyond the length of their example's shortest answer."""
    rows, _, answers = tokens_bps.shape
    tokens_bn = tokens_bps.reshape(rows, -1)
    shared_bn = jnp.repeat(tokens_bps.min(-1), answers, axis=-1)
    slot_ba = jnp.minimum(batch.answer_slot, tokens_bn.shape[1] - 1)
    # Answers lie one after another in the order of their slots, so an answer starts where those
    # before it end.
    starts_bn = jnp.cumsum(tokens_bn, -1) - tokens_bn
    place_ba = jnp.arange(slot_ba.shape[1])[None]
    offset_ba = place_ba - jnp.take_along_axis(starts_bn, slot_ba, -1)
    return offset_ba >= jnp.take_along_axis(shared_bn, slot_ba, -1)
