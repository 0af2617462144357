# SPDX-License-Identifier: Apache-2.0
"""Variants of a recipe → one trained sweep: the loop of a single run with a vectorised step."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from alignax.cli import terminal
from alignax.cli.grid import SEED, Variant, shared_recipe
from alignax.cli.passes import HeldOutPass, row_tables
from alignax.cli.run_folder import digest
from alignax.cli.setup import (
    Crowd,
    Setup,
    build_objective,
    fingerprints,
    prepare,
    scores_for,
    start_state,
)
from alignax.cli.sweep_progress import SweepProgress
from alignax.cli.training import announce, cadence_of, opening_events, restore, watched, yardstick
from alignax.data.pipeline import step_batches
from alignax.errors import UsageError
from alignax.evaluate.heldout import (
    build_variants_eval_step,
    pairs_of,
    score_heldout,
    summarize_pairs,
)
from alignax.losses import Objective
from alignax.losses.alternatives import stack, union
from alignax.models.lora import LoraSpec
from alignax.models.sharding import commit, place_batch
from alignax.train.checkpoint import Checkpoints
from alignax.train.hooks import Hook, JsonLines, TensorBoard
from alignax.train.loop import Parts, Result, fit
from alignax.train.optimizer import build_optimizer, build_schedule
from alignax.train.selftest import check_first_loss, check_first_update
from alignax.train.step import TrainState
from alignax.train.variants import (
    VariantSettings,
    build_variants_step,
    fresh_adapter,
    stack_optimizers,
    stack_states,
    variant_of,
)
from alignax.train.variants_watch import VariantsWatch, flat_values, values_of


@dataclass
class Sweep:
    """A sweep before its first step.

    Attributes:
        setup: What the variants share; its objective provides for all of them.
        variants: The runs, each with its recipe.
        objectives: Their losses, schedules bound to the steps of the run.
        specs: Shapes of their adapters.
    """

    setup: Setup
    variants: list[Variant]
    objectives: list[Objective]
    specs: list[LoraSpec]

    @property
    def names(self) -> list[str]:
        """Names of the variants, in order."""
        return [variant.name for variant in self.variants]

    @property
    def scales(self) -> np.ndarray | None:
        """[k] scale of each adapter beside that of the graph; None where all are equal."""
        assert self.setup.policy.lora is not None
        graph = self.setup.policy.lora.alpha / self.setup.policy.lora.rank
        factors = [spec.alpha / spec.rank / graph for spec in self.specs]
        return None if set(factors) == {1.0} else np.array(factors, np.float32)

    def settings(self) -> tuple[tuple[Any, ...], VariantSettings]:
        """Forms of the losses, and what differs between the variants as arrays."""
        forms, choice = stack(self.objectives)
        sections = [variant.recipe.optimizer for variant in self.variants]
        rates, numbers = stack_optimizers(sections, self.setup.plan.steps)
        return forms, VariantSettings(choice, rates, numbers, self.scales)


def prepare_sweep(variants: Sequence[Variant], at_once: int | None) -> Sweep:
    """Load, check and lay out what all variants share; nothing is written yet.

    Raises:
        UsageError: A variant's loss refuses its settings, or no rows are held out.
    """
    objectives = objectives_of(variants)
    shared = shared_recipe(variants)
    crowd = Crowd(len(variants), at_once)
    setup = prepare(shared, objective=union(objectives), crowd=crowd)
    if setup.held_out is None:
        raise UsageError(
            "a sweep compares its variants on held-out rows, of which there are none",
            hint="raise data.eval_fraction, or give data.eval_path",
        )
    assert setup.policy.lora is not None
    fixed = setup.recipe.model.adapter is not None
    own, targets = setup.policy.lora, setup.policy.lora.targets
    specs = [
        own if fixed else LoraSpec(lora.rank, lora.alpha, own.dropout, targets)
        for lora in (variant.recipe.lora for variant in variants)
    ]
    bound = [objective.over(setup.plan.steps) for objective in objectives]
    return Sweep(setup, list(variants), bound, specs)


def objectives_of(variants: Sequence[Variant]) -> list[Objective]:
    """Bind every variant's loss; what is wrong with any of them is said at once.

    Raises:
        UsageError: Settings that a loss does not honour, or two variants that mean the same.
    """
    objectives, problems = [], []
    for variant in variants:
        try:
            objectives.append(build_objective(variant.recipe))
        except UsageError as error:
            reasons = error.problems or (error.message,)
            problems += [f"{variant.name} ({variant.label}): {reason}" for reason in reasons]
    if problems:
        raise UsageError("the losses of some variants are not valid", problems=problems)
    seen: dict[Any, str] = {}
    for variant, objective in zip(variants, objectives, strict=True):
        rest = {k: v for k, v in variant.settings.items() if not k.startswith("loss.")}
        key = (objective, tuple(sorted(rest.items())))
        if key in seen:
            problems.append(f"{seen[key]} and {variant.name} ({variant.label}) are the same run")
        seen.setdefault(key, variant.name)
    if problems:
        raise UsageError("some variants mean the same", problems=problems)
    return objectives


def first_states(sweep: Sweep) -> TrainState:
    """Make the state of step 0: every variant's is that of its single run."""
    setup = sweep.setup
    assert setup.policy.lora is not None
    start, _ = setup.network.part(setup.start)
    states = []
    for variant, spec in zip(sweep.variants, sweep.specs, strict=True):
        recipe, adapter = variant.recipe, start
        if recipe.model.adapter is None:
            seed, rank = recipe.train.seed, setup.policy.lora.rank
            adapter = fresh_adapter(setup.network, setup.start, spec, seed, rank)
        schedule = build_schedule(recipe.optimizer, setup.plan.steps)
        optimizer = build_optimizer(recipe.optimizer, schedule)
        states.append(start_state(recipe, setup.objective, adapter, optimizer))
    return commit(stack_states(states), setup.policy.mesh)


