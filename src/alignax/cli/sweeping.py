# SPDX-License-Identifier: Apache-2.0
"""Variants of a recipe → one trained sweep: the loop of a single run with a vectorised step."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from alignax.cli import terminal
from alignax.cli.passes import HeldOutPass, row_tables
from alignax.cli.setup import scores_for
from alignax.cli.sweep_progress import SweepProgress
from alignax.cli.sweep_setup import Sweep, first_states, marks_of
from alignax.cli.training import (
    announce,
    cadence_of,
    look_before,
    opening_events,
    restore,
    watched,
    yardstick,
)
from alignax.data.pipeline import step_batches
from alignax.evaluate.heldout import (
    build_variants_eval_step,
    pairs_of,
    score_heldout,
    summarize_pairs,
)
from alignax.models.sharding import place_batch
from alignax.train.checkpoint import Checkpoints
from alignax.train.hooks import Hook, JsonLines, TensorBoard
from alignax.train.loop import Parts, Result, fit
from alignax.train.selftest import check_first_loss, check_first_update
from alignax.train.step import TrainState
from alignax.train.variants import build_variants_step, variant_of
from alignax.train.variants_watch import VariantsWatch, flat_values, values_of


class SweepPass:
    """Scores the held-out rows under all variants, over one pass of the reference."""

    def __init__(self, sweep: Sweep, shared: HeldOutPass, watch: VariantsWatch):
        """Make the program; it is compiled when it is first used.

        Attributes:
            watch: Knows who runs, and is told what is found.
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
        self.watch = watch
        self.right: dict[str, np.ndarray] = {}

    def evaluate(self, trainable: Any, step: int) -> dict[str, float]:
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
            if not self.watch.running[place]:
                continue
            objective = sweep.objectives[place].at(max(step - 1, 0))
            own = jax.tree.map(lambda values, k=place: values[..., k], scores)
            given = scores_for(objective, setup.held_out)
            values = summarize_pairs(own, objective, given=given)
            chosen, rejected = objective.rewards(pairs_of(own, given))
            self.right[name] = np.asarray(chosen) > np.asarray(rejected)
            self.watch.saw_evaluation(step, name, values)
            flat |= {f"{name}/{metric}": value for metric, value in values.items()}
        return flat


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
        sweep.names,
        recipe.guards,
        folder.path / "frozen.json",
        evaluations,
        start_step=start_step,
        clip_norms=[variant.recipe.optimizer.clip_norm for variant in sweep.variants],
    )
    passes = SweepPass(sweep, shared, watch)
    hooks = hooks_of(sweep, start_step)
    iterator = step_batches(setup.train, setup.plan, start_step=start_step)
    step = watched(stepping(sweep, state, watch), setup.compilations, hooks, start_step)
    parts = parts_of(
        sweep,
        passes,
        step,
        tables=tables,
        data_state=iterator.get_state,
        recipe_digest=marks["recipe"],
    )
    try:
        announce(hooks, start_step, opening_events(start_step, checkpoints, setup, changed))
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
    if not passes.right and watch.running.any():
        passes.evaluate(result.state.trainable, result.step)
    return Trained(result, watch, passes.right, time.monotonic() - started)


def hooks_of(sweep: Sweep, start_step: int) -> list[Hook]:
    """Make the sweep's listeners."""
    folder, train = sweep.setup.folder, sweep.setup.recipe.train
    return [
        JsonLines(folder.path, start_step=start_step, log_steps=train.log_steps),
        TensorBoard(folder.tensorboard, start_step=start_step),
        SweepProgress(sweep.setup.plan.steps, start_step, sweep.variants),
    ]


def parts_of(
    sweep: Sweep,
    passes: SweepPass,
    step: Callable[..., Any],
    *,
    tables: Mapping[str, np.ndarray],
    data_state: Callable[[], Any],
    recipe_digest: str,
) -> Parts:
    """Collect what the loop works with; a sweep answers no prompts."""
    setup = sweep.setup
    _, frozen = setup.network.part(setup.start)
    return Parts(
        step=step,
        frozen=frozen,
        live=setup.reference if setup.reference_plan.mode == "live" else None,
        tables=tables,
        place=lambda tree: place_batch(tree, setup.policy.mesh),
        evaluate=passes.evaluate,
        sample=lambda trainable, at: None,
        after_first=first_update_check(sweep),
        record={"recipe": recipe_digest, "total_steps": setup.plan.steps},
        data_state=data_state,
        watch=passes.watch,
    )


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
            return state._replace(step=state.step + 1), {"finite": True}
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
