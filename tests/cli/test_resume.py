# SPDX-License-Identifier: Apache-2.0
"""C21: stopped, killed or torn runs continue bit for bit; other runs are refused."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from alignax.errors import AlignaxError, RunError
from tests.cli.tiny_model import alignax, pairs, read_lines, write_rows

ROOT = Path(__file__).parents[2]
SETTINGS = (
    "--train.batch_size", "8", "--train.accumulate", "2", "--train.steps", "20",
    "--train.seed", "17", "--train.eval_steps", "10", "--train.save_steps", "5",
    "--optimizer.learning_rate", "1e-2", "--data.max_length", "96", "--sample.prompts", "0",
    "--export.merged", "false", "--reference.source", "frozen_copy",
)  # fmt: skip
"""Dropout is on, as it is by default: its keys must continue as well."""


@pytest.fixture(scope="module")
def words(tiny, sft_run):
    """A DPO command: its policy continues an SFT adapter, its reference keeps that adapter."""
    data = write_rows(tiny / "sixty_four.jsonl", pairs(64, seed=1))
    held_out = write_rows(tiny / "eight.jsonl", pairs(8, seed=2))
    return (
        "dpo", "--model", str(tiny / "model"), "--adapter", str(sft_run), "--data", str(data),
        "--data.eval_path", str(held_out), *SETTINGS,
    )  # fmt: skip


def in_process_that_is_killed(number, moment, words, run, *more):
    """Run the command in a process of its own that gets a signal; returns the process."""
    command = [sys.executable, "-m", "tests.cli.killer", number, moment, *words]
    return subprocess.run(
        [*command, "--output", str(run), *more], cwd=ROOT, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def straight(tiny, words):
    """The run that nothing disturbs."""
    run = tiny / "runs" / "straight"
    assert alignax(*words, "--output", run) == 0
    return run


@pytest.fixture(scope="module")
def stopped(tiny, words):
    """A run that got SIGTERM at step 10, and how its process ended."""
    run = tiny / "runs" / "stopped"
    return run, in_process_that_is_killed("SIGTERM", "step:10", words, run)


def copied(run, name):
    """Copy a run folder, so that tests do not touch each other's."""
    return Path(shutil.copytree(run, run.with_name(name)))


def assert_same_run(run, straight):
    """Every step's figures once, in order, equal bit for bit; and the adapters."""
    fields = ("step", "kind", "loss", "margin", "grad_norm", "learning_rate", "kl/token")
    found, expected = (
        [{n: line.get(n) for n in fields} for line in read_lines(folder / "metrics.jsonl")]
        for folder in (run, straight)
    )
    assert found == expected
    ours, theirs = (
        load_file(folder / "export/adapter/adapter_model.safetensors") for folder in (run, straight)
    )
    assert ours.keys() == theirs.keys()
    for name in theirs:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
    marks = [json.loads((f / "fingerprints.json").read_text()) for f in (run, straight)]
    assert marks[0]["reference"] == marks[1]["reference"]


def test_sigterm_saves_and_says_how_to_go_on(stopped):
    run, process = stopped
    assert process.returncode == 128 + signal.SIGTERM, process.stderr
    assert "saved step 10" in process.stderr
    assert "--train.resume" in process.stderr
    assert "Traceback" not in process.stderr
    assert process.stdout == ""
    assert json.loads((run / "checkpoints/index.json").read_text())["last"] == 10


def test_stopped_run_can_be_reported_and_exported(stopped, capsys):
    run = copied(stopped[0], "looked_at")
    assert alignax("report", run) == 0
    assert "10" in (run / "report.html").read_text(encoding="utf-8")
    capsys.readouterr()
    assert alignax("export", run, "--checkpoint", "5", "--json") == 0
    assert [entry["kind"] for entry in json.loads(capsys.readouterr().out)] == ["adapter"]
    with pytest.raises(AlignaxError, match="no checkpoint '7'") as caught:
        alignax("export", run, "--checkpoint", "7")
    assert "it has 5, 10" in str(caught.value)


def test_stopped_run_continues_bit_for_bit(stopped, straight, words, tiny):
    """The rows lie elsewhere by now: what they are counts, not where."""
    run = copied(stopped[0], "continued")
    moved = shutil.copy(tiny / "sixty_four.jsonl", tiny / "moved.jsonl")
    changed = [str(moved) if w.endswith("sixty_four.jsonl") else w for w in words]
    assert alignax(*changed, "--output", run, "--train.resume") == 0
    assert_same_run(run, straight)
    events = read_lines(run / "events.jsonl")
    other = ("setting_changed", "rollback")
    kinds = [event["kind"] for event in events if event["kind"] not in other]
    assert kinds == ["memory", "first_step", "resumed", "first_step"]
    # The rate is so high that a guard acts after the interruption, in both runs alike.
    done, wanted = (json.loads((r / "rollbacks.json").read_text()) for r in (run, straight))
    assert done == wanted
    changes = [event["message"] for event in events if event["kind"] == "setting_changed"]
    assert any(c.startswith("data.path: ") and c.endswith("moved.jsonl'") for c in changes)
    assert yaml.safe_load((run / "recipe.yaml").read_text())["data"]["path"] == str(moved)
    before = json.loads((run / "summary.json").read_text())["before"]
    assert before["loss"] == pytest.approx(np.log(2), abs=1e-6)


