# SPDX-License-Identifier: Apache-2.0
"""A folder is whole or absent, and replaces nothing but an earlier export of its run."""

import json
import shutil
from types import SimpleNamespace

import pytest
from safetensors import SafetensorError

from alignax.errors import RunError
from alignax.export.folder import damaged_files, new_folder, set_aside, write_manifest


def write(target, *, run="r1", text="one", weight_bytes=10):
    """Write an export of one file."""
    with new_folder(target, run=run, weight_bytes=weight_bytes) as partial:
        (partial / "weights").write_text(text)
        write_manifest(partial, {"run": run})


def names(folder):
    """What lies in a folder."""
    return sorted(path.name for path in folder.iterdir())


def test_writes_and_replaces_its_own(tmp_path):
    target = tmp_path / "deep" / "export"
    write(target)
    write(target, text="two")
    assert (target / "weights").read_text() == "two"
    assert names(target) == ["alignax.json", "weights"]
    assert names(target.parent) == ["export"]


def test_an_empty_folder_may_be_filled(tmp_path):
    (tmp_path / "export").mkdir()
    write(tmp_path / "export")
    assert (tmp_path / "export" / "weights").read_text() == "one"


def contents(target):
    """Every file with its text."""
    files = target.iterdir() if target.is_dir() else [target]
    return {path.name: path.read_text() for path in files}


def foreign_folder(target):
    target.mkdir()
    (target / "thesis.txt").write_text("precious")


def other_export(target):
    write(target, run="r2")


def file_in_the_way(target):
    target.write_text("precious")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (foreign_folder, "holds thesis.txt and was not written by alignax; nothing was written"),
        (other_export, "is an export of run r2, this is run r1; nothing was written"),
        (file_in_the_way, "it is a file; nothing was written"),
    ],
)
def test_never_over_anything_else(tmp_path, make, message):
    target = tmp_path / "export"
    make(target)
    before = contents(target)
    with pytest.raises(RunError, match=message):
        write(target)
    assert names(tmp_path) == ["export"]
    assert contents(target) == before


FULL = "No space left on device"


@pytest.mark.parametrize("error", [OSError(28, FULL), SafetensorError(f"I/O error: {FULL}")])
def test_a_failed_write_leaves_the_old_export(tmp_path, error):
    target = tmp_path / "export"
    write(target)
    with (
        pytest.raises(RunError, match=f"{FULL}.*; nothing was changed"),
        new_folder(target, run="r1", weight_bytes=1) as partial,
    ):
        (partial / "weights").write_text("half")
        raise error
    assert (target / "weights").read_text() == "one"
    assert names(tmp_path) == ["export"]


def test_what_a_killed_export_left_is_cleared(tmp_path):
    (tmp_path / ".export.partial").mkdir()
    (tmp_path / ".export.partial" / "weights").write_text("torn")
    write(tmp_path / "export")
    assert names(tmp_path) == ["export"]


def test_a_full_disk_is_told_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=40_000_000))
    with pytest.raises(RunError, match="needs 134 MB, 40 MB are free; nothing was written"):
        write(tmp_path / "export", weight_bytes=100_000_000)
    assert names(tmp_path) == []


def test_damage_is_found(tmp_path):
    target = tmp_path / "export"
    write(target)
    assert damaged_files(target) == []
    (target / "weights").write_text("0ne")
    assert damaged_files(target) == ["weights is not what was written (3 bytes)"]
    (target / "weights").unlink()
    assert damaged_files(target) == ["weights is missing"]
    (target / "alignax.json").write_text("{")
    with pytest.raises(RunError, match="cannot read"):
        write(target)


def test_a_failed_export_is_set_aside(tmp_path):
    for text in ("one", "two"):
        write(tmp_path / "export", text=text)
        failed = set_aside(tmp_path / "export")
    assert names(tmp_path) == ["export.failed"]
    assert (failed / "weights").read_text() == "two"
    assert json.loads((failed / "alignax.json").read_text())["files"]["weights"]["bytes"] == 3
