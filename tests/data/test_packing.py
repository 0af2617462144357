# SPDX-License-Identifier: Apache-2.0
"""Plans deal every example once in equal steps; packed rows are right token by token."""

import numpy as np
import pytest

from alignax.data.pack import pack
from alignax.data.pipeline import step_batches
from alignax.data.plan import PackShape, deal, plan_epochs, row_tiles, scoring_plan
from alignax.errors import DataError
from alignax.records import EncodedExample
from alignax.shapes import TILE


def example(prompt, *answers, row_id="r"):
    ids = [np.array(a, np.int32) for a in (prompt, *answers)]
    return EncodedExample(row_id, ids[0], tuple(ids[1:]), (True,) * len(answers))


class FakeRows:
    """Examples of given lengths; ids are the example's own index."""

    def __init__(self, lengths):
        self.lengths = np.asarray(lengths)

    def __getitem__(self, index):
        prompt, *answers = self.lengths[index]
        return example([index] * prompt, *[[index] * a for a in answers], row_id=f"row{index}")


def hh_like(count, seed=0):
    rng = np.random.default_rng(seed)
    columns = [rng.lognormal(np.log(m) - 0.3, 0.77, count) for m in (112, 38, 48)]
    return np.clip(np.stack(columns, 1), 3, 300).astype(int)


def uf_like(count, seed=0):
    rng = np.random.default_rng(seed)
    prompt = np.clip(rng.lognormal(4.3, 0.8, count), 10, 400)
    answers = np.minimum(
        np.clip(rng.lognormal(5.6, 0.6, (count, 2)), 10, None), 512 - prompt[:, None]
    )
    return np.concatenate([prompt[:, None], answers], 1).astype(int)


def indices(step):
    return [i for micro in step for row in micro for i in row]


def test_two_pairs_token_by_token():
    rows = [example([5, 6, 7], [8, 2], [9]), example([3], [4], [1, 2])]
    shape = PackShape(g=1, b=1, t=TILE, a=8, p=3, s=2, m=2)
    batch = pack(rows, [[[0, 1]]], shape)
    row = {name: getattr(batch, name)[0, 0] for name in batch._fields}
    pad = [0] * (TILE - 10)
    np.testing.assert_array_equal(row["ids"], [5, 6, 7, 8, 2, 9, 3, 4, 1, 2, *pad])
    np.testing.assert_array_equal(row["positions"], [0, 1, 2, 3, 4, 3, 0, 1, 1, 2, *pad])
    np.testing.assert_array_equal(row["segments"], [1] * 6 + [2] * 4 + pad)
    np.testing.assert_array_equal(row["branches"], [0, 0, 0, 1, 1, 2, 0, 1, 2, 2, *pad])
    # The last prompt token (place 2, then 6) predicts the first token of both answers.
    np.testing.assert_array_equal(row["answer_index"][:6], [2, 3, 2, 6, 6, 8])
    np.testing.assert_array_equal(row["answer_target"][:6], [8, 2, 9, 4, 1, 2])
    np.testing.assert_array_equal(row["answer_slot"], [0, 0, 1, 2, 3, 3, 6, 6])
    assert row["answer_count"] == 6
    np.testing.assert_array_equal(row["example"], [0, 1, -1])
    np.testing.assert_array_equal(row["tiles"], [[0, 0], [-1, -1]])


