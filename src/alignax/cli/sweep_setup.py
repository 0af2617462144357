# SPDX-License-Identifier: Apache-2.0
"""Variants of a recipe → what they share, their losses and adapters, and the state of step 0."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from alignax.cli.grid import SEED, Variant, shared_recipe
from alignax.cli.loading import Policy
from alignax.cli.run_folder import digest
from alignax.cli.setup import Crowd, Setup, build_objective, fingerprints, prepare, start_state
from alignax.errors import UsageError
from alignax.losses import Objective
from alignax.losses.alternatives import stack, union
from alignax.models.lora import LoraSpec
from alignax.models.sharding import commit
from alignax.train.optimizer import build_optimizer, build_schedule
from alignax.train.step import TrainState
from alignax.train.variants import VariantSettings, fresh_adapter, stack_optimizers, stack_states


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
        graph = self.setup.policy.lora.scale
        factors = [spec.scale / graph for spec in self.specs]
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
    specs = [spec_of(variant, setup.policy) for variant in variants]
    bound = [objective.over(setup.plan.steps) for objective in objectives]
    return Sweep(setup, list(variants), bound, specs)


def spec_of(variant: Variant, policy: Policy) -> LoraSpec:
    """Shape of a variant's adapter; one that is continued keeps its own."""
    assert policy.lora is not None
    if variant.recipe.model.adapter is not None:
        return policy.lora
    lora = variant.recipe.lora
    return replace(policy.lora, rank=lora.rank, alpha=lora.alpha)


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


def marks_of(sweep: Sweep) -> dict[str, Any]:
    """Identify all that a continuation must share: that of a run, and the variants."""
    marks = fingerprints(sweep.setup)
    settings = {variant.name: dict(variant.settings) for variant in sweep.variants}
    shown = {f"variant {name}": str(values) for name, values in settings.items()}
    return marks | {"variants": digest(settings), "settings": marks["settings"] | shown}


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
