# SPDX-License-Identifier: Apache-2.0
"""State + one step's batch → next state: the jitted, donating update.

Sums and weights are accumulated over the micro-batches by ``lax.scan`` and divided once, so the
split into micro-batches, rows and devices changes neither loss nor gradient.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from alignax.losses import Objective
from alignax.losses.logprobs import token_kl
from alignax.metrics.preference import preference_metrics
from alignax.models.layers import DropoutKey
from alignax.records import LossOutput, PackedBatch, PairLogps, Weighted
from alignax.train.forward import AnswerLogps, Network, Weights, answer_logps, per_answer


class TrainState(NamedTuple):
    """All that an update reads and writes; saved and restored as one.

    Attributes:
        trainable: Trained arrays, float32.
        opt_state: State of the optimizer.
        step: Updates done.
        key: Raw data of the run's random key; never changes (each step folds its number in).
    """

    trainable: Any
    opt_state: Any
    step: Any
    key: Any


@dataclass(frozen=True)
class ReferencePlan:
    """Where the reference's log-probs come from.

    Attributes:
        mode: ``"cached"`` (given with the batch), ``"live"`` (computed in the step) or ``"none"``.
        adapter: Whether a live reference keeps its adapter (False: adapters off).
    """

    mode: Literal["cached", "live", "none"]
    adapter: bool = False


def init_state(
    trainable: Any, optimizer: optax.GradientTransformation, key: jax.Array
) -> TrainState:
    """Start a run: float32 trainables, fresh optimizer state, step 0."""
    trainable = jax.tree.map(lambda x: jnp.array(x, jnp.float32, copy=True), trainable)
    return TrainState(
        trainable, optimizer.init(trainable), jnp.zeros((), jnp.int32), jax.random.key_data(key)
    )


def pair_logps(
    policy_bps: Any, reference_bps: Any, tokens_bps: Any, kl_chosen: Any = 0.0
) -> PairLogps:
    """Flatten [b, p, 2] values of a micro-batch's answers into one entry a pair slot."""
    flat = [x.reshape(-1, 2) for x in (policy_bps, reference_bps, tokens_bps)]
    (policy, reference, tokens) = flat
    return PairLogps(
        policy_chosen=policy[:, 0],
        policy_rejected=policy[:, 1],
        reference_chosen=reference[:, 0],
        reference_rejected=reference[:, 1],
        chosen_tokens=tokens[:, 0],
        rejected_tokens=tokens[:, 1],
        kl_chosen=jnp.broadcast_to(kl_chosen, policy[:, 0].shape),
    )


def answer_kl(
    network: Network, policy: AnswerLogps, reference: AnswerLogps, batch: PackedBatch
) -> Any:
    """Exact KL(policy ‖ reference), summed over the tokens of each answer: [b, p, s]."""
    kl_ba = token_kl(
        policy.hidden,
        reference.hidden,
        policy.head,
        reference.head,
        batch.answer_count,
        chunk=network.chunk,
    )
    return per_answer(kl_ba, batch, network.answers)[0]


def batch_loss(
    objective: Objective, network: Network, policy: AnswerLogps, reference: Any, batch: PackedBatch
) -> LossOutput:
    """Apply the objective to every example of a micro-batch.

    Args:
        objective: The loss with its knobs bound.
        network: Static half of the model.
        policy: The policy's log-probs.
        reference: [b, p, s] cached sums, a live ``AnswerLogps``, or None.
        batch: The micro-batch.
    """
    valid_p = batch.example.reshape(-1) >= 0
    if objective.kind == "sft":
        loss = objective(policy.sums.reshape(-1), policy.tokens.reshape(-1), valid_p)
        return LossOutput(loss, {"nll": loss})
    live = isinstance(reference, AnswerLogps)
    sums = reference.sums if live else reference
    kl_chosen: Any = 0.0
    if objective.kl_weight > 0:
        kl_bps = answer_kl(network, policy, reference, batch)
        kl_chosen = (kl_bps / jnp.maximum(policy.tokens, 1))[..., 0].reshape(-1)
    pair = pair_logps(policy.sums, sums, policy.tokens, kl_chosen)
    loss = objective(pair, valid_p)
    return LossOutput(loss, preference_metrics(pair, valid_p, beta=objective.beta))


