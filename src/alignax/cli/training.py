# SPDX-License-Identifier: Apache-2.0
"""Setup → trained run: the loop with its parts, checkpoints and listeners."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import optax
from flax import nnx

from alignax.cli import terminal
from alignax.cli.main import STARTED
from alignax.cli.passes import HeldOutPass, row_tables
from alignax.cli.setup import Setup, fingerprints, start_state
from alignax.data.pipeline import step_batches
from alignax.models.sharding import commit, place_batch
from alignax.train.checkpoint import Checkpoints
from alignax.train.compilations import Compilations
from alignax.train.hooks import Hook, JsonLines, TensorBoard
from alignax.train.loop import Cadence, Parts, Result, Speed, fit, measure_peak_flops
from alignax.train.optimizer import build_optimizer, build_schedule
from alignax.train.profiler import Profiler, ReadableStep
from alignax.train.selftest import check_first_loss, check_first_update
from alignax.train.step import TrainState, build_train_step


def first_update_check(setup: Setup) -> Callable[..., None]:
    """Make the check that the loop runs after the first update."""
    equal_start = not (
        setup.recipe.reference.start == "base" and setup.policy.adapter_hash is not None
    )
    objective = setup.objective.at(0)

    def check(before: TrainState, after: TrainState, values: Mapping[str, float]) -> None:
        if objective.is_plain_dpo and equal_start:
            beta = float(objective.beta)
            check_first_loss(values["loss"], beta=beta, dtype=setup.recipe.model.dtype)
        share = check_first_update(
            before.trainable, jax.device_get(after.trainable), values["grad_norm"]
        )
        terminal.say(
            f"step-0 loss {values['loss']:.4f}; the first update moved {share:.1%} of the "
            "trainable entries"
        )

    return check


def yardstick(setup: Setup) -> Speed:
    """Useful FLOPs a token, and this machine's measured matrix-multiply rate."""
    config = setup.policy.loaded.config
    passes = 2 if setup.network.trains == "adapter" else 3
    devices = jax.device_count() if jax.default_backend() != "cpu" else 1
    return Speed(
        body_flops=2.0 * passes * config.body_parameters,
        head_flops=2.0 * passes * config.d_model * config.vocab_size,
        peak_flops=measure_peak_flops() * devices,
    )


def cadence_of(setup: Setup) -> Cadence:
    """How far the run goes, and how often it is looked at and saved."""
    train = setup.recipe.train
    return Cadence(setup.plan.steps, train.eval_steps, train.save_steps or train.eval_steps)


def first_state(setup: Setup, optimizer: optax.GradientTransformation) -> TrainState:
    """Make the state of step 0, in its place on the devices."""
    if setup.reference_plan.mode == "moving":
        terminal.say(
            f"the reference moves every {setup.reference_plan.every} steps, so its log-probs are "
            "not cached; held-out figures compare with where it started"
        )
    trainable, _ = setup.network.part(setup.start)
    state = start_state(setup.recipe, setup.objective, trainable, optimizer)
    return commit(state, setup.policy.mesh)


def run(setup: Setup, sample: Callable[[Any, int], None]) -> tuple[Result, Checkpoints, float]:
    """Train: from step 0, or from the newest whole checkpoint of the folder."""
    recipe, folder, network = setup.recipe, setup.folder, setup.network
    marks = fingerprints(setup)
    changed: list[str] = []
    if recipe.train.resume:
        folder.require_same(marks)
        changed = folder.rewrite_recipe(recipe)
    tables = row_tables(setup)
    schedule = build_schedule(recipe.optimizer, setup.plan.steps)
    optimizer = build_optimizer(recipe.optimizer, schedule)
    _, frozen = network.part(setup.start)
    state = first_state(setup, optimizer)
    passes = HeldOutPass(setup)
    if not recipe.train.resume:
        passes.self_test()
        folder.create(recipe, marks, setup.reports)
    checkpoints = Checkpoints(
        folder.checkpoints, keep=recipe.train.keep, best_metric=recipe.train.best_metric
    )
    state, evaluations = restore(state, checkpoints, setup)
    start_step = int(state.step)
    if recipe.train.resume and start_step == 0:
        passes.self_test()
    step = build_train_step(
        network, setup.objective, optimizer, schedule, setup.reference_plan, state
    )
    if recipe.train.profile is not None:
        step = ReadableStep(step)
    hooks = build_hooks(setup, start_step, step)
    iterator = step_batches(setup.train, setup.plan, start_step=start_step)
    parts = Parts(
        step=watched(step, setup.compilations, hooks, start_step),
        frozen=frozen,
        live=setup.reference if setup.reference_plan.mode == "live" else None,
        tables=tables,
        row_ids=setup.train.row_ids,
        place=lambda tree: place_batch(tree, setup.policy.mesh),
        evaluate=passes.evaluate if setup.held_out is not None else None,
        sample=sample,
        after_first=first_update_check(setup),
        record={"recipe": marks["recipe"], "total_steps": setup.plan.steps},
        data_state=iterator.get_state,
    )
    started = time.monotonic()
    try:
        announce(hooks, start_step, checkpoints, setup, changed)
        if start_step == 0:
            look_before(parts, state, hooks, evaluations)
        result = fit(
            state, iterator, parts, cadence_of(setup), yardstick(setup), checkpoints, hooks,
            evaluations,
        )  # fmt: skip
    finally:
        iterator.close()
        for hook in hooks:
            hook.close()
    return result, checkpoints, time.monotonic() - started


