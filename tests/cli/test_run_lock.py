# SPDX-License-Identifier: Apache-2.0
"""One process at a time writes to an output folder; a dead one's lock is taken over."""

import json
import os
import subprocess
import sys

import pytest

from alignax.cli.run_folder import RunFolder
from alignax.cli.run_lock import OWNER, require_idle, writing
from alignax.errors import RunError

HOLD = (
    "import sys, time, pathlib; from alignax.cli.run_lock import writing\n"
    "with writing(pathlib.Path(sys.argv[1])):\n"
    "    print('held', flush=True); time.sleep(60)"
)


@pytest.fixture
def holder(tmp_path):
    """Another process that writes to ``run``."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_second_process_is_refused_and_a_dead_one_taken_over(holder, tmp_path, capsys):
    run = tmp_path / "run"
    for attempt in (lambda: require_idle(run), lambda: writing(run).__enter__()):
        with pytest.raises(RunError, match="is writing to") as caught:
            attempt()
        assert f"process {holder.pid} on " in str(caught.value)
        assert "--output" in str(caught.value)
    holder.kill()
    holder.wait()
    require_idle(run)
    RunFolder(run).require_free()  # what the dead process left is no run and no foreign file
    with writing(run):
        assert json.loads((run / OWNER).read_text())["process"] == os.getpid()
    assert f"process {holder.pid} on " in capsys.readouterr().err


def test_an_unused_folder_is_taken_away_and_a_used_one_stays(tmp_path):
    with pytest.raises(ZeroDivisionError), writing(tmp_path / "a"):
        1 / 0  # noqa: B018
    assert not (tmp_path / "a").exists()
    with writing(tmp_path / "b"):
        (tmp_path / "b" / "recipe.yaml").write_text("")
    assert not (tmp_path / "b" / OWNER).exists()
    with writing(tmp_path / "b"):
        pass
    assert (tmp_path / "b" / "recipe.yaml").exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("mine")
    with (
        pytest.raises(RunError, match=r"cannot begin a run in .*file/run"),
        writing(tmp_path / "file" / "run"),
    ):
        pass
