# SPDX-License-Identifier: Apache-2.0
"""Forward passes of micro-batches → the summed loss, its metrics and its gradient.

Sums only: the step divides once, so the split into micro-batches changes nothing.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from alignax.losses import Alternatives, Objective
from alignax.metrics.preference import preference_metrics
from alignax.records import LossOutput, PairLogps


class Seen(NamedTuple):
    """What the forward passes of a micro-batch say: all that its loss depends on.

    Attributes:
        pair: One entry a pair slot; for SFT the answers' log-probs are ``policy_chosen``.
        valid: Which slots are used.
    """

    pair: PairLogps
    valid: Any


def pair_loss(objective: Objective | Alternatives, seen: Seen, memory: Any) -> LossOutput:
    """Apply the objective, its schedules resolved, to every example."""
    if objective.kind == "sft":
        loss = objective(seen.pair.policy_chosen, seen.pair.chosen_tokens, seen.valid)
        return LossOutput(loss, {"nll": loss})
    pair = seen.pair
    if memory is not None:
        shape = pair.policy_chosen.shape
        pair = pair._replace(**{n: jnp.broadcast_to(x, shape) for n, x in memory.items()})
    metrics = preference_metrics(
        pair,
        seen.valid,
        rewards=objective.rewards(pair),
        has_reference=objective.needs_reference,
        has_logps=objective.kind == "pair",
    )
    return LossOutput(objective(pair, seen.valid), metrics)


def summed_gradient(
    seen_by: Callable[[Any, Any], Seen],
    objective: Objective | Alternatives,
    trainable: Any,
    memory: Any,
    parts: Any,
) -> tuple[Any, LossOutput, Any]:
    """Add up loss, metrics and gradient over the micro-batches; the memory stays as it is."""

    def total_loss(trainable: Any, part: Any) -> tuple[Any, LossOutput]:
        output = pair_loss(objective, seen_by(trainable, part), None)
        return output.loss.total, output

    def accumulate(gradient: Any, part: Any) -> Any:
        more, output = jax.grad(total_loss, has_aux=True)(trainable, part)
        return jax.tree.map(jnp.add, gradient, more), output

    gradient, outputs = jax.lax.scan(accumulate, jax.tree.map(jnp.zeros_like, trainable), parts)
    return gradient, jax.tree.map(lambda x: x.sum(0), outputs), memory


def whole_batch_gradient(
    seen_by: Callable[[Any, Any], Seen],
    objective: Objective | Alternatives,
    trainable: Any,
    memory: Any,
    parts: Any,
) -> tuple[Any, LossOutput, Any]:
    """Compute the gradient of a loss that reads the whole batch, whatever its split.

    A first pass collects every example's log-probs; the loss and its slope with respect to them
    are those of the whole batch. A second pass carries the slopes to the weights, micro-batch by
    micro-batch. With a single micro-batch one pass does both.
    """

    def loss_of(seen: Seen) -> tuple[Any, LossOutput]:
        whole = jax.tree.map(lambda x: x.reshape(-1), seen)
        output = pair_loss(objective, whole, memory)
        return output.loss.total, output

    count = jax.tree.leaves(parts)[0].shape[0]
    if count == 1:
        part = jax.tree.map(lambda x: x[0], parts)

        def total_loss(trainable: Any) -> tuple[Any, tuple[LossOutput, Seen]]:
            seen = seen_by(trainable, part)
            total, output = loss_of(seen)
            return total, (output, seen)

        gradient, (output, seen) = jax.grad(total_loss, has_aux=True)(trainable)
        return gradient, output, objective.remember(memory, *seen)
    seen = jax.lax.map(lambda part: seen_by(trainable, part), parts)
    floats, rest = _split_floats(seen)
    slopes, output = jax.grad(lambda x: loss_of(_join(x, rest)), has_aux=True)(floats)

    def carry(trainable: Any, part: Any, slope: Any) -> Any:
        mine, _ = _split_floats(seen_by(trainable, part))
        return sum((x * y).sum() for x, y in zip(mine, slope, strict=True))

    def accumulate(gradient: Any, part_and_slope: Any) -> Any:
        more = jax.grad(carry)(trainable, *part_and_slope)
        return jax.tree.map(jnp.add, gradient, more), None

    zeros = jax.tree.map(jnp.zeros_like, trainable)
    gradient, _ = jax.lax.scan(accumulate, zeros, (parts, slopes))
    flat = jax.tree.map(lambda x: x.reshape(-1), seen)
    return gradient, output, objective.remember(memory, *flat)


def _split_floats(seen: Seen) -> tuple[list[Any], list[Any]]:
    """Take apart what a loss may be differentiated by, and the rest."""
    leaves = jax.tree.leaves(seen)
    floats = [x for x in leaves if jnp.issubdtype(x.dtype, jnp.floating)]
    return floats, [None if jnp.issubdtype(x.dtype, jnp.floating) else x for x in leaves]


def _join(floats: list[Any], rest: list[Any]) -> Seen:
    """Put both parts together again."""
    given = iter(floats)
    *fields, valid = [next(given) if x is None else x for x in rest]
    return Seen(PairLogps(*fields), valid)
