# SPDX-License-Identifier: Apache-2.0
"""Plans deal every example once an epoch, in equal and well-filled steps."""

import numpy as np
import pytest

from alignax.data.deal import deal, spread
from alignax.data.plan import plan_epochs, row_tiles, scoring_plan
from alignax.errors import DataError
from alignax.shapes import ROW_UNIT
from tests.data.lengths import hh_like, indices, ultrafeedback_like


def compositions(plan):
    return [sorted(indices(plan.step(i))) for i in range(plan.steps)]


@pytest.mark.parametrize("count", [1, 7, 16, 17, 40, 64, 240, 1571])
def test_every_example_once_an_epoch_in_equal_steps(count):
    plan = plan_epochs(hh_like(count), batch_size=16, epochs=2, seed=3)
    assert plan.steps == 2 * plan.steps_per_epoch == 2 * -(-count // 16)
    for epoch in range(2):
        places = range(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch)
        steps = [indices(plan.step(place)) for place in places]
        assert {plan.epoch_of(place) for place in places} == {epoch}
        assert sorted(i for step in steps for i in step) == list(range(count))
        sizes = [len(step) for step in steps]
        assert max(sizes) == -(-count // plan.steps_per_epoch) <= 16
        assert max(sizes) - min(sizes) <= 1


def test_steps_and_fractions_of_epochs():
    lengths = hh_like(64)
    assert plan_epochs(lengths, batch_size=16).steps == 4
    assert plan_epochs(lengths, batch_size=16, epochs=1.5).steps == 6
    assert plan_epochs(lengths, batch_size=16, epochs=0.1).steps == 1
    plan = plan_epochs(lengths, batch_size=16, steps=11)
    assert plan.steps == 11
    assert plan.epoch_of(10) == 2


def test_order_is_a_pure_function_of_seed_and_epoch():
    lengths = hh_like(100)
    short, long = (plan_epochs(lengths, batch_size=8, epochs=e, seed=17) for e in (2, 3))
    assert compositions(short) == compositions(long)[: short.steps]
    per_epoch = long.steps_per_epoch
    assert compositions(long)[:per_epoch] != compositions(long)[per_epoch : 2 * per_epoch]
    other = plan_epochs(lengths, batch_size=8, epochs=2, seed=18)
    assert compositions(other) != compositions(short)


@pytest.mark.parametrize(
    "settings",
    [
        {"packing": False},
        {"packing": False, "rows": 4},
        {"packing": False, "microbatches": 3},
        {"microbatches": 8},
        {"microbatches": 4, "rows": 2},
        {"rows": 4},
        {"microbatch_tokens": 512},
    ],
)
def test_steps_hold_the_same_examples_however_they_are_laid_out(settings):
    lengths = hh_like(50)
    packed = plan_epochs(lengths, batch_size=8, epochs=2)
    other = plan_epochs(lengths, batch_size=8, epochs=2, **settings)
    assert compositions(other) == compositions(packed)
    g, b = other.shape[:2]
    assert g == settings.get("microbatches", g)
    assert b % settings.get("rows", 1) == 0
    for i in range(other.steps):
        step = other.step(i)
        assert [len(micro) for micro in step] == [b] * g
        if not settings.get("packing", True):
            assert all(len(row) <= 1 for micro in step for row in micro)


def test_unpacked_micro_batches_keep_to_their_tokens():
    shape = plan_epochs(np.full((64, 3), 170), batch_size=16, packing=False).shape
    assert (shape.g, shape.b, shape.t) == (4, 4, 512)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("make", "count"),
    [(hh_like, 1571), (hh_like, 1414), (ultrafeedback_like, 660), (ultrafeedback_like, 594)],
)
def test_rows_are_full(make, count, seed):
    lengths = make(count, seed)
    assert plan_epochs(lengths, batch_size=16, epochs=2, seed=seed).fill >= 0.95
    assert scoring_plan(lengths).fill >= 0.95


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("batch_size", [2, 4, 16])
@pytest.mark.parametrize("limit", [1024, 1500, 4096])
@pytest.mark.parametrize("packing", [True, False])
def test_no_micro_batch_holds_more_than_was_named(rows, batch_size, limit, packing):
    for lengths in (hh_like(200), ultrafeedback_like(120)):
        plan = plan_epochs(
            lengths, batch_size=batch_size, microbatch_tokens=limit, rows=rows, packing=packing
        )
        assert plan.shape.b * plan.shape.t <= rows * limit
        scored = scoring_plan(lengths, microbatch_tokens=limit, rows=rows)
        assert scored.shape.b * scored.shape.t <= rows * limit


def test_an_example_that_is_longer_by_itself_sets_the_row_length():
    lengths = np.concatenate([hh_like(30), [[700, 200, 150]]])
    for plan in (
        plan_epochs(lengths, batch_size=4, microbatch_tokens=512),
        plan_epochs(lengths, batch_size=4, microbatch_tokens=512, packing=False),
        scoring_plan(lengths, microbatch_tokens=512),
    ):
        assert (plan.shape.b, plan.shape.t) == (1, 1088)


@pytest.mark.parametrize("count", [1, 7, 40, 240])
@pytest.mark.parametrize("make", [hh_like, ultrafeedback_like])
def test_shape_fits_every_row_tightly(make, count):
    lengths = make(count)
    for plan in (plan_epochs(lengths, batch_size=16, epochs=2), scoring_plan(lengths)):
        rows = [row for e in plan.layouts for step in e for micro in step for row in micro if row]
        shape = plan.shape
        assert shape.t == -(-max(lengths[row].sum() for row in rows) // ROW_UNIT) * ROW_UNIT
        assert 0 <= shape.a - max(lengths[row, 1:].sum() for row in rows) < 64
        assert 0 <= shape.m - max(len(row_tiles(lengths[row])) for row in rows) < 8
        assert shape.p == max(map(len, rows))
        assert shape.s == 2
        used = lengths.sum() / (plan.steps_per_epoch * shape.g * shape.b * shape.t)
        np.testing.assert_allclose(plan.fill, used, rtol=1e-12)


def test_deal_evens_out_sums():
    sizes = np.random.default_rng(0).integers(50, 1000, 1571)
    hands = deal(sizes, 99, (0, 0))
    sums = [sizes[hand].sum() for hand in hands]
    assert {len(hand) for hand in hands} == {15, 16}
    assert max(sums) / np.mean(sums) < 1.05


def test_spread_finds_the_even_split():
    """Sizes 7 6 5 4 2 over two rows: 12 and 12."""
    rows, load = spread([0, 1, 2, 3, 4], np.array([7, 6, 5, 4, 2]), 2)
    assert load == 12
    assert sorted(map(sorted, rows)) in ([[0, 2], [1, 3, 4]], [[0, 2], [1, 3, 4]][::-1])


def test_rows_are_as_even_as_the_best_split():
    """Nine sizes over three rows, against all 3^9 splits: within 2 % of the best."""
    splits = np.array(np.meshgrid(*[range(3)] * 9)).reshape(9, -1)
    for seed in range(10):
        sizes = np.random.default_rng(seed).integers(100, 1000, 9)
        loads = np.stack([np.where(splits == row, sizes[:, None], 0).sum(0) for row in range(3)])
        assert spread(range(9), sizes, 3)[1] <= 1.02 * loads.max(0).min()


def test_scoring_covers_every_example_even_a_very_long_one():
    lengths = np.concatenate([hh_like(30), [[9000, 500, 400]]])
    plan = scoring_plan(lengths, microbatch_tokens=1024, rows=2)
    assert plan.shape[:2] == (1, 2)
    assert sorted(i for step in compositions(plan) for i in step) == list(range(31))


def test_nothing_to_plan():
    empty = np.zeros((0, 3), int)
    with pytest.raises(DataError, match="no rows to train on"):
        plan_epochs(empty, batch_size=4)
    with pytest.raises(DataError, match="no rows to score"):
        scoring_plan(empty)