class SweepPass:
    """Scores the held-out rows under all variants, over one pass of the reference."""

    def __init__(self, sweep: Sweep, shared: HeldOutPass):
        """Make the program; it is compiled when it is first used.

        Attributes:
            right: By name, which held-out pairs a variant had right when it was last looked at.
        """
        setup = sweep.setup
        self._sweep = sweep
        self._plan = shared.held_out_plan
        self._step = build_variants_eval_step(
            setup.network,
            reference_adapter=setup.reference_plan.adapter,
            columns=setup.objective.columns,
            at_once=setup.at_once,
        )
        _, self._frozen = setup.network.part(setup.start)
        self.right: dict[str, np.ndarray] = {}

    def evaluate(self, trainable: Any, step: int, watch: VariantsWatch) -> dict[str, float]:
        """Measure the variants that run; their values have their names in front."""
        sweep, setup = self._sweep, self._sweep.setup
        assert setup.held_out is not None
        assert self._plan is not None
        scales = sweep.scales
        with terminal.progress("held-out rows", len(setup.held_out)) as advance:
            scores = score_heldout(
                self._step, (trainable, scales, self._frozen), setup.reference,
                setup.batches(setup.held_out, self._plan), len(setup.held_out), advance,
            )  # fmt: skip
        flat: dict[str, float] = {}
        for place, name in enumerate(sweep.names):
            if not watch.running[place]:
                continue
            objective = sweep.objectives[place].at(max(step - 1, 0))
            own = jax.tree.map(lambda values, k=place: values[..., k], scores)
            given = scores_for(objective, setup.held_out)
            values = summarize_pairs(own, objective, given=given)
            chosen, rejected = objective.rewards(pairs_of(own, given))
            self.right[name] = np.asarray(chosen) > np.asarray(rejected)
            watch.saw_evaluation(step, name, values)
            flat |= {f"{name}/{metric}": value for metric, value in values.items()}
        return flat


def marks_of(sweep: Sweep) -> dict[str, Any]:
    """Identify all that a continuation must share: that of a run, and the variants."""
    marks = fingerprints(sweep.setup)
    settings = {variant.name: dict(variant.settings) for variant in sweep.variants}
    shown = {f"variant {name}": str(values) for name, values in settings.items()}
    return marks | {"variants": digest(settings), "settings": marks["settings"] | shown}


@dataclass
class Trained:
    """What a sweep leaves in memory.

    Attributes:
        result: As of a single run; the state holds all variants.
        watch: Evaluations, and what is frozen.
        right: Which held-out pairs each variant has right.
        seconds: Wall time of training with its evaluations.
    """

    result: Result
    watch: VariantsWatch
    right: Mapping[str, np.ndarray]
    seconds: float