def build_train_step(
    network: Network,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    reference_plan: ReferencePlan,
    state: TrainState,
) -> Callable[..., tuple[TrainState, dict[str, Any]]]:
    """Compile the update; the next state is placed as ``state`` is, so one program serves a run.

    Returns:
        ``step(state, frozen, live, batch, cached) -> (state, metrics)``: ``frozen`` are the arrays
        that are not trained, ``live`` the weights of a live reference (else None), ``batch`` has
        the micro-batch axis ``g`` in front, ``cached`` is [g, b, p, s] or None. Metrics are
        ``Weighted`` sums and the scalars ``grad_norm``, ``learning_rate``, ``finite``. A step
        whose loss or gradient is not finite leaves the state as it was. The state is donated.
    """
    gradient_of = jax.grad(_total_loss(network, objective, reference_plan), has_aux=True)

    def train_step(
        state: TrainState, frozen: Any, live: Weights | None, batch: PackedBatch, cached: Any
    ) -> tuple[TrainState, dict[str, Any]]:
        step_key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)

        def accumulate(gradient: Any, xs: Any) -> Any:
            index, *parts = xs
            # The first update drops nothing: policy and reference are still the same function
            # then, also where training goes on with an adapter, and the loss shows it (ln 2).
            key = DropoutKey(jax.random.fold_in(step_key, index), state.step > 0)
            part, output = gradient_of(state.trainable, frozen, live, parts, key)
            return jax.tree.map(jnp.add, gradient, part), output

        zeros = jax.tree.map(jnp.zeros_like, state.trainable)
        index = jnp.arange(batch.ids.shape[0])
        gradient, outputs = jax.lax.scan(accumulate, zeros, (index, batch, cached))
        loss, metrics = jax.tree.map(lambda x: x.sum(0), outputs)
        gradient = jax.tree.map(lambda g: g / loss.weight, gradient)
        norm = optax.global_norm(gradient)
        finite = jnp.isfinite(norm) & jnp.isfinite(loss.total)
        with jax.named_scope("optimizer"):
            updates, opt_state = optimizer.update(gradient, state.opt_state, state.trainable)
            trainable = optax.apply_updates(state.trainable, updates)
        moved = TrainState(trainable, opt_state, state.step + 1, state.key)
        # A non-finite step must not touch the state: it is what a checkpoint or an export needs.
        state_out = jax.tree.map(lambda new, old: jnp.where(finite, new, old), moved, state)
        return state_out, {
            "loss": loss,
            **metrics,
            "grad_norm": norm,
            "learning_rate": schedule(state.step),
            "finite": finite,
        }

    placed = jax.tree.map(lambda leaf: leaf.sharding, state)
    return jax.jit(train_step, donate_argnums=0, out_shardings=(placed, None))


def _total_loss(
    network: Network, objective: Objective, reference_plan: ReferencePlan
) -> Callable[..., tuple[Any, LossOutput]]:
    """Make ``(trainable, frozen, live, (batch, cached), key) → (summed loss, output)``."""

    def total_loss(trainable: Any, frozen: Any, live: Any, xs: Any, key: Any) -> Any:
        batch, cached = xs
        policy = answer_logps(
            network,
            network.join(trainable, frozen),
            batch,
            train_head=network.trains == "base",
            dropout_key=key if network.trains == "adapter" else None,
        )
        reference = cached
        if reference_plan.mode == "live":
            reference = jax.lax.stop_gradient(
                answer_logps(network, live, batch, adapter=reference_plan.adapter)
            )
        output = batch_loss(objective, network, policy, reference, batch)
        return output.loss.total, output

    return total_loss


def step_values(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Divide sums by weights, once, for the log line."""
    return {
        name: value.mean if isinstance(value, Weighted) else float(value)
        for name, value in jax.device_get(dict(metrics)).items()
    }
