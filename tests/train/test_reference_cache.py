# SPDX-License-Identifier: Apache-2.0
"""The reference's cached log-probs: found by id, continued, shared, and never trusted blindly."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from alignax.data.plan import scoring_plan
from alignax.errors import RunError
from alignax.train.reference import build_score_step, fill_cache
from alignax.train.reference_cache import ReferenceCache
from tests.train.tiny import Rows, Run

ROOT = Path(__file__).resolve().parents[2]

WRITE = """
import sys
from pathlib import Path
import numpy as np
from alignax.train.reference_cache import ReferenceCache
cache = ReferenceCache(Path(sys.argv[1]))
for number in range(20):
    cache.add([f"{sys.argv[2]}{number}"], np.array([[-number, -2.0]], np.float32))
"""

AB = np.array([[-1.0, -2.0], [-3.0, -4.0]], np.float32)


def written(file):
    ReferenceCache(file).add(["a", "b"], AB)
    return file


def test_values_are_found_by_id_and_gaps_are_refused(tmp_path):
    file = tmp_path / "new" / "cache.logps"
    assert ReferenceCache(file).missing(["a", "b", "a"]) == [0, 1]
    again = ReferenceCache(written(file))
    np.testing.assert_array_equal(again.table(["b", "a", "b"]), AB[[1, 0, 1]])
    assert again.missing(["b", "c"]) == [1]
    assert again.size == file.stat().st_size > 0
    with pytest.raises(RunError, match="no log-probs for 1 rows"):
        again.table(["a", "c"])


def test_a_value_that_is_no_number_is_refused(tmp_path):
    cache = ReferenceCache(tmp_path / "cache.logps")
    with pytest.raises(RunError, match=r"not finite, first \['b'\]"):
        cache.add(["a", "b"], np.array([[-1.0, -2.0], [np.nan, -1.0]]))
    assert not cache.file.exists()


def flip(data):
    place = data.index(AB.tobytes())
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


@pytest.mark.parametrize("damage", [flip, lambda d: d[: len(d) // 2], lambda d: b""])
def test_a_damaged_file_is_set_aside(tmp_path, damage):
    file = written(tmp_path / "cache.logps")
    spoilt = damage(file.read_bytes())
    file.write_bytes(spoilt)
    said = []
    cache = ReferenceCache(file, notify=said.append)
    assert cache.missing(["a", "b"]) == [0, 1]
    assert len(said) == 1
    assert "is damaged" in said[0]
    (aside,) = tmp_path.glob("cache.damaged-*")
    assert aside.read_bytes() == spoilt
    cache.add(["a", "b"], AB)
    np.testing.assert_array_equal(ReferenceCache(file).table(["a", "b"]), AB)


def test_two_writers_keep_each_others_rows(tmp_path):
    file = tmp_path / "cache.logps"
    one, other = ReferenceCache(file), ReferenceCache(file)
    one.add(["a"], AB[:1])
    other.add(["b"], AB[1:])
    np.testing.assert_array_equal(ReferenceCache(file).table(["a", "b"]), AB)


def test_two_processes_at_once_lose_nothing(tmp_path):
    file = tmp_path / "cache.logps"
    running = [
        subprocess.Popen([sys.executable, "-c", WRITE, str(file), name], cwd=ROOT) for name in "ab"
    ]
    assert [process.wait(120) for process in running] == [0, 0]
    ids = [f"{name}{number}" for name in "ab" for number in range(20)]
    table = ReferenceCache(file).table(ids)
    assert table[:, 0].tolist() == [-n for _ in "ab" for n in range(20)]
    assert not list(tmp_path.glob("*.tmp"))


def test_what_the_disk_refuses_is_kept_in_memory(tmp_path):
    (tmp_path / "blocked").write_text("a file where the folder should be")
    said = []
    cache = ReferenceCache(tmp_path / "blocked" / "cache.logps", notify=said.append)
    cache.add(["a"], AB[:1])
    cache.add(["b"], AB[1:])
    np.testing.assert_array_equal(cache.table(["a", "b"]), AB)
    assert len(said) == 1
    assert "not kept" in said[0]


def test_a_killed_pass_continues_where_it_saved(tmp_path):
    rows = Rows(24)
    run = Run(rows)
    plan = scoring_plan(rows.lengths, microbatch_tokens=256)
    assert plan.steps >= 4
    step, file = build_score_step(run.network, adapter=False), tmp_path / "cache.logps"
    saved = []

    def batches(stop):
        for index in range(plan.steps):
            if index == stop:
                # What a kill at this moment would leave: all but the batch under way.
                saved.extend(ReferenceCache(file).missing(rows.row_ids))
                raise KeyboardInterrupt
            yield run.place(run.batch(index, plan))

    with pytest.raises(KeyboardInterrupt):
        fill_cache(
            ReferenceCache(file), step, run.reference, batches(3), rows.row_ids,
            save_seconds=0.0,
        )  # fmt: skip
    done = {i for n in range(2) for micro in plan.step(n) for row in micro for i in row}
    assert set(saved) == set(range(24)) - done
    cache = ReferenceCache(file)
    rest = cache.missing(rows.row_ids)
    assert 0 < len(rest) < 24
    fill_cache(cache, step, run.reference, batches(None), rows.row_ids)
    np.testing.assert_allclose(ReferenceCache(file).table(rows.row_ids), run.table, rtol=1e-5)
