# SPDX-License-Identifier: Apache-2.0
"""A sweep from the command: each variant is the single run, bad ones freeze, all is written."""

import csv
import json
import shutil
import signal

import numpy as np
import pytest
from safetensors.numpy import load_file

from alignax.cli.sweep_progress import SweepProgress
from alignax.errors import RunError, StoppedByGuard, UsageError
from alignax.recipe import load_recipe
from alignax.train.variants_watch import values_of
from tests.cli.tiny_model import QUICK, alignax, read_lines

NOT_HERE = ("--sample.", "--export.", "--lora.rank")
SHORT = tuple(
    word
    for flag, value in zip(QUICK[::2], QUICK[1::2], strict=True)
    if not flag.startswith(NOT_HERE)
    for word in (flag, value)
)
"""``QUICK`` without what has no effect on a sweep, and without the rank."""
GRID = ("--grid", "loss.beta=0.1,0.5", "--grid", "loss.type=sigmoid,ipo", "--grid", "lora.rank=4,2")


def words(tiny, run):
    """The command without its grid."""
    return ("sweep", "--model", tiny / "model", "--data", tiny / "pairs.jsonl", "--output", run)


def evals(run, name):
    """Step → held-out values of a variant."""
    return {
        line["step"]: values_of(name, line)
        for line in read_lines(run / "metrics.jsonl")
        if line["kind"] == "eval"
    }


@pytest.fixture(scope="module")
def sweep(tiny):
    """A finished sweep of eight variants; v1 is the run ``dpo_run``."""
    run = tiny / "runs" / "sweep"
    assert alignax(*words(tiny, run), *SHORT, *GRID, "--export", "all", "--guards.kl.top", "9") == 0
    return run


def test_the_first_variant_is_the_single_run(sweep, dpo_run):
    ours = [x["v1/loss"] for x in read_lines(sweep / "metrics.jsonl") if x["kind"] == "train"]
    theirs = [x["loss"] for x in read_lines(dpo_run / "metrics.jsonl") if x["kind"] == "train"]
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    single = {x["step"]: x for x in read_lines(dpo_run / "metrics.jsonl") if x["kind"] == "eval"}
    for step, values in evals(sweep, "v1").items():
        for name, value in values.items():
            np.testing.assert_allclose(value, single[step][name], rtol=1e-4, atol=1e-6)
    adapters = [
        load_file(folder / "adapter_model.safetensors")
        for folder in (sweep / "export" / "v1", dpo_run / "export" / "adapter")
    ]
    for name, tensor in adapters[1].items():
        if json.loads((dpo_run / "summary.json").read_text())["best_step"] == 4:
            np.testing.assert_allclose(adapters[0][name], tensor, rtol=1e-4, atol=1e-6)


def test_every_variant_is_written(sweep, capsys):
    found = json.loads((sweep / "sweep.json").read_text())
    assert [v["name"] for v in found["variants"]] == [f"v{i}" for i in range(1, 9)]
    paths = {entry["path"].rpartition("/")[2] for entry in found["exports"]}
    best = {"adapter"} if found["recommended"] else set()
    assert paths == {f"v{i}" for i in range(1, 9)} | best
    ranks = [
        json.loads((sweep / "export" / f"v{i}" / "adapter_config.json").read_text())["r"]
        for i in (1, 2)
    ]
    assert ranks == [4, 2]
    rows = list(csv.DictReader((sweep / "sweep.csv").open()))
    assert [row["loss.beta"] for row in rows] == ["0.1"] * 4 + ["0.5"] * 4
    assert all(0 <= float(row["accuracy"]) <= 1 for row in rows)
    assert found["compilations"]["programs"]
    page = (sweep / "report.html").read_text(encoding="utf-8")
    assert "http" not in page.replace("http://www.w3.org", "")
    assert page.count("<svg") == 5
    capsys.readouterr()
    assert alignax("report", sweep, "--json") == 0
    assert json.loads(capsys.readouterr().out)["recommended"] == found["recommended"]


def test_a_variant_can_be_exported_later(sweep, capsys):
    file = sweep / "export" / "v2" / "adapter_model.safetensors"
    before = file.read_bytes()
    shutil.rmtree(file.parent)
    capsys.readouterr()
    assert alignax("export", sweep, "--variant", "v2", "--json") == 0
    (written,) = json.loads(capsys.readouterr().out)
    assert written["variant"] == "v2"
    assert file.read_bytes() == before
    with pytest.raises(UsageError, match="no variant 'v9'"):
        alignax("export", sweep, "--variant", "v9")
    with pytest.raises(UsageError, match="no effect"):
        alignax("export", sweep, "--checkpoint", "2")


def test_the_step_was_compiled_once(sweep):
    kinds = [event["kind"] for event in read_lines(sweep / "events.jsonl")]
    assert "recompiled" not in kinds
    assert kinds.count("first_step") == 1


def test_the_best_recipe_is_a_run_of_its_own(sweep, capsys):
    found = json.loads((sweep / "sweep.json").read_text())
    best = load_recipe(sweep / "recipe.best.yaml", {})
    chosen = next(v for v in found["variants"] if v["name"] == found["recommended"])
    assert best.loss.beta == chosen["settings"]["loss.beta"]
    assert best.lora.rank == chosen["settings"]["lora.rank"]
    assert best.output == f"{sweep}-best"
    # The folder stands for the recommended variant, its own loss included.
    capsys.readouterr()
    assert alignax("evaluate", "heldout", "--model", sweep, "--json") == 0
    values = json.loads(capsys.readouterr().out)
    assert values["loss"] == pytest.approx(chosen["values"]["loss"], abs=1e-5)


