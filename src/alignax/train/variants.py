# SPDX-License-Identifier: Apache-2.0
"""K variants of one run → one update over one frozen base.

Adapter, optimizer state, random key and settings carry a leading variant axis; base weights, batch
and cached reference do not, and lie in memory once. The update is the single run's own function
with traced settings, mapped over that axis: all at once (``vmap``), in slices, or one variant after
another (``lax.map``), which changes nothing but time and memory.

Choices:

- The learning rate of every step is a table, computed by the schedule of a single run: peak,
  warm-up and shape may all differ.
- Adapters of several ranks have the widest one's shape. A column of A and its row of B that are
  both zero have no gradient and stay zero, so padding is a mask by itself. The graph scales by
  alpha / rank of the widest; ``Network.adapter_scale`` corrects it.
- A variant that no longer runs keeps its state. One variant at a time, it is not computed either.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from alignax.losses.alternatives import Alternatives, Choice, Form
from alignax.models.layers import LoRAParam
from alignax.models.lora import LoraSpec, add_lora
from alignax.recipe import OptimizerSection
from alignax.train.forward import Network, Weights, with_adapter_scale
from alignax.train.optimizer import build_optimizer, build_schedule
from alignax.train.step import ReferencePlan, TrainState, update_function

NUMBERS = ("weight_decay", "b1", "b2", "eps", "clip_norm")
"""Settings of the optimizer that are numbers in its update; the others make the rate."""


class VariantSettings(NamedTuple):
    """What differs between variants, the axis of variants in front.

    Attributes:
        loss: Which objective, with which numbers.
        rates: [k, n] learning rate of every step.
        optimizer: [k] values of those ``NUMBERS`` that differ, by name.
        adapter_scale: [k] factors (see ``Network``), or None where all are 1.
    """

    loss: Choice
    rates: Any
    optimizer: Mapping[str, Any]
    adapter_scale: Any


def over_variants(function: Callable[[Any], Any], stacked: Any, at_once: int) -> Any:
    """Map a function over the leading axis of a tree, ``at_once`` entries together."""
    count = jax.tree.leaves(stacked)[0].shape[0]
    if at_once >= count:
        return jax.vmap(function)(stacked)
    return jax.lax.map(function, stacked, batch_size=at_once if at_once > 1 else None)


def stack_optimizers(
    sections: Sequence[OptimizerSection], total_steps: int
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Compute the [k, n] learning rates, and collect the numbers that differ."""
    steps = np.arange(total_steps)
    # With NumPy's type promotion a rate could become float64: the schedule is asked as in a step.
    rates = [
        np.asarray(jax.vmap(build_schedule(section, total_steps))(jnp.asarray(steps, jnp.int32)))
        for section in sections
    ]
    values = {name: [getattr(section, name) for section in sections] for name in NUMBERS}
    differing = {
        name: np.array(column, np.float32)
        for name, column in values.items()
        if len(set(column)) > 1
    }
    return np.stack(rates).astype(np.float32), differing


def fresh_adapter(network: Network, start: Weights, spec: LoraSpec, seed: int, rank: int) -> Any:
    """Draw a single run's adapter, padded with zeros to a rank.

    Args:
        network: Static half of the model.
        start: Its arrays.
        spec: Shape of the adapter.
        seed: As in ``train.seed``.
        rank: Of the widest variant.
    """
    model = nnx.merge(network.graphdef, start.base, start.adapter)
    add_lora(model, spec, key=jax.random.key(seed))
    _, _, adapter = nnx.split(model, nnx.Param, LoRAParam)
    return with_rank(adapter, rank)


def with_rank(adapter: Any, rank: int) -> Any:
    """Pad an adapter with zeros to a rank, or cut it down to one."""

    def fit(path: Any, leaf: Any) -> Any:
        axis = 2 if "lora_a" in jax.tree_util.keystr(path) else 1
        missing = rank - leaf.shape[axis]
        if missing <= 0:
            return jax.lax.slice_in_dim(leaf, 0, rank, axis=axis)
        widths = [(0, missing if place == axis else 0) for place in range(leaf.ndim)]
        return jnp.pad(leaf, widths)

    return jax.tree_util.tree_map_with_path(fit, adapter)


def stack_states(states: Sequence[TrainState]) -> TrainState:
    """Put the first states of all variants behind one axis; the number of the step is shared."""
    bare = [state._replace(step=None) for state in states]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *bare)
    return stacked._replace(step=states[0].step)


def variant_of(state: TrainState, index: int) -> TrainState:
    """Take one variant's state."""
    one = jax.tree.map(lambda leaf: leaf[index], state._replace(step=None))
    return one._replace(step=state.step)


def build_variants_step(
    network: Network,
    forms: Sequence[Form],
    optimizer: OptimizerSection,
    reference_plan: ReferencePlan,
    state: TrainState,
    *,
    at_once: int,
) -> Callable[..., tuple[TrainState, dict[str, Any]]]:
    """Compile the update of all variants; the state is donated.

    Args:
        network: Static half of the model.
        forms: Objectives, as ``losses.alternatives.stack`` gives them.
        optimizer: Settings that all variants share.
        reference_plan: Where the reference's log-probs come from.
        state: Of all variants, in its place on the devices.
        at_once: Variants that are computed together.

    Returns:
        ``step(state, settings, running [k], frozen, live, batch, cached) -> (state, metrics)``, as
        ``step.update_function`` has it, metrics with the axis of variants in front.
    """

    def train_step(
        state: TrainState, settings: VariantSettings, running_k: Any, frozen: Any, live: Any,
        batch: Any, cached: Any,
    ) -> tuple[TrainState, dict[str, Any]]:  # fmt: skip
        def update(mine: TrainState, given: VariantSettings) -> tuple[TrainState, dict[str, Any]]:
            section = optimizer.model_copy(update=dict(given.optimizer))
            schedule = given.rates.__getitem__
            advance = update_function(
                with_adapter_scale(network, given.adapter_scale),
                Alternatives.of(forms, given.loss),
                build_optimizer(section, schedule),
                schedule,
                reference_plan,
            )
            moved, metrics = advance(mine._replace(step=state.step), frozen, live, batch, cached)
            return moved._replace(step=None), metrics

        def one(variant: Any) -> tuple[TrainState, dict[str, Any]]:
            mine, given, runs = variant
            if at_once == 1:
                _, nothing = jax.eval_shape(update, mine, given)
                nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), nothing)
                return jax.lax.cond(runs, lambda: update(mine, given), lambda: (mine, nothing))
            moved, metrics = update(mine, given)
            return jax.tree.map(lambda new, old: jnp.where(runs, new, old), moved, mine), metrics

        variants = (state._replace(step=None), settings, running_k)
        moved, metrics = over_variants(one, variants, at_once)
        return moved._replace(step=state.step + 1), metrics

    placed = jax.tree.map(lambda leaf: leaf.sharding, state)
    return jax.jit(train_step, donate_argnums=0, out_shardings=(placed, None))
