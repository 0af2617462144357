# SPDX-License-Identifier: Apache-2.0
"""Setup → trained run: the loop with its parts, checkpoints and listeners."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import optax
from flax import nnx

from alignax.cli import terminal
from alignax.cli.explaining import explainer
from alignax.cli.main import STARTED
from alignax.cli.passes import HeldOutPass, row_tables
from alignax.cli.run_folder import skipped_steps
from alignax.cli.setup import Setup, fingerprints, start_state
from alignax.data.pipeline import step_batches
from alignax.errors import StoppedByGuard
from alignax.models.sharding import commit, place_batch
from alignax.train.checkpoint import Checkpoints
from alignax.train.compilations import Compilations
from alignax.train.hooks import Hook, JsonLines, TensorBoard, set_aside_after
from alignax.train.loop import Cadence, Parts, Result, Speed, fit, measure_peak_flops
from alignax.train.optimizer import build_optimizer, build_schedule
from alignax.train.profiler import Profiler, ReadableStep
from alignax.train.rollback import RollBack, Rollbacks, Watch
from alignax.train.selftest import check_first_loss, check_first_update
from alignax.train.step import TrainState, build_train_step


def first_update_check(setup: Setup, rollbacks: Rollbacks) -> Callable[..., None]:
    """Make the check that the loop runs after the first update."""
    equal_start = not (
        setup.recipe.reference.start == "base" and setup.policy.adapter_hash is not None
    )
    objective = setup.objective.at(0)

    def check(before: TrainState, after: TrainState, values: Mapping[str, float]) -> None:
        if objective.is_plain_dpo and equal_start:
            beta = float(objective.beta) * rollbacks.beta
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


@dataclass
class Prepared:
    """What all attempts of a run share.

    Attributes:
        setup: Model, rows and settings.
        build_step: Makes the compiled update, with the beta of now.
        step: The update.
        make_state: Makes the state of step 0.
        checkpoints: Where states go.
        rollbacks: Those so far.
        parts: What the loop works with, but for what belongs to one attempt.
    """

    setup: Setup
    build_step: Callable[[], Callable[..., Any]]
    step: Callable[..., Any]
    make_state: Callable[[], TrainState]
    checkpoints: Checkpoints
    rollbacks: Rollbacks
    parts: Callable[..., Parts]


def run(setup: Setup, sample: Callable[[Any, int], None]) -> tuple[Result, Checkpoints, float]:
    """Train: from step 0, or from the newest whole checkpoint of the folder.

    A rollback is another attempt from the last healthy checkpoint. When there were too many, the
    result is that checkpoint, and ``Result.stopped`` says why.
    """
    recipe, folder = setup.recipe, setup.folder
    marks = fingerprints(setup)
    changed: list[str] = []
    if recipe.train.resume:
        folder.require_same(marks)
        changed = folder.rewrite_recipe(recipe)
    passes = HeldOutPass(setup)
    prepared, state = prepare(setup, passes, sample, marks)
    checkpoints, rollbacks = prepared.checkpoints, prepared.rollbacks
    state, evaluations = restore(state, checkpoints, setup)
    state = rollbacks.slowed(state)
    if recipe.train.resume and int(state.step) == 0:
        passes.self_test()
    started = time.monotonic()
    events = opening = opening_events(int(state.step), checkpoints, setup, changed)
    while True:
        try:
            result = attempt(prepared, state, evaluations, events)
            return result, checkpoints, time.monotonic() - started
        except StoppedByGuard as stopped:
            result = given_up(prepared, stopped, evaluations)
            return result, checkpoints, time.monotonic() - started
        except RollBack as wanted:
            if rollbacks.exhausted:
                result = given_up(prepared, wanted.stopped, evaluations)
                return result, checkpoints, time.monotonic() - started
            to_step = undo(prepared, evaluations)
            # Noted last: a kill before this line finds the same bad end again and comes back here.
            line = rollbacks.add(wanted, to_step=to_step)
            terminal.warn(line)
            state = rollbacks.slowed(state_at(prepared, to_step))
            if recipe.guards.beta_factor != 1.0:
                prepared.step = prepared.build_step()
            lines = [("rollback", record["line"]) for record in rollbacks.done]
            # Files of a run that is at step 0 again begin anew.
            events = lines[-1:] if to_step else [*opening, *lines]


def prepare(
    setup: Setup, passes: HeldOutPass, sample: Callable[[Any, int], None], marks: Any
) -> tuple[Prepared, TrainState]:
    """Compile nothing yet, but build all that a run needs; a new run's folder is created here."""
    recipe, folder = setup.recipe, setup.folder
    tables = row_tables(setup)
    schedule = build_schedule(recipe.optimizer, setup.plan.steps)
    optimizer = build_optimizer(recipe.optimizer, schedule)
    _, frozen = setup.network.part(setup.start)
    state = first_state(setup, optimizer)
    if not recipe.train.resume:
        passes.self_test()
        folder.create(recipe, marks, setup.reports)
    checkpoints = Checkpoints(
        folder.checkpoints, keep=recipe.train.keep, best_metric=recipe.train.best_metric
    )
    rollbacks = Rollbacks(folder.rollbacks_file, recipe.guards)
    # The state itself is given away with the first update.
    like = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state
    )

    def build_step() -> Any:
        # Held-out figures keep the recipe's beta: those before a rollback are comparable.
        objective = setup.objective.tied(rollbacks.beta)
        step = build_train_step(
            setup.network, objective, optimizer, schedule, setup.reference_plan, like
        )
        return step if recipe.train.profile is None else ReadableStep(step)

    live = setup.reference if setup.reference_plan.mode == "live" else None
    parts = partial(
        Parts,
        frozen=frozen,
        live=live,
        tables=tables,
        place=lambda tree: place_batch(tree, setup.policy.mesh),
        evaluate=passes.evaluate if setup.held_out is not None else None,
        sample=sample,
        after_first=first_update_check(setup, rollbacks),
        explain=explainer(setup, frozen, live),
        record={"recipe": marks["recipe"], "total_steps": setup.plan.steps},
    )
    make_state = partial(first_state, setup, optimizer)
    prepared = Prepared(setup, build_step, build_step(), make_state, checkpoints, rollbacks, parts)
    return prepared, state