def run(sweep: Sweep) -> Trained:
    """Train all variants: from step 0, or from the newest whole checkpoint of the folder."""
    setup, marks = sweep.setup, marks_of(sweep)
    recipe, folder = setup.recipe, setup.folder
    changed: list[str] = []
    if recipe.train.resume:
        folder.require_same(marks)
        changed = folder.rewrite_recipe(recipe)
    shared = HeldOutPass(setup)
    tables = row_tables(setup)
    state = first_states(sweep)
    if not recipe.train.resume:
        shared.self_test()
        folder.create(recipe, marks, setup.reports)
    checkpoints = Checkpoints(
        folder.checkpoints, keep=recipe.train.keep, best_metric=recipe.train.best_metric
    )
    state, evaluations = restore(state, checkpoints, setup)
    started, start_step = time.monotonic(), int(state.step)
    watch = VariantsWatch(
        sweep.names, recipe.guards, folder.path / "frozen.json", evaluations, start_step=start_step
    )
    passes = SweepPass(sweep, shared)
    step = stepping(sweep, state, watch)
    hooks: list[Hook] = [
        JsonLines(folder.path, start_step=start_step, log_steps=recipe.train.log_steps),
        TensorBoard(folder.tensorboard, start_step=start_step),
        SweepProgress(setup.plan.steps, start_step, sweep.variants),
    ]
    iterator = step_batches(setup.train, setup.plan, start_step=start_step)
    _, frozen = setup.network.part(setup.start)
    parts = Parts(
        step=watched(step, setup.compilations, hooks, start_step),
        frozen=frozen,
        live=setup.reference if setup.reference_plan.mode == "live" else None,
        tables=tables,
        row_ids=setup.train.row_ids,
        place=lambda tree: place_batch(tree, setup.policy.mesh),
        evaluate=lambda trainable, at: passes.evaluate(trainable, at, watch),
        sample=lambda trainable, at: None,
        after_first=first_update_check(sweep),
        record={"recipe": marks["recipe"], "total_steps": setup.plan.steps},
        data_state=iterator.get_state,
        watch=watch,
    )
    try:
        announce(hooks, start_step, opening_events(start_step, checkpoints, setup, changed))
        if start_step == 0:
            evaluations[0] = passes.evaluate(state.trainable, 0, watch)
            for hook in hooks:
                hook.on_eval(0, evaluations[0])
        result = fit(
            state, iterator, parts, cadence_of(setup), yardstick(setup), checkpoints, hooks,
            evaluations,
        )  # fmt: skip
    finally:
        iterator.close()
        for hook in hooks:
            hook.close()
    if not passes.right and watch.running.any():
        passes.evaluate(result.state.trainable, result.step, watch)
    return Trained(result, watch, passes.right, time.monotonic() - started)


def stepping(sweep: Sweep, state: TrainState, watch: VariantsWatch) -> Callable[..., Any]:
    """Make the update as the loop calls it: with this sweep's settings and flat metrics."""
    setup = sweep.setup
    forms, settings = sweep.settings()
    compiled = build_variants_step(
        setup.network, forms, setup.recipe.optimizer, setup.reference_plan, state,
        at_once=setup.at_once,
    )  # fmt: skip

    def step(state: TrainState, *inputs: Any) -> tuple[TrainState, dict[str, Any]]:
        running = watch.running.copy()
        if not running.any():
            nothing = {"loss": np.nan, "grad_norm": np.nan, "finite": True}
            return state._replace(step=state.step + 1), nothing
        state, metrics = compiled(state, settings, running, *inputs)
        metrics = jax.device_get(metrics)
        watch.saw_finite(int(state.step), metrics.pop("finite"))
        flat = flat_values(sweep.names, running, metrics)
        losses = [flat[f"{name}/loss"].mean for name in watch.names if f"{name}/loss" in flat]
        norms = metrics["grad_norm"][running]
        whole = {"loss": float(np.mean(losses)), "grad_norm": float(norms.max()), "finite": True}
        return state, whole | flat

    return step


def first_update_check(sweep: Sweep) -> Callable[..., None]:
    """Make the check that the loop runs after the first update, variant by variant."""
    recipe = sweep.setup.recipe
    equal_start = not (
        recipe.reference.start == "base" and sweep.setup.policy.adapter_hash is not None
    )

    def check(before: TrainState, after: TrainState, values: Mapping[str, float]) -> None:
        after = jax.device_get(after)
        shares = []
        for place, name in enumerate(sweep.names):
            own, objective = values_of(name, values), sweep.objectives[place].at(0)
            if not np.isfinite(own["loss"]) or not np.isfinite(own["grad_norm"]):
                continue  # the guard freezes it
            if objective.is_plain_dpo and equal_start:
                check_first_loss(own["loss"], beta=float(objective.beta), dtype=recipe.model.dtype)
            old, new = (variant_of(state, place).trainable for state in (before, after))
            shares.append(check_first_update(old, new, own["grad_norm"]))
        if shares:
            terminal.say(
                f"the first update moved {min(shares):.1%} to {max(shares):.1%} of the trainable "
                f"entries of {len(shares)} variants"
            )

    return check


def about(sweep: Sweep) -> list[str]:
    """Say before the start what will be trained, and what is shared."""
    setup = sweep.setup
    count, together = len(sweep.variants), setup.at_once
    how = "one after another" if together == 1 else f"{together} together"
    lines = [
        f"{count} variants over one base, {how}; {setup.memory}",
        "shared by all: base weights, order of rows, reference pass, held-out rows",
    ]
    if SEED in sweep.variants[0].settings:
        lines.append(
            "seeds change the adapter's start and dropout; the order of rows stays that of seed "
            f"{sweep.variants[0].recipe.train.seed}"
        )
    return lines
