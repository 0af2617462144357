# SPDX-License-Identifier: Apache-2.0
"""Variants under one update equal the single runs that they stand for."""

import jax
import numpy as np
import pytest

from alignax.losses import build_loss
from alignax.losses.alternatives import stack, union
from alignax.models.lora import LoraSpec
from alignax.models.sharding import commit
from alignax.recipe import OptimizerSection
from alignax.train.optimizer import build_optimizer, build_schedule
from alignax.train.reference import gather_cached
from alignax.train.step import ReferencePlan, build_train_step, init_state
from alignax.train.variants import (
    VariantSettings,
    build_variants_step,
    fresh_adapter,
    stack_optimizers,
    stack_states,
    variant_of,
    with_rank,
)
from tests.train.tiny import Rows, Run, flat, policy

STEPS = 20
CACHED = ReferencePlan("cached")
BASE = OptimizerSection(learning_rate=1e-2)
GRID = (
    ("sigmoid", {"beta": 0.1}, BASE, 4, 8.0, 0),
    ("sigmoid", {"beta": 0.5}, BASE.model_copy(update={"learning_rate": 3e-3}), 4, 8.0, 1),
    ("ipo", {"beta": "0.1 -> 0.4"}, BASE.model_copy(update={"warmup_ratio": 0.5}), 2, 8.0, 0),
    ("sigmoid", {"beta": 0.1, "label_smoothing": 0.1}, BASE, 3, 9.0, 0),
    ("hinge", {"beta": 0.3}, BASE.model_copy(update={"weight_decay": 0.1}), 4, 2.0, 0),
)
"""Loss, its settings, optimizer, rank, alpha, seed."""


@pytest.fixture(scope="module")
def run():
    """Rows, network, plan and reference that all share."""
    return Run(Rows(24), batch_size=6, epochs=5, microbatches=2, model=policy(spec=spec_of(4, 8.0)))


def spec_of(rank, alpha):
    return LoraSpec(rank, alpha, 0.0, ("q_proj", "v_proj"))


def inputs(run, index):
    """Batch and cached reference of a step, placed."""
    batch = run.batch(index)
    return run.place((batch, {"reference": gather_cached(run.table, batch.example)}))


def alone(run, loss, knobs, section, rank, alpha, seed, steps=STEPS, plan=CACHED):
    """The single run: its losses and its adapter."""
    single = Run(
        Rows(24), batch_size=6, epochs=5, microbatches=2, model=policy(spec=spec_of(rank, alpha))
    )
    adapter = fresh_adapter(single.network, single.start, spec_of(rank, alpha), seed, rank)
    schedule = build_schedule(section, STEPS)
    optimizer = build_optimizer(section, schedule)
    objective = build_loss(loss, kind="pair", **knobs).over(STEPS)
    state = init_state(
        adapter,
        optimizer,
        jax.random.key(seed),
        memory=objective.start_memory(),
        moving_reference=plan.mode == "moving",
    )
    state = commit(state, run.mesh)
    step = build_train_step(single.network, objective, optimizer, schedule, plan, state)
    live = single.reference if plan.mode == "live" else None
    losses = []
    for index in range(steps):
        state, metrics = step(state, single.frozen, live, *inputs(run, index))
        losses.append(float(metrics["loss"].mean))
    return np.array(losses), state.trainable


class Together:
    """All variants of a grid."""

    def __init__(self, run, grid=GRID, *, at_once, plan=CACHED):
        self.run = run
        self.live = run.reference if plan.mode == "live" else None
        objectives = [
            build_loss(loss, kind="pair", **knobs).over(STEPS) for loss, knobs, *_ in grid
        ]
        forms, choice = stack(objectives)
        sections = [section for _, _, section, *_ in grid]
        rates, differing = stack_optimizers(sections, STEPS)
        scale = np.array([alpha / rank / 2.0 for *_, rank, alpha, _ in grid], np.float32)
        self.settings = VariantSettings(choice, rates, differing, scale)
        schedule = build_schedule(sections[0], STEPS)
        optimizer = build_optimizer(sections[0], schedule)
        states = [
            init_state(
                fresh_adapter(run.network, run.start, spec_of(rank, alpha), seed, 4),
                optimizer,
                jax.random.key(seed),
                memory=union(objectives).start_memory(),
                moving_reference=plan.mode == "moving",
            )
            for *_, rank, alpha, seed in grid
        ]
        self.state = commit(stack_states(states), run.mesh)
        self.running = np.ones(len(grid), bool)
        self.step = build_variants_step(
            run.network, forms, sections[0], plan, self.state, at_once=at_once
        )

    def update(self, index):
        """Do one step; returns the loss of every variant."""
        arguments = self.settings, self.running, self.run.frozen, self.live
        self.state, metrics = self.step(self.state, *arguments, *inputs(self.run, index))
        total, weight = map(np.asarray, metrics["loss"])
        return total / np.maximum(weight, 1.0)