def test_stopped_run_continues_on_another_mesh(stopped, straight, words):
    """Two devices instead of one: the same steps and rates, the same losses but for dropout."""
    run = copied(stopped[0], "two_devices")
    more = ("--mesh.data", "2", "--train.resume", "--export.adapter", "false")
    assert alignax(*words, "--output", run, *more) == 0
    found, expected = (read_lines(folder / "metrics.jsonl") for folder in (run, straight))
    assert [line["step"] for line in found] == [line["step"] for line in expected]
    rates = [[line.get("learning_rate") for line in lines] for lines in (found, expected)]
    assert rates[0] == rates[1]
    losses = [[line["loss"] for line in lines] for lines in (found, expected)]
    np.testing.assert_allclose(losses[0], losses[1], atol=0.05)


def test_killed_run_continues_bit_for_bit(tiny, straight, words):
    """Killed before the first save, then in the middle of a save, then continued to the end."""
    run = tiny / "runs" / "killed"
    first = in_process_that_is_killed("SIGKILL", "step:3", words, run)
    assert first.returncode == -signal.SIGKILL, first.stderr
    second = in_process_that_is_killed("SIGKILL", "save:10", words, run, "--train.resume")
    assert second.returncode == -signal.SIGKILL, second.stderr
    assert (run / "checkpoints" / "10").is_dir()
    partial = run / "checkpoints" / "15.orbax-checkpoint-tmp-7"
    partial.mkdir()
    (partial / "half").write_bytes(b"\0" * 64)
    assert alignax(*words, "--output", run, "--train.resume") == 0
    assert_same_run(run, straight)
    events = read_lines(run / "events.jsonl")
    torn = [event["message"] for event in events if event["kind"] == "torn_save"]
    assert [message.rpartition(" ")[2] for message in torn] == ["10", partial.name]
    resumed = [event["message"] for event in events if event["kind"] == "resumed"]
    assert resumed[-1] == "continues after step 5"
    assert not partial.exists()
    index = json.loads((run / "checkpoints/index.json").read_text())
    assert index["last"] == 20


def test_killed_while_tokenising_in_the_reference_pass_and_in_the_export(
    tiny, words, straight, monkeypatch
):
    """Neither the cache nor the run needs a hand afterwards."""
    run = tiny / "runs" / "killed_outside_the_steps"
    words = tuple("cache" if word == "frozen_copy" else word for word in words)
    monkeypatch.setenv("ALIGNAX_CACHE", str(tiny / "fresh_cache"))
    for moment, more in (("tokenise:", ()), ("reference:", ()), ("export:", ())):
        process = in_process_that_is_killed("SIGKILL", moment, words, run, *more)
        assert process.returncode == -signal.SIGKILL, (moment, process.stderr)
        assert (run / "recipe.yaml").exists() == (moment == "export:")
    assert not (run / "summary.json").exists()
    assert alignax(*words, "--output", run, "--train.resume") == 0
    whole = tiny / "runs" / "undisturbed"
    assert alignax(*words, "--output", whole) == 0
    assert_same_run(run, whole)


def test_other_rows_are_refused_with_both_fingerprints(stopped, words, tiny):
    run = stopped[0]
    stored = json.loads((run / "fingerprints.json").read_text())
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    other = write_rows(tiny / "other.jsonl", pairs(64, seed=3))
    changed = [str(other) if w.endswith("sixty_four.jsonl") else w for w in words]
    with pytest.raises(RunError) as caught:
        alignax(*changed, "--output", run, "--train.resume")
    text = str(caught.value)
    assert f"train_rows: the run has {stored['train_rows']}, now " in text
    assert stored["recipe"] not in text
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before


def test_other_settings_are_refused_with_both_values(stopped, words):
    run = stopped[0]
    stored = json.loads((run / "fingerprints.json").read_text())
    with pytest.raises(RunError) as caught:
        alignax(*words, "--output", run, "--train.resume", "--loss.beta", "0.3")
    text = str(caught.value)
    assert f"recipe: the run has {stored['recipe']}, now " in text
    assert "loss.beta: the run has None, now 0.3" in text


def test_finished_run_is_not_continued(straight, words):
    with pytest.raises(RunError, match="is finished"):
        alignax(*words, "--output", straight, "--train.resume")


def test_nothing_to_resume(tiny, words):
    with pytest.raises(RunError, match="is missing"):
        alignax(*words, "--output", tiny / "runs" / "none", "--train.resume")
    assert not (tiny / "runs" / "none").exists()
