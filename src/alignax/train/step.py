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

from alignax.losses import Alternatives, Objective
from alignax.models.layers import DropoutKey
from alignax.records import PackedBatch, PairLogps, Weighted
from alignax.train.columns import measure_pairs
from alignax.train.forward import AnswerLogps, Network, Weights, answer_logps
from alignax.train.gradients import Seen, summed_gradient, whole_batch_gradient


class TrainState(NamedTuple):
    """All that an update reads and writes; saved and restored as one.

    Attributes:
        trainable: Trained arrays, float32.
        opt_state: State of the optimizer.
        step: Updates done.
        key: Raw data of the run's random key; never changes (each step folds its number in).
        memory: Scalars that the loss carries from step to step; None for most losses.
        reference: What the policy is compared with in place of ``trainable``, where it moves.
        rate: What the learning rate of the schedule is multiplied with; 1 until a rollback.
    """

    trainable: Any
    opt_state: Any
    step: Any
    key: Any
    rate: Any
    memory: Any = None
    reference: Any = None


@dataclass(frozen=True)
class ReferencePlan:
    """Where the reference's log-probs come from.

    Attributes:
        mode: ``"cached"`` (given with the batch), ``"live"`` (computed in the step), ``"moving"``
            (so, and drawn towards the policy during the run) or ``"none"``.
        adapter: Whether a live reference keeps its adapter (False: adapters off).
        every: Steps between two moves of a moving reference.
        share: How far it then goes towards the policy; 1 for all the way.
    """

    mode: Literal["cached", "live", "moving", "none"]
    adapter: bool = False
    every: int = 1
    share: float = 1.0


def init_state(
    trainable: Any,
    optimizer: optax.GradientTransformation,
    key: jax.Array,
    *,
    memory: Any = None,
    moving_reference: bool = False,
) -> TrainState:
    """Start a run: float32 trainables, fresh optimizer state, step 0."""

    def copied(tree: Any) -> Any:
        return jax.tree.map(lambda x: jnp.array(x, jnp.float32, copy=True), tree)

    trainable = copied(trainable)
    return TrainState(
        trainable,
        optimizer.init(trainable),
        jnp.zeros((), jnp.int32),
        jax.random.key_data(key),
        jnp.ones((), jnp.float32),
        memory,
        copied(trainable) if moving_reference else None,
    )


def build_train_step(
    network: Network,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    reference_plan: ReferencePlan,
    state: TrainState,
) -> Callable[..., tuple[TrainState, dict[str, Any]]]:
    """Compile ``update_function``; the state is donated.

    States stay placed as ``state`` is, so one program serves a run.
    """
    train_step = update_function(network, objective, optimizer, schedule, reference_plan)
    placed = jax.tree.map(lambda leaf: leaf.sharding, state)
    return jax.jit(train_step, donate_argnums=0, out_shardings=(placed, None))


def update_function(
    network: Network,
    objective: Objective | Alternatives,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    reference_plan: ReferencePlan,
) -> Callable[..., tuple[TrainState, dict[str, Any]]]:
    """Make the update, a pure function whose settings may be traced.

    Returns:
        ``step(state, frozen, live, batch, cached) -> (state, metrics)``: ``frozen`` are the arrays
        that are not trained, ``live`` the weights of a live reference (else None), ``batch`` has
        the micro-batch axis ``g`` in front, ``cached`` holds [g, b, p, s] values of its rows
        (``"reference"`` log-probs, ``"score"``) or is None. Metrics are ``Weighted`` sums and
        scalars. A step that is not ``finite`` leaves the state as it was.
    """
    see = forward_pass(network, objective, reference_plan)
    gradient_of = whole_batch_gradient if objective.batch_level else summed_gradient

    def train_step(
        state: TrainState, frozen: Any, live: Weights | None, batch: PackedBatch, cached: Any
    ) -> tuple[TrainState, dict[str, Any]]:
        now = objective.at(state.step)
        if reference_plan.mode == "moving":
            live = network.join(state.reference, frozen)
        keys = dropout_keys(state, batch.ids.shape[0])

        def seen_by(trainable: Any, part: Any) -> Seen:
            batch, cached, key = part
            # The first update drops nothing: policy and reference are still the same function
            # then, also where training goes on with an adapter, and the loss shows it (ln 2).
            return see(trainable, frozen, live, batch, cached, DropoutKey(key, state.step > 0))

        gradient, (loss, metrics), memory = gradient_of(
            seen_by, now, state.trainable, state.memory, (batch, cached, keys)
        )
        gradient = jax.tree.map(lambda g: g / loss.weight, gradient)
        norm = optax.global_norm(gradient)
        finite = jnp.isfinite(norm) & jnp.isfinite(loss.total)
        with jax.named_scope("optimizer"):
            updates, opt_state = optimizer.update(gradient, state.opt_state, state.trainable)
            updates = jax.tree.map(lambda update: state.rate * update, updates)
            trainable = optax.apply_updates(state.trainable, updates)
        reference = drawn_towards(trainable, state, reference_plan)
        moved = TrainState(
            trainable, opt_state, state.step + 1, state.key, state.rate, memory, reference
        )
        # A non-finite step must not touch the state: it is what a checkpoint or an export needs.
        state_out = jax.tree.map(lambda new, old: jnp.where(finite, new, old), moved, state)
        return state_out, {
            "loss": loss,
            **metrics,
            "grad_norm": norm,
            "learning_rate": schedule(state.step) * state.rate, "finite": finite,
        }  # fmt: skip

    return train_step