@pytest.fixture(scope="module")
def singles(run):
    return [alone(run, *variant) for variant in GRID]


@pytest.mark.parametrize("at_once", [1, 2, 8])
def test_each_variant_is_the_single_run(run, singles, at_once):
    """β, a schedule of β, loss, smoothing, rate, warm-up, decay, rank, alpha and seed at once."""
    together = Together(run, at_once=at_once)
    losses = [together.update(index) for index in range(STEPS)]
    for place, (expected, adapter) in enumerate(singles):
        rank = GRID[place][3]
        np.testing.assert_allclose(np.stack(losses)[:, place], expected, rtol=1e-5, atol=1e-7)
        mine = variant_of(together.state, place).trainable
        ours, theirs = flat(with_rank(mine, rank)), flat(adapter)
        assert np.linalg.norm(ours - theirs) <= 1e-5 * np.linalg.norm(theirs)
        # What pads the rank never moves.
        assert np.linalg.norm(flat(mine)) == pytest.approx(np.linalg.norm(ours), rel=1e-6)
    assert together.step._cache_size() == 1


@pytest.mark.parametrize(
    ("losses", "plan"),
    [
        (("sigmoid", "kto", "beta_dpo", "simpo"), CACHED),
        (("sigmoid", "tdpo2", "rpo(kl_weight=0.1)"), ReferencePlan("live")),
        (("sigmoid", "ipo"), ReferencePlan("moving", True, every=2, share=0.5)),
    ],
)
def test_losses_with_other_needs_share_a_step(run, losses, plan):
    """Whole batches, memory, no reference, a live one, a moving one: each is its single run."""
    grid = [(loss, {}, BASE, 4, 8.0, 0) for loss in losses]
    together = Together(run, grid, at_once=1, plan=plan)
    found = [together.update(index) for index in range(4)]
    for place, variant in enumerate(grid):
        own = ReferencePlan("none") if variant[0] == "simpo" else plan
        expected, _ = alone(run, *variant, steps=4, plan=own)
        np.testing.assert_allclose(np.stack(found)[:, place], expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("at_once", [1, 8])
def test_four_devices_equal_one(run, at_once):
    """A mesh of all three axes; the variants' axis lies on none of them."""
    grid = [GRID[0], GRID[2]]
    rows = Rows(24)
    several = Run(
        rows, batch_size=6, epochs=5, microbatches=2, mesh=(1, 2, 2), rows=2,
        model=policy(spec=spec_of(4, 8.0)),
    )  # fmt: skip
    one, four = (Together(parts, grid, at_once=at_once) for parts in (run, several))
    for index in range(2):
        np.testing.assert_allclose(four.update(index), one.update(index), rtol=1e-4)


@pytest.mark.parametrize("at_once", [1, 8])
def test_a_frozen_variant_keeps_its_state(run, at_once):
    together = Together(run, GRID[:2], at_once=at_once)
    together.update(0)
    together.running[1] = False
    before = [flat(variant_of(together.state, k)._replace(key=None)) for k in (0, 1)]
    together.update(1)
    after = [flat(variant_of(together.state, k)._replace(key=None)) for k in (0, 1)]
    assert (before[0] != after[0]).mean() > 0.5
    # Only the number of the step, which all share, goes on.
    assert (before[1] != after[1]).sum() == 1


def test_objectives_that_differ_in_numbers_share_a_form():
    names = ("sigmoid", "sigmoid(label_smoothing=0.2)", "ipo", "ipo(length_normalised=false)")
    forms, choice = stack([build_loss(name, kind="pair") for name in names])
    assert choice.index.tolist() == [0, 0, 1, 2]
    assert [form.places for form in forms] == [((0, "label_smoothing", ""),), (), ()]
    # Variants of another form hold what the form's first member holds.
    np.testing.assert_allclose(choice.numbers[0][:, 0], [0.0, 0.2, 0.0, 0.0])
