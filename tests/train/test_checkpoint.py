# SPDX-License-Identifier: Apache-2.0
"""Checkpoints are whole or absent, kept by rule, and restored strictly (C21 c, R3, R4, R9)."""

import json
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from alignax.errors import RunError
from alignax.train.checkpoint import Checkpoints


def state(value, width=3):
    return {"w": jnp.full((2, width), float(value)), "n": {"count": jnp.int32(value)}}


def opened(folder, **settings):
    return Checkpoints(folder, **{"keep": 2, "best_metric": "loss", **settings})


def test_saves_and_restores_bit_for_bit(tmp_path):
    opened(tmp_path).save(3, state(1.25), {"metrics": {"loss": 0.5}, "data": {"next": 3}})
    again = opened(tmp_path)
    restored = again.restore(3, state(0))
    np.testing.assert_array_equal(restored["w"], state(1.25)["w"])
    assert restored["n"]["count"].dtype == jnp.int32
    assert again.record(3)["data"] == {"next": 3}


@pytest.mark.parametrize(("metric", "best"), [("loss", 2), ("accuracy", 4)])
def test_keeps_the_newest_and_the_best(tmp_path, metric, best):
    checkpoints = opened(tmp_path, best_metric=metric)
    values = {2: (0.1, 0.5), 4: (0.6, 0.9), 6: (0.5, 0.6), 8: (0.4, 0.7), 10: (0.3, 0.8)}
    for step, (loss, accuracy) in values.items():
        checkpoints.save(step, state(step), {"metrics": {"loss": loss, "accuracy": accuracy}})
    assert checkpoints.steps == [best, 8, 10]
    index = json.loads((tmp_path / "index.json").read_text())
    assert index == {"last": 10, "best": best, "best_metric": metric, "steps": [best, 8, 10]}


def test_steps_without_evaluation_do_not_hide_the_best(tmp_path):
    checkpoints = opened(tmp_path, keep=1)
    checkpoints.save(1, state(1), {"metrics": {"loss": 0.2}})
    for step in (2, 3, 4):
        checkpoints.save(step, state(step), {"metrics": None})
    assert checkpoints.steps == [1, 4]
    assert checkpoints.best_step == 1


def test_torn_saves_are_ignored_named_once_and_replaced(tmp_path):
    checkpoints = opened(tmp_path)
    checkpoints.save(8, state(8), {})
    checkpoints.save(10, state(10), {})
    # What a kill leaves behind: a temporary folder, a folder without manifest, a cut file.
    (tmp_path / "12.orbax-checkpoint-tmp").mkdir()
    shutil.copytree(tmp_path / "10", tmp_path / "11")
    biggest = max(
        (p for p in (tmp_path / "10").rglob("*") if p.is_file()), key=lambda p: p.stat().st_size
    )
    biggest.write_bytes(biggest.read_bytes()[:-1])
    again = opened(tmp_path)
    assert sorted(again.discarded) == ["10", "11", "12.orbax-checkpoint-tmp"]
    assert again.steps == [8]
    again.save(10, state(99), {})
    assert opened(tmp_path).discarded == []
    np.testing.assert_array_equal(opened(tmp_path).restore(10, state(0))["w"], state(99)["w"])


@pytest.mark.parametrize("damage", ["flipped", "missing"])
def test_a_damaged_checkpoint_is_known_by_its_checksum(tmp_path, damage):
    """The one before it is used; it is said once."""
    checkpoints = opened(tmp_path)
    checkpoints.save(8, state(8), {})
    checkpoints.save(10, state(10), {})
    files = sorted(p for p in (tmp_path / "10").rglob("*") if p.is_file() and p.stat().st_size)
    content = bytearray(files[-1].read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "flipped":
        files[-1].write_bytes(content)
    else:
        files[0].unlink()
    again = opened(tmp_path)
    assert (again.discarded, again.steps) == (["10"], [8])
    np.testing.assert_array_equal(again.restore(8, state(0))["w"], state(8)["w"])
    assert opened(tmp_path).discarded == []


def test_a_save_without_room_is_not_begun(tmp_path, monkeypatch):
    checkpoints = opened(tmp_path)
    checkpoints.save(8, state(8), {})
    before = sorted(tmp_path.rglob("*"))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100))
    with pytest.raises(RunError, match=r"step 10 was not saved in .*nothing was begun") as caught:
        checkpoints.save(10, state(10), {})
    assert "saved before: 8" in str(caught.value)
    assert "--train.resume" in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before
    monkeypatch.undo()
    checkpoints.save(10, state(10), {})
    assert opened(tmp_path).steps == [8, 10]


def test_readers_change_nothing_and_see_whole_steps_only(tmp_path):
    checkpoints = opened(tmp_path)
    checkpoints.save(8, state(8), {"metrics": {"loss": 0.5}})
    checkpoints.save(10, state(10), {"metrics": {"loss": 0.1}})
    # A save that is going on: its folder is there, its manifest is not; another has not its name.
    (tmp_path / "manifests" / "10.json").unlink()
    (tmp_path / "12.orbax-checkpoint-tmp").mkdir()
    before = sorted(tmp_path.rglob("*"))
    reader = opened(tmp_path, reading=True)
    assert (reader.steps, reader.best_step, reader.discarded) == ([8], 8, [])
    np.testing.assert_array_equal(reader.restore(8, state(0))["w"], state(8)["w"])
    assert sorted(tmp_path.rglob("*")) == before
    assert opened(tmp_path / "absent", reading=True).steps == []
    assert not (tmp_path / "absent").exists()


def test_restore_lists_every_leaf_that_does_not_fit(tmp_path):
    checkpoints = opened(tmp_path)
    checkpoints.save(1, state(1), {})
    template = {"w": jnp.zeros((2, 4)), "extra": jnp.zeros(1)}
    with pytest.raises(RunError) as caught:
        checkpoints.restore(1, template)
    text = str(caught.value)
    for needle in ("missing: extra", "unexpected: n.count", "mis-shaped: w", "(2, 4)", "(2, 3)"):
        assert needle in text