def test_tiles_are_exactly_the_live_ones():
    lengths = np.array([[100, 60, 150], [20, 3, 4], [130, 140, 5], [1, 1, 1]])
    rows = FakeRows(lengths)
    shape = PackShape(1, 1, 5 * TILE, 512, 4, 2, 32)
    batch = pack(rows, [[[0, 1, 2, 3]]], shape)
    seg, branch = batch.segments[0, 0], batch.branches[0, 0]
    live = set()
    for q in range(len(seg)):
        for k in range(q + 1):
            same = seg[q] == seg[k] and seg[q] > 0
            if same and branch[k] in (0, branch[q]):
                live.add((q // TILE, k // TILE))
    assert [tuple(t) for t in row_tiles(lengths)] == sorted(live)


@pytest.mark.parametrize("count", [7, 40, 64, 240, 1571])
def test_every_example_once_an_epoch_in_equal_steps(count):
    lengths = hh_like(count)
    plan = plan_epochs(lengths, batch_size=16, epochs=2, seed=3)
    assert plan.steps == 2 * plan.steps_per_epoch == 2 * -(-count // 16)
    for epoch in range(2):
        steps = [plan.step(epoch * plan.steps_per_epoch + i) for i in range(plan.steps_per_epoch)]
        assert sorted(i for step in steps for i in indices(step)) == list(range(count))
        sizes = {len(indices(step)) for step in steps}
        assert max(sizes) <= 16
        assert max(sizes) - min(sizes) <= 1


def test_order_is_a_pure_function_of_seed_and_epoch():
    lengths = hh_like(100)
    short, long = (plan_epochs(lengths, batch_size=8, epochs=e, seed=17) for e in (2, 3))
    same = [indices(short.step(i)) == indices(long.step(i)) for i in range(short.steps)]
    assert all(same)
    first, second = ([indices(long.step(e * 13 + i)) for i in range(13)] for e in (0, 1))
    assert first != second
    other = plan_epochs(lengths, batch_size=8, epochs=1, seed=18)
    assert [indices(other.step(i)) for i in range(13)] != first


def test_packed_and_padded_have_the_same_steps():
    lengths = hh_like(50)
    packed = plan_epochs(lengths, batch_size=8, epochs=1)
    padded = plan_epochs(lengths, batch_size=8, epochs=1, packing=False)
    for i in range(packed.steps):
        assert sorted(indices(packed.step(i))) == sorted(indices(padded.step(i)))
        assert all(len(row) <= 1 for micro in padded.step(i) for row in micro)


@pytest.mark.parametrize("lengths", [hh_like(1571), uf_like(660)], ids=["hh", "ultrafeedback"])
def test_fill(lengths):
    assert plan_epochs(lengths, batch_size=16, epochs=1).fill >= 0.95
    assert scoring_plan(lengths).fill >= 0.95


@pytest.mark.parametrize("micro", [1, 2, 4, 8])
def test_micro_batches_split_a_step(micro):
    plan = plan_epochs(hh_like(64), batch_size=8, epochs=1, microbatches=micro, rows=2)
    assert plan.shape.g == micro
    assert plan.shape.b == 2
    reference = plan_epochs(hh_like(64), batch_size=8, epochs=1)
    for i in range(plan.steps):
        assert sorted(indices(plan.step(i))) == sorted(indices(reference.step(i)))


def test_deal_evens_out_sums():
    sizes = np.random.default_rng(0).integers(50, 1000, 1571)
    sums = [sizes[hand].sum() for hand in deal(sizes, 99, (0, 0))]
    counts = {len(hand) for hand in deal(sizes, 99, (0, 0))}
    assert counts == {15, 16}
    assert max(sums) / np.mean(sums) < 1.05


def test_scoring_plan_covers_every_example_even_a_very_long_one():
    lengths = np.concatenate([hh_like(30), [[9000, 500, 400]]])
    plan = scoring_plan(lengths, microbatch_tokens=1024, rows=2)
    assert sorted(i for s in range(plan.steps) for i in indices(plan.step(s))) == list(range(31))


def test_nothing_to_plan_and_misfit_are_errors():
    empty = np.zeros((0, 3), int)
    for make in (lambda: plan_epochs(empty, batch_size=4), lambda: scoring_plan(empty)):
        with pytest.raises(DataError, match="no rows"):
            make()
    with pytest.raises(DataError, match="row0"):
        pack(FakeRows([[100, 20, 20]]), [[[0]]], PackShape(1, 1, TILE, 64, 1, 2, 8))


@pytest.mark.parametrize("start", [0, 1, 5, 20, 37])
def test_iterator_continues_without_repeats_or_gaps(start):
    """C21 e: stop after k steps; a fresh iterator continues with step k."""
    lengths = hh_like(160)
    rows, plan = FakeRows(lengths), plan_epochs(lengths, batch_size=4, epochs=1, seed=17)
    first = step_batches(rows, plan)
    seen = [next(first)[1] for _ in range(start)]
    state = first.get_state()
    first.close()
    rest = step_batches(rows, plan, start_step=state["next_step"])
    seen += [batch for _, batch in rest]
    shown = np.concatenate([b.example[b.example >= 0] for b in seen])
    assert sorted(shown.tolist()) == list(range(160))
    whole = [b.example for _, b in step_batches(rows, plan)]
    for ours, theirs in zip(seen, whole, strict=True):
        np.testing.assert_array_equal(ours.example, theirs)