def attempt(
    prepared: Prepared,
    state: TrainState,
    evaluations: dict[int, dict[str, float]],
    events: Sequence[tuple[str, str]],
) -> Result:
    """Train from a state to the end, to a signal, or to a guard's objection."""
    setup, start_step = prepared.setup, int(state.step)
    hooks = build_hooks(setup, start_step, prepared.step)
    iterator = step_batches(setup.train, setup.plan, start_step=start_step)
    watch = Watch(
        setup.recipe.guards,
        evaluations,
        clip_norm=setup.recipe.optimizer.clip_norm,
        skipped=skipped_steps(setup.folder, up_to=start_step),
    )
    parts = prepared.parts(
        step=watched(prepared.step, setup.compilations, hooks, start_step),
        data_state=iterator.get_state,
        watch=watch,
        passed_over=prepared.rollbacks.passed_over,
    )
    try:
        announce(hooks, start_step, events)
        if start_step == 0:
            look_before(parts, state, hooks, evaluations)
        result = fit(
            state, iterator, parts, cadence_of(setup), yardstick(setup), prepared.checkpoints,
            hooks, evaluations,
        )  # fmt: skip
        if result.signal_number is None:
            for note in watch.closing_notes():
                terminal.say(note)
                announce(hooks, result.step, [("note", note)])
        return result
    finally:
        iterator.close()
        for hook in hooks:
            hook.close()


def undo(prepared: Prepared, evaluations: dict[int, dict[str, float]]) -> int:
    """Forget what came after the last healthy step; returns that step."""
    step = prepared.checkpoints.healthy_step
    prepared.checkpoints.forget_after(step)
    set_aside_after(prepared.setup.folder.path, step)
    for later in [at for at in evaluations if at > step or not step]:
        del evaluations[later]
    return step


def state_at(prepared: Prepared, step: int) -> TrainState:
    """Read a saved state, or make the one before step 1."""
    state = prepared.make_state()
    return prepared.checkpoints.restore(step, state) if step else state


def given_up(
    prepared: Prepared, stopped: StoppedByGuard, evaluations: dict[int, dict[str, float]]
) -> Result:
    """Take the last healthy state as the result of a run that a guard ended.

    Raises:
        StoppedByGuard: There is none.
    """
    step = prepared.checkpoints.healthy_step
    if not step:
        raise stopped
    prepared.checkpoints.forget_after(step)
    kept = {at: values for at, values in evaluations.items() if at <= step}
    result = Result(state_at(prepared, step), step, kept)
    result.stopped = stopped
    return result


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


def opening_events(
    start: int, checkpoints: Checkpoints, setup: Setup, changed: list[str]
) -> list[tuple[str, str]]:
    """List how the run began: (kind, message)."""
    events = [("torn_save", f"ignored and removed: {name}") for name in checkpoints.discarded]
    if start == 0:
        events.append(("memory", setup.memory))
    if setup.attention_notice is not None:
        events.append(("attention", setup.attention_notice))
    if setup.recipe.train.resume:
        events.append(("resumed", f"continues after step {start}"))
        events += [("setting_changed", change) for change in changed]
    return events


def announce(hooks: Sequence[Hook], step: int, events: Sequence[tuple[str, str]]) -> None:
    """Tell the hooks what happened."""
    for kind, message in events:
        for hook in hooks:
            hook.on_event(step, kind, message)


def model_with(setup: Setup, trainable: Any) -> Any:
    """Build the decoder that holds the given trained arrays."""
    _, frozen = setup.network.part(setup.start)
    weights = setup.network.join(trainable, frozen)
    return nnx.merge(setup.network.graphdef, weights.base, weights.adapter)