def test_bad_variants_freeze_and_the_others_go_on(tiny, tmp_path, capsys):
    run = tmp_path / "run"
    rates = ("--grid", "optimizer.learning_rate=1e-3,3,1e30", "--guards.kl.top", "0.5",
             "--guards.kl.action", "stop")  # fmt: skip
    short = [w for w in SHORT if w not in ("--optimizer.learning_rate", "1e-2")]
    capsys.readouterr()
    assert alignax(*words(tiny, run), *short, *rates, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    frozen = {v["name"]: v["frozen"] for v in found["variants"]}
    assert frozen["v1"] is None
    assert (frozen["v2"]["guard"], frozen["v2"]["step"]) == ("kl", 2)
    assert frozen["v3"]["guard"] == "finite"
    assert found["recommended"] == "v1"
    events = [e["message"] for e in read_lines(run / "events.jsonl") if e["kind"] == "frozen"]
    assert [message.partition(":")[0] for message in events] == ["v3", "v2"]
    lines = read_lines(run / "metrics.jsonl")
    last = [line for line in lines if line["kind"] == "train"][-1]
    assert "v1/loss" in last
    assert "v2/loss" not in last
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "frozen: step 2" in page


def test_a_sweep_without_survivors_ends_with_code_3(tiny, tmp_path):
    run = tmp_path / "run"
    with pytest.raises(StoppedByGuard, match="froze all 2"):
        alignax(*words(tiny, run), *SHORT, "--grid", "loss.beta=0.1,0.2", "--guards.kl.top", "1e-9")
    assert (run / "sweep.csv").exists()
    assert (run / "report.html").exists()
    assert not (run / "recipe.best.yaml").exists()


def test_a_stopped_sweep_continues_bit_for_bit(tiny, tmp_path, monkeypatch):
    """Dropout is on, and seeds differ."""
    grid = ("--grid", "loss.beta=0.1,0.5", "--seeds", "2", "--lora.rank", "4")
    dropout = ("--lora.dropout", "0.1")
    short = [*(w for w in SHORT if w not in ("--lora.dropout", "0")), *dropout, *grid]
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    assert alignax(*words(tiny, straight), *short) == 0
    told = SweepProgress.on_step

    def stop(self, step, values):
        told(self, step, values)
        if step == 3:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(SweepProgress, "on_step", stop)
        with pytest.raises(RunError, match="saved step 3"):
            alignax(*words(tiny, stopped), *short)
    for verb in ("report", "export"):
        with pytest.raises(RunError, match="not finished"):
            alignax(verb, stopped)
    with pytest.raises(RunError, match="another run"):
        other = [word.replace("0.1,0.5", "0.1,0.6") for word in short]
        alignax(*words(tiny, stopped), *other, "--train.resume")
    assert alignax(*words(tiny, stopped), *short, "--train.resume") == 0
    ours, theirs = (
        [
            {k: v for k, v in line.items() if "/" in k or k in ("step", "kind", "loss")}
            for line in read_lines(run / "metrics.jsonl")
        ]
        for run in (stopped, straight)
    )
    assert ours == theirs
    found = [json.loads((run / "sweep.json").read_text()) for run in (stopped, straight)]
    assert found[0]["variants"] == found[1]["variants"]
    seeds = {row["seeds"] for row in found[0]["seeds"]}
    assert seeds == {2}
    # Another seed is another start and another dropout.
    second = next(x for x in theirs if (x["kind"], x["step"]) == ("train", 2))
    assert second["v1/loss"] != second["v2/loss"]


@pytest.mark.parametrize(
    ("grid", "told"),
    [
        ((), ["at least two", "--seeds"]),
        (("--grid", "loss.beta=0.1"), ["at least two"]),
        (("--grid", "loss.bta=0.1,0.2"), ["loss.bta", "loss.beta"]),
        (("--grid", "loss.beta"), ["KEY=V1,V2"]),
        (("--grid", "train.batch_size=4,8"), ["cannot differ", "lora.rank"]),
        (("--grid", "train.seed=1,2"), ["--seeds"]),
        (("--grid", "loss.beta=0.1,0.10"), ["0.1", "twice"]),
        (("--grid", "loss.beta=0.1,-1"), ["loss.beta", "-1"]),
        (("--grid", "loss.beta=0.1,0.2", "--loss.beta", "0.3"), ["swept", "loss.beta"]),
        (("--grid", "optimizer.weight_decay=0,-1"), ["optimizer.weight_decay", "greater"]),
        (
            ("--grid", "loss.type=sigmoid,ipo", "--loss.label_smoothing", "0.1"),
            ["v2", "label_smoothing", "no effect"],
        ),
        (("--grid", "loss.type=auto,sigmoid"), ["v1", "v2", "same"]),
        (("--grid", "loss.beta=0.1,0.2", "--data.eval_fraction", "0"), ["held-out"]),
        (("--grid", "loss.beta=0.1,0.2", "--sample.prompts", "1"), ["ineffective"]),
        (("--grid", "loss.beta=0.1,0.2", "--lora.enabled", "false"), ["ineffective"]),
    ],
)
def test_what_cannot_be_swept_is_refused(grid, told, tiny, tmp_path):
    with pytest.raises(UsageError) as caught:
        alignax(*words(tiny, tmp_path / "run"), *SHORT, *grid)
    for word in told:
        assert word in str(caught.value)
    assert not (tmp_path / "run").exists()