def watched(
    step: Callable[..., Any], compilations: Compilations, hooks: list[Hook], start_step: int
) -> Callable[..., Any]:
    """Wrap the update: tell when it was compiled, and when it was compiled again."""
    done, known = start_step, 0

    def watching(*arguments: Any) -> Any:
        nonlocal done, known
        result = step(*arguments)
        done, times = done + 1, compilations.count("train_step")
        if times == known:
            return result
        event = "recompiled", f"the training step was compiled {times} times"
        if not known:
            jax.block_until_ready(result)
            compiled = terminal.compiled_line(compilations.summary())
            event = "first_step", f"{time.monotonic() - STARTED:.1f} s after the start: {compiled}"
        known = times
        for hook in hooks:
            hook.on_event(done, *event)
        return result

    return watching


def build_hooks(setup: Setup, start_step: int, step: Any) -> list[Hook]:
    """Make the run's listeners."""
    folder, train = setup.folder, setup.recipe.train
    hooks: list[Hook] = [
        JsonLines(folder.path, start_step=start_step, log_steps=train.log_steps),
        TensorBoard(folder.tensorboard, start_step=start_step),
        terminal.TrainingProgress(setup.plan.steps, start_step),
    ]
    if isinstance(step, ReadableStep) and train.profile is not None:
        hooks.append(Profiler(folder.path, train.profile, step.text, terminal.show_profile))
    return hooks


def look_before(
    parts: Parts, state: TrainState, hooks: list[Hook], evaluations: dict[int, dict[str, float]]
) -> None:
    """Evaluate and sample before step 1."""
    if parts.evaluate is not None:
        evaluations[0] = parts.evaluate(state.trainable, 0)
        for hook in hooks:
            hook.on_eval(0, evaluations[0])
    parts.sample(state.trainable, 0)


def restore(
    state: TrainState, checkpoints: Checkpoints, setup: Setup
) -> tuple[TrainState, dict[int, dict[str, float]]]:
    """Read the newest whole checkpoint of a resumed run, and its evaluations so far."""
    if not setup.recipe.train.resume or not checkpoints.steps:
        return state, {}
    step = checkpoints.steps[-1]
    state = checkpoints.restore(step, state)
    return state, setup.folder.evaluations(up_to=step)


def announce(
    hooks: list[Hook], start: int, checkpoints: Checkpoints, setup: Setup, changed: list[str]
) -> None:
    """Record how the run began."""
    events = [("torn_save", f"ignored and removed: {name}") for name in checkpoints.discarded]
    if start == 0:
        events.append(("memory", setup.memory))
    if setup.attention_notice is not None:
        events.append(("attention", setup.attention_notice))
    if setup.recipe.train.resume:
        events.append(("resumed", f"continues after step {start}"))
        events += [("setting_changed", change) for change in changed]
    for kind, message in events:
        for hook in hooks:
            hook.on_event(start, kind, message)


def model_with(setup: Setup, trainable: Any) -> Any:
    """Build the decoder that holds the given trained arrays."""
    _, frozen = setup.network.part(setup.start)
    weights = setup.network.join(trainable, frozen)
    return nnx.merge(setup.network.graphdef, weights.base, weights.adapter)
