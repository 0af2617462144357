# SPDX-License-Identifier: Apache-2.0
"""The feed: every batch once and in order, the next one placed ahead, errors when they are due."""

import threading

import numpy as np
import pytest

from alignax.data.pack import pack
from alignax.data.plan import plan_epochs
from alignax.train.feed import Feed
from alignax.train.loop import Speed
from tests.train.tiny import Rows


def source(rows, plan, state, fail_at=None):
    for index in range(plan.steps):
        if index == fail_at:
            raise ValueError("row 7 is broken")
        state["next_step"] = index + 1
        yield index, pack(rows, plan.step(index), plan.shape)


def opened(place=lambda tree: tree, tables=None, **more):
    rows = Rows(12)
    plan = plan_epochs(rows.lengths, batch_size=4, epochs=1)
    state = {"next_step": 0}
    batches = source(rows, plan, state, **more)
    return rows, plan, Feed(batches, place, tables or {}, lambda: dict(state))


def test_batches_come_once_in_order_with_their_own_position():
    table = np.arange(24, dtype=np.float32).reshape(12, 2)
    rows, plan, feed = opened(tables={"reference": table})
    with feed.open():
        fed = list(feed)
    assert [f.index for f in fed] == [0, 1, 2]
    assert [f.position for f in fed] == [{"next_step": n} for n in (1, 2, 3)]
    for item in fed:
        expected = pack(rows, plan.step(item.index), plan.shape)
        for ours, theirs in zip(item.placed, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        used = expected.example >= 0
        cached = item.cached["reference"]
        np.testing.assert_array_equal(cached[used], table[expected.example[used]])
        assert (cached[~used] == 0).all()


def test_the_next_batch_is_placed_while_a_step_runs():
    placed, second = [], threading.Event()

    def place(tree):
        placed.append(tree)
        if len(placed) == 2:
            second.set()
        return tree

    _, _, feed = opened(place)
    with feed.open():
        assert next(feed).index == 0
        assert second.wait(60)
        assert next(feed).index == 1


def test_an_error_is_raised_when_its_batch_is_due():
    _, _, feed = opened(fail_at=2)
    with feed.open():
        assert [next(feed).index, next(feed).index] == [0, 1]
        with pytest.raises(ValueError, match="row 7"):
            next(feed)


def test_no_thread_is_left():
    _, _, feed = opened()
    with feed.open():
        next(feed)
        assert any(t.name.startswith("alignax-feed") for t in threading.enumerate())
    assert not any(t.name.startswith("alignax-feed") for t in threading.enumerate())


def test_share_of_waiting():
    rows, plan, _ = opened()
    batch = pack(rows, plan.step(0), plan.shape)
    values = Speed(1.0, 1.0, 1.0).values(batch, seconds=4.0, waited=0.5)
    assert values["data_wait_share"] == 0.125
    assert values["pairs_per_s"] == 1.0
