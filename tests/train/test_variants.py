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


def alone(run, loss, knobs, section, rank, alpha, seed, steps=STEPS):
    """The single run: its losses and its adapter."""
    single = Run(
        Rows(24), batch_size=6, epochs=5, microbatches=2, model=policy(spec=spec_of(rank, alpha))
    )
    adapter = fresh_adapter(single.network, single.start, spec_of(rank, alpha), seed, rank)
    schedule = build_schedule(section, STEPS)
    optimizer = build_optimizer(section, schedule)
    objective = build_loss(loss, kind="pair", **knobs).over(STEPS)
    state = commit(init_state(adapter, optimizer, jax.random.key(seed)), run.mesh)
    step = build_train_step(
        single.network, objective, optimizer, schedule, ReferencePlan("cached"), state
    )
    losses = []
    for index in range(steps):
        state, metrics = step(state, single.frozen, None, *inputs(run, index))
        losses.append(float(metrics["loss"].mean))
    return np.array(losses), state.trainable


class Together:
    """All variants of a grid."""

    def __init__(self, run, grid=GRID, *, at_once, steps=STEPS):
        self.run = run
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
            )
            for *_, rank, alpha, seed in grid
        ]
        self.state = commit(stack_states(states), run.mesh)
        self.running = np.ones(len(grid), bool)
        self.step = build_variants_step(
            run.network, forms, sections[0], ReferencePlan("cached"), self.state, at_once=at_once
        )

    def update(self, index):
        self.state, metrics = self.step(
            self.state, self.settings, self.running, self.run.frozen, None, *inputs(self.run, index)
        )
        return metrics


@pytest.fixture(scope="module")
def singles(run):
    return [alone(run, *variant) for variant in GRID]


@pytest.mark.parametrize("at_once", [1, 2, 8])
def test_each_variant_is_the_single_run(run, singles, at_once):
    """β, a schedule of β, loss, smoothing, rate, warm-up, decay, rank, alpha and seed at once."""
    together = Together(run, at_once=at_once)
    losses = []
    for index in range(STEPS):
        loss = together.update(index)["loss"]
        losses.append(np.asarray(loss.total) / np.asarray(loss.weight))
    for place, (expected, adapter) in enumerate(singles):
        rank = GRID[place][3]
        np.testing.assert_allclose(np.stack(losses)[:, place], expected, rtol=1e-5, atol=1e-7)
        mine = variant_of(together.state, place).trainable
        ours, theirs = flat(with_rank(mine, rank)), flat(adapter)
        assert np.linalg.norm(ours - theirs) <= 1e-5 * np.linalg.norm(theirs)
        # What pads the rank never moves.
        assert np.linalg.norm(flat(mine)) == pytest.approx(np.linalg.norm(ours), rel=1e-6)
    assert together.step._cache_size() == 1
