# SPDX-License-Identifier: Apache-2.0
"""The data position: nothing repeated, nothing lost, no thread left behind (C21 e)."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from alignax.data.pipeline import step_batches
from alignax.data.plan import plan_epochs
from alignax.errors import DataError, RunError
from tests.data.lengths import FakeRows, hh_like

ROOT = Path(__file__).resolve().parents[2]
STOPS = (0, 1, 5, 20, 37)

REST = """
import json, sys
from tests.data.test_pipeline import three_epochs, examples
from alignax.data.pipeline import step_batches
rows, plan = three_epochs()
print(json.dumps([[examples(b) for _, b in step_batches(rows, plan, start_step=k)]
                  for k in json.loads(sys.argv[1])]))
unfinished = step_batches(rows, plan)
next(unfinished)
"""


def three_epochs():
    """64 rows, seed 17, 4 a step: 48 steps."""
    lengths = hh_like(64)
    return FakeRows(lengths), plan_epochs(lengths, batch_size=4, epochs=3, seed=17)


def examples(batch):
    return batch.example[batch.example >= 0].tolist()


def reading_threads():
    return [t for t in threading.enumerate() if t.name.startswith("grain-prefetch")]


def wait_for_no_thread():
    deadline = time.monotonic() + 20
    while reading_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not reading_threads()


def test_fresh_process_continues_without_repeats_or_gaps():
    """The process also ends, with an unfinished iterator open."""
    rows, plan = three_epochs()
    states, firsts = [], []
    for stop in STOPS:
        iterator = step_batches(rows, plan)
        firsts.append([examples(next(iterator)[1]) for _ in range(stop)])
        states.append(iterator.get_state()["next_step"])
        iterator.close()
    done = subprocess.run(
        [sys.executable, "-c", REST, json.dumps(states)],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    straight = [examples(batch) for _, batch in step_batches(rows, plan)]
    for epoch in range(3):
        shown = [i for step in straight[16 * epoch : 16 * (epoch + 1)] for i in step]
        assert sorted(shown) == list(range(64))
    for first, rest in zip(firsts, json.loads(done.stdout), strict=True):
        assert first + rest == straight


@pytest.mark.parametrize("prefetch", [0, 1, 5])
def test_a_step_is_the_same_whatever_was_read_before(prefetch):
    rows, plan = three_epochs()
    straight = list(step_batches(rows, plan, prefetch=prefetch))
    assert [step for step, _ in straight] == list(range(48))
    iterator = step_batches(rows, plan, prefetch=prefetch)
    for place in (30, 3, 3, 47, 0):
        iterator.set_state({"next_step": place})
        step, batch = next(iterator)
        assert step == place
        assert iterator.get_state() == {"next_step": place + 1}
        for ours, theirs in zip(batch, straight[place][1], strict=True):
            np.testing.assert_array_equal(ours, theirs)
    iterator.close()


def test_state_survives_json_and_the_end():
    rows, plan = three_epochs()
    iterator = step_batches(rows, plan, start_step=47)
    assert next(iterator)[0] == 47
    state = json.loads(json.dumps(iterator.get_state()))
    assert list(iterator) == []
    assert list(step_batches(rows, plan, start_step=state["next_step"])) == []


@pytest.mark.parametrize("step", [-1, 49])
def test_position_of_another_run_is_refused(step):
    with pytest.raises(RunError, match=f"position {step} .* 48 steps"):
        step_batches(*three_epochs(), start_step=step)


def test_close_and_the_end_leave_no_thread():
    rows, plan = three_epochs()
    iterator = step_batches(rows, plan)
    next(iterator)
    assert reading_threads()
    iterator.close()
    iterator.close()
    wait_for_no_thread()
    # One step returned, two packed ahead, and perhaps one under way.
    assert rows.reads <= 4 * 4
    for _ in step_batches(rows, plan):
        pass
    wait_for_no_thread()


def test_an_error_in_the_reader_reaches_the_caller():
    class Broken(FakeRows):
        def __getitem__(self, index):
            if index == 5:
                raise DataError("row5 is broken")
            return super().__getitem__(index)

    lengths = hh_like(64)
    plan = plan_epochs(lengths, batch_size=4, epochs=1)
    iterator = step_batches(Broken(lengths), plan)
    with pytest.raises(DataError, match="row5"):
        list(iterator)
    # The failed step is never skipped over in silence.
    assert 5 in [i for micro in plan.step(iterator.next_step) for row in micro for i in row]
    with pytest.raises((RunError, DataError)):
        next(iterator)
    iterator.close()