def dropout_keys(state: TrainState, count: int) -> Any:
    """Derive the key of each micro-batch of the step that comes next."""
    step_key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)
    return jax.vmap(lambda index: jax.random.fold_in(step_key, index))(jnp.arange(count))


def passed_over(state: TrainState) -> TrainState:
    """Count a step that updates nothing; the learning rate's schedule counts it as well."""

    def counted(count: Any) -> Any:
        return jax.device_put(count + 1, count.sharding)

    def scheduled(part: Any) -> bool:
        return isinstance(part, optax.ScaleByScheduleState)

    opt_state = jax.tree.map(
        lambda part: part._replace(count=counted(part.count)) if scheduled(part) else part,
        state.opt_state,
        is_leaf=scheduled,
    )
    return state._replace(step=counted(state.step), opt_state=opt_state)


def drawn_towards(trainable: Any, state: TrainState, plan: ReferencePlan) -> Any:
    """Move the reference, where it moves and when its time has come.

    TR-DPO (Gorbatovski et al. 2024, eq. 5 and 6): θ_ref ← α θ + (1 - α) θ_ref ("soft"), or
    θ_ref ← θ ("hard"), every τ steps.
    """
    due = (state.step + 1) % plan.every == 0
    return jax.tree.map(
        lambda old, new: jnp.where(due, plan.share * new + (1.0 - plan.share) * old, old),
        state.reference,
        trainable if state.reference is not None else None,
    )


def forward_pass(
    network: Network, objective: Objective | Alternatives, reference_plan: ReferencePlan
) -> Callable[..., Seen]:
    """Make ``(trainable, frozen, live, batch, cached, key) → Seen``."""

    def see(
        trainable: Any, frozen: Any, live: Any, batch: PackedBatch, cached: Any, key: Any
    ) -> Seen:
        policy = answer_logps(
            network,
            network.join(trainable, frozen),
            batch,
            train_head=network.trains == "base",
            dropout_key=key if network.trains == "adapter" else None,
        )
        valid_p = batch.example.reshape(-1) >= 0
        if objective.kind == "sft":
            return Seen(_answers_alone(policy), valid_p)
        reference = None if cached is None else cached.get("reference")
        if reference_plan.mode in ("live", "moving"):
            reference = jax.lax.stop_gradient(
                answer_logps(network, live, batch, adapter=reference_plan.adapter)
            )
        scores = None if cached is None else cached.get("score")
        return Seen(measure_pairs(objective, network, policy, reference, batch, scores), valid_p)

    return see


def _answers_alone(policy: AnswerLogps) -> PairLogps:
    """Hold single answers where pairs hold their chosen ones."""
    zero = jnp.zeros_like(policy.sums.reshape(-1))
    tokens = policy.tokens.reshape(-1)
    return PairLogps(policy.sums.reshape(-1), zero, zero, zero, tokens, tokens)


def step_values(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Divide sums by weights, once, for the log line."""
    return {
        name: value.mean if isinstance(value, Weighted) else float(value)
        for name, value in jax.device_get(dict(metrics)).items()
    }
