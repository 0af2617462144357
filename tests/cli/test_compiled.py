# SPDX-License-Identifier: Apache-2.0
"""The program cache on disk: what is removed, and that it never stops a command."""

import json
import os
import zlib

import jax
import jax.numpy as jnp
import pytest

from alignax.cli.compiled import remove_damaged, use_compilation_cache
from alignax.train.compilations import Compilations

WHOLE = zlib.compress(bytes(range(256)) * 40)


def entry(folder, name, content, *, age=1000.0):
    file = folder / f"{name}-cache"
    file.write_bytes(content)
    stamp = file.stat().st_mtime - age
    os.utime(file, (stamp, stamp))
    return file


@pytest.fixture
def no_cache():
    """JAX without a cache folder, as a user's process starts."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def test_a_torn_entry_goes_and_whole_ones_stay(tmp_path):
    whole = entry(tmp_path, "a", WHOLE)
    torn = entry(tmp_path, "b", WHOLE[:-20])
    assert remove_damaged(tmp_path) == 1
    assert whole.exists()
    assert not torn.exists()


def test_an_entry_that_is_being_written_is_left_alone(tmp_path):
    young = entry(tmp_path, "a", WHOLE[:-20], age=0.0)
    assert remove_damaged(tmp_path) == 0
    assert young.exists()
    young.write_bytes(WHOLE)
    assert remove_damaged(tmp_path) == 0
    assert list(json.loads((tmp_path / "checked.json").read_text())) == ["a-cache"]


def test_an_entry_that_changed_after_it_was_seen_goes(tmp_path):
    zstandard = b"\x28\xb5\x2f\xfd" + bytes(100)
    file = entry(tmp_path, "a", zstandard)
    assert remove_damaged(tmp_path) == 0
    entry(tmp_path, "a", zstandard[:50] + b"\x01" + zstandard[51:], age=0.0)
    assert remove_damaged(tmp_path) == 1
    assert not file.exists()


def test_an_entry_that_was_touched_only_stays(tmp_path):
    entry(tmp_path, "a", WHOLE)
    remove_damaged(tmp_path)
    file = entry(tmp_path, "a", WHOLE, age=5.0)
    assert remove_damaged(tmp_path) == 0
    assert file.exists()


def test_a_damaged_list_is_made_anew(tmp_path):
    entry(tmp_path, "a", WHOLE)
    (tmp_path / "checked.json").write_text('{"a-cache": [1')
    assert remove_damaged(tmp_path) == 0
    assert list(json.loads((tmp_path / "checked.json").read_text())) == ["a-cache"]


def test_a_folder_that_cannot_be_used_is_a_notice(tmp_path, no_cache, capsys):
    (tmp_path / "file").write_text("in the way")
    use_compilation_cache(tmp_path / "file" / "xla")
    assert "not kept for the next run" in capsys.readouterr().err
    assert jax.config.jax_compilation_cache_dir is None


def test_a_folder_named_to_jax_wins(tmp_path, no_cache):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "theirs"))
    use_compilation_cache(tmp_path / "ours")
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "theirs")
    assert not (tmp_path / "ours").exists()


def test_compilations_are_counted_by_name():
    counted = Compilations()

    def doubled_and_more(x):
        return x * 2 + 1

    double = jax.jit(doubled_and_more)
    for size in (3, 3, 5):
        double(jnp.ones(size))
    counted.close()
    jax.jit(lambda x: x * 3)(jnp.ones(7))
    assert counted.count("doubled_and_more") == 2
    summary = counted.summary()
    assert summary["programs"] == len(counted.programs) >= 2
    assert summary["seconds"] > 0
    assert [program.name for program in counted.programs].count("<lambda>") == 0
