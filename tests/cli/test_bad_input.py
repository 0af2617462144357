# SPDX-License-Identifier: Apache-2.0
"""What bad input gets: cause, value, place and a way out; nothing is written over or begun."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from alignax.cli import main as cli
from alignax.errors import AlignaxError, RunError, StoppedByGuard
from tests.cli.tiny_model import QUICK, alignax, pairs, write_model, write_rows

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def bad(tiny, tmp_path_factory):
    """Files and folders that are wrong in one way each."""
    folder = tmp_path_factory.mktemp("bad")
    rows = pairs(8)
    lines = [json.dumps(row) for row in rows]
    (folder / "broken.jsonl").write_text("\n".join([*lines[:2], '{"prompt": ', "nope", *lines[2:]]))
    write_rows(folder / "columns.jsonl", [{"left": "a", "right": "b"}] * 4)
    write_rows(folder / "same.jsonl", [r | {"rejected": r["chosen"]} for r in rows])
    write_rows(folder / "good.jsonl", rows)
    (folder / "empty.jsonl").write_text("")
    for name in ("no_config", "truncated", "family", "no_tensors", "no_template"):
        shutil.copytree(tiny / "model", folder / name)
    (folder / "no_config" / "config.json").unlink()
    weights = folder / "truncated" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    (folder / "no_tensors" / "model.safetensors").unlink()
    config = json.loads((tiny / "model" / "config.json").read_text())
    other = config | {"model_type": "mamba", "architectures": ["MambaForCausalLM"]}
    (folder / "family" / "config.json").write_text(json.dumps(other))
    shutil.rmtree(folder / "no_template")
    write_model(folder / "no_template", template=None)
    write_model(folder / "other_base", seed=1)
    writer = gguf.GGUFWriter(folder / "mamba.gguf", "mamba")
    writer.add_block_count(2)
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder


CASES = {
    "missing file": ({"--data": "BAD/none.jsonl"}, 1, ("none.jsonl", "does not exist", "--data")),
    "not json": (
        {"--data": "BAD/broken.jsonl"}, 1, ("broken.jsonl", "not JSON at line 3", "line 4"),
    ),
    "empty file": ({"--data": "BAD/empty.jsonl"}, 1, ("no rows", "empty.jsonl")),
    "columns": (
        {"--data": "BAD/columns.jsonl"}, 1, ("left", "right", "chosen", "prompt"),
    ),
    "unknown format": (
        {"--data": "BAD/good.jsonl", "--data.format": "parrot"}, None,
        ("parrot", "sharegpt", "ultrafeedback"),
    ),
    "all rows dropped": ({"--data": "BAD/same.jsonl"}, 1, ("8", "identical")),
    "missing model": ({"--model": "BAD/nothing"}, 1, ("nothing",)),
    "no config": ({"--model": "BAD/no_config"}, 1, ("config.json", "no_config")),
    "truncated": ({"--model": "BAD/truncated"}, 1, ("truncated/model.safetensors",)),
    "no tensors": ({"--model": "BAD/no_tensors"}, 1, ("no_tensors", "safetensors")),
    "family": ({"--model": "BAD/family"}, 1, ("mamba", "LlamaForCausalLM")),
    "gguf of another architecture": ({"--model": "BAD/mamba.gguf"}, 1, ("mamba", "llama")),
    "no template": ({"--model": "BAD/no_template"}, 1, ("template", "--data.chat_template")),
    "beta 0": ({"--loss.beta": "0"}, 2, ("loss.beta must be > 0", "got 0")),
    "beta below 0": ({"--loss.beta": "-0.5"}, 2, ("loss.beta must be > 0", "-0.5")),
    "unknown loss": ({"--loss.type": "sigmoidal"}, 2, ("sigmoidal", "sigmoid")),
    "targets": ({"--lora.targets": "query,v_proj"}, 2, ("query", "q_proj")),
    "mesh": ({"--mesh.data": "64"}, 2, ("64", "4")),
    "adapter missing": ({"--adapter": "BAD"}, 1, ("adapter_config.json",)),
    "unknown flag": ({"--train.batchsize": "3"}, 2, ("--train.batchsize", "--train.batch_size")),
    "steps and epochs": ({"--train.epochs": "1"}, 2, ("train.steps", "train.epochs")),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_refused_before_anything_is_written(case, tiny, bad, tmp_path):
    changes, code, needles = CASES[case]
    words = {"--model": tiny / "model", "--data": tiny / "pairs.jsonl"} | dict(
        zip(QUICK[::2], QUICK[1::2], strict=True)
    )
    words |= {flag: value.replace("BAD", str(bad)) for flag, value in changes.items()}
    out = tmp_path / "run"
    with pytest.raises(AlignaxError) as caught:
        alignax("dpo", *(w for pair in words.items() for w in pair), "--output", out)
    text = str(caught.value)
    assert [needle for needle in needles if needle not in text] == [], text
    if code is not None:
        assert caught.value.exit_code == code, text
    assert not out.exists()


def command(tiny, out, *words):
    """A quick DPO command."""
    return (
        "dpo", "--model", tiny / "model", "--data", tiny / "pairs.jsonl", "--output", out, *QUICK,
        *words,
    )  # fmt: skip


def test_adapter_of_another_base(bad, dpo_run, tmp_path):
    out = tmp_path / "scores.jsonl"
    words = ("--model", bad / "other_base", "--adapter", dpo_run, "--data", bad / "good.jsonl")
    with pytest.raises(AlignaxError, match="was trained on other weights") as caught:
        alignax("score", *words, "--output", out)
    marks = json.loads((dpo_run / "fingerprints.json").read_text())
    assert marks["base"] in str(caught.value)
    assert not out.exists()


def test_lora_settings_that_differ_from_the_adapter(tiny, sft_run, tmp_path):
    with pytest.raises(AlignaxError, match="differ from the adapter") as caught:
        alignax(*command(tiny, tmp_path / "run", "--adapter", sft_run, "--lora.rank", "16"))
    assert "lora.rank: the adapter has 4, the recipe 16" in str(caught.value)


def test_other_run_is_not_written_over(tiny, dpo_run):
    before = {p: p.read_bytes() for p in dpo_run.rglob("*") if p.is_file()}
    with pytest.raises(RunError, match="already holds a run") as caught:
        alignax(*command(tiny, dpo_run))
    assert "--train.resume" in str(caught.value)
    assert {p: p.read_bytes() for p in dpo_run.rglob("*") if p.is_file()} == before


def test_existing_output_of_score_is_kept(tiny, tmp_path):
    out = tmp_path / "scores.jsonl"
    out.write_text("mine")
    words = ("--model", tiny / "model", "--data", tiny / "pairs.jsonl", "--output", out)
    with pytest.raises(RunError, match="exists; nothing was written"):
        alignax("score", *words)
    assert out.read_text() == "mine"


def test_check_shows_the_audit_before_it_refuses(tiny, bad, capsys):
    words = ("--model", tiny / "model", "--data", bad / "same.jsonl", "--json")
    with pytest.raises(AlignaxError, match="every row is unusable"):
        alignax("data", "check", *words)
    report = json.loads(capsys.readouterr().out)
    assert report["dropped"]["identical_pair"]["count"] == 8
    assert len(report["dropped"]["identical_pair"]["rows"]) == 8


def test_score_refuses_a_file_without_any_usable_row(tiny, bad, tmp_path):
    out = tmp_path / "scores.jsonl"
    words = ("--model", tiny / "model", "--data", bad / "same.jsonl", "--output", out)
    with pytest.raises(AlignaxError, match="every row is unusable") as caught:
        alignax("score", *words)
    assert "identical_pair: 8 rows" in str(caught.value)
    assert not out.exists()


def test_fewer_rows_than_a_batch_and_no_held_out_rows(tiny, bad, tmp_path, capsys):
    run = tmp_path / "small"
    words = dict(zip(QUICK[::2], QUICK[1::2], strict=True)) | {
        "--data": bad / "good.jsonl", "--train.batch_size": "16", "--data.eval_fraction": "0",
        "--train.steps": "2", "--export.merged": "false",
    }  # fmt: skip
    flags = [w for pair in words.items() for w in pair]
    assert alignax("dpo", "--model", tiny / "model", "--output", run, *flags) == 0
    summary = json.loads((run / "summary.json").read_text())
    assert summary["before"] is None
    assert (run / "report.html").exists()


def test_non_finite_loss_stops_the_run_and_names_the_rows(tiny, tmp_path):
    out = tmp_path / "run"
    words = (
        "--optimizer.learning_rate", "1e30", "--optimizer.clip_norm", "1e30", "--train.steps", "12",
        "--optimizer.schedule", "constant", "--guards.finite.skips", "0",
    )  # fmt: skip
    with pytest.raises(StoppedByGuard) as caught:
        alignax(*command(tiny, out, *words))
    assert caught.value.exit_code == 3
    text = str(caught.value)
    assert text.startswith("step ")
    assert "first bad tensor: " in text
    assert text.count("pairs.jsonl:") == 4, "the rows of the step"
    assert "optimizer.learning_rate" in text


def test_error_of_the_entry_point_goes_to_stderr(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["alignax", "dpo", "--loss.beta", "0"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("alignax: error: ")


def test_full_disk_reaches_the_person_as_one_line(monkeypatch, capsys):
    def full(words):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/runs/a/metrics.jsonl")

    monkeypatch.setattr(cli, "run", full)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 1
    assert "No space left on device: /runs/a/metrics.jsonl" in capsys.readouterr().err


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MB, where this user may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small disk")
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine allows no mounts")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_full_disk_stops_the_run_with_its_checkpoints_whole(tiny, small_disk):
    out = small_disk / "run"
    filler = small_disk / "filler"
    filler.write_bytes(b"\0" * (2**21 - 220_000))
    with pytest.raises(RunError) as caught:
        alignax(*command(tiny, out))
    text = str(caught.value)
    assert "cannot" in text or "not enough disk space" in text
    assert str(out) in text
    assert "--train.resume" in text or "free" in text
    assert filler.stat().st_size == 2**21 - 220_000
