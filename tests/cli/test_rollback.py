# SPDX-License-Identifier: Apache-2.0
"""A run that goes wrong goes back by itself, more slowly; what cannot be saved ends with code 3."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from alignax.errors import StoppedByGuard, UsageError
from tests.cli.tiny_model import QUICK, alignax, read_lines

LONG = {
    "--train.steps": "8", "--train.eval_steps": "2", "--optimizer.schedule": "constant",
    "--optimizer.warmup_ratio": "0", "--export.merged": "false", "--sample.prompts": "0",
}  # fmt: skip


def words(tiny, output, **settings):
    """Flags of a run; ``kl__top`` stands for ``guards.kl.top``."""
    flags = dict(zip(QUICK[::2], QUICK[1::2], strict=True)) | LONG
    flags |= {f"--guards.{name.replace('__', '.')}": value for name, value in settings.items()}
    flags |= {"--model": tiny / "model", "--data": tiny / "pairs.jsonl", "--output": output}
    return [word for pair in flags.items() for word in pair]


def looks(run):
    """Held-out metrics by step."""
    return {m["step"]: m for m in read_lines(run / "metrics.jsonl") if m["kind"] == "eval"}


@pytest.fixture(scope="module")
def runs(tiny, tmp_path_factory):
    """(run that goes back, run at a tenth of its rate, the limit that parts them)."""
    folder = tmp_path_factory.mktemp("rollback")
    for name, rate in (("wild", "3e-2"), ("slow", "3e-3")):
        flags = words(tiny, folder / name, kl__action="none")
        assert alignax("dpo", *flags, "--optimizer.learning_rate", rate) == 0
    wild = looks(folder / "wild")[2]["kl/token"]
    slow = max(values["kl/token"] for values in looks(folder / "slow").values())
    assert wild > 1.5 * slow
    top = (wild + slow) / 2
    flags = words(tiny, folder / "fast", kl__top=str(top), kl__rise="1e9")
    assert alignax("dpo", *flags, "--optimizer.learning_rate", "3e-2") == 0
    return folder / "fast", folder / "slow", top


def test_a_run_recovers_by_itself(runs):
    """It ends below ln 2 and within the limit; the learning rate was cut."""
    fast, _, top = runs
    (done,) = json.loads((fast / "rollbacks.json").read_text())["rollbacks"]
    assert (done["guard"], done["to_step"]) == ("kl", 0)
    assert "learning rate times 0.1 from here on (rollback 1 of 2)" in done["line"]
    trained = [m for m in read_lines(fast / "metrics.jsonl") if m["kind"] == "train"]
    assert [m["step"] for m in trained] == list(range(1, 9))
    assert [m["learning_rate"] for m in trained] == pytest.approx([3e-3] * 8)
    last = looks(fast)[8]
    assert last["kl/token"] <= top
    assert last["loss"] < np.log(2)


def test_nothing_that_was_undone_is_lost(runs):
    """The undone metrics lie aside, the events and the report tell what happened."""
    fast, _, top = runs
    undone = read_lines(fast / "undone.jsonl")
    assert [r["step"] for r in undone if r["kind"] == "train"] == [1, 2]
    assert any(record["kind"] == "eval" and record["kl/token"] > top for record in undone)
    (event,) = [e for e in read_lines(fast / "events.jsonl") if e["kind"] == "rollback"]
    assert "the policy is far from the reference" in event["message"]
    page = (fast / "report.html").read_text()
    assert "rollback 1 of 2" in page
    slow_page = (runs[1] / "report.html").read_text()
    assert page.count("stroke-dasharray: 0.8,1.6") > slow_page.count("stroke-dasharray: 0.8,1.6")


def test_the_run_after_a_rollback_is_the_slow_run(runs):
    """Gone back to step 0, it is the run that began with a tenth of the rate."""
    one, two = (
        load_file(run / "export" / "adapter" / "adapter_model.safetensors") for run in runs[:2]
    )
    for name, tensor in one.items():
        np.testing.assert_allclose(tensor, two[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_beta_can_be_raised_and_batches_left_out(tiny, tmp_path, runs):
    """Both are off by default, and a stopped run that goes on knows them."""
    run = tmp_path / "tied"
    flags = words(
        tiny, run, kl__top=str(runs[2]), kl__rise="1e9", beta_factor="4", skip_batches="true"
    )
    assert alignax("dpo", *flags, "--optimizer.learning_rate", "3e-2") == 0
    (done,) = json.loads((run / "rollbacks.json").read_text())["rollbacks"]
    assert done["passed_over"] == list(range(1, done["at_step"] + 1))
    told = "learning rate times 0.1, beta times 4, batches of steps 1 to 2 left out from here on"
    assert told in done["line"]
    trained = {m["step"]: m for m in read_lines(run / "metrics.jsonl") if m["kind"] == "train"}
    assert list(trained) == list(range(done["at_step"] + 1, 9))
    slow = {m["step"]: m for m in read_lines(runs[1] / "metrics.jsonl") if m["kind"] == "train"}
    assert trained[8]["learning_rate"] == slow[8]["learning_rate"]
    plain = words(tiny, tmp_path / "none", beta_factor="2")
    with pytest.raises(UsageError, match="ineffective options: --guards.beta_factor"):
        alignax("sft", *plain)


def test_what_cannot_be_saved_ends_with_the_best_healthy_checkpoint(tiny, tmp_path):
    """The same end comes again after the rollback: step 2 is exported, and the code is 3."""
    free = tmp_path / "free"
    rate = ("--optimizer.learning_rate", "3e-2")
    assert alignax("dpo", *words(tiny, free, kl__action="none"), *rate) == 0
    below, above = (looks(free)[step]["kl/token"] for step in (2, 4))
    assert above > 1.1 * below
    run = tmp_path / "lost"
    flags = words(
        tiny, run, kl__top=str((below + above) / 2), kl__bottom="0", kl__rise="1e9",
        rate_factor="1.0", max_rollbacks="1",
    )  # fmt: skip
    with pytest.raises(StoppedByGuard) as caught:
        alignax("dpo", *flags, *rate)
    assert caught.value.exit_code == 3
    assert "step 4: the policy is far from the reference (kl/token" in str(caught.value)
    assert "given up after 1 rollbacks, and step 2 was exported" in str(caught.value)
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["best_step"], summary["steps"]) == (2, 2)
    assert summary["after"]["kl/token"] == below
    assert (run / "export" / "adapter" / "adapter_config.json").exists()
    done = json.loads((run / "rollbacks.json").read_text())["rollbacks"]
    assert [record["to_step"] for record in done] == [2]


def test_without_any_healthy_checkpoint_nothing_is_exported(tiny, tmp_path):
    run = tmp_path / "hopeless"
    flags = words(tiny, run, kl__top="1e-12", max_rollbacks="1")
    with pytest.raises(StoppedByGuard, match="the policy is far from the reference"):
        alignax("dpo", *flags)
    assert not (run / "export").exists()
    assert not (run / "summary.json").exists()


def test_a_guard_can_warn(tiny, tmp_path):
    run = tmp_path / "warned"
    flags = words(tiny, run, kl__top="1e-6", kl__action="warn")
    assert alignax("dpo", *flags, "--train.steps", "4") == 0
    kinds = [e["kind"] for e in read_lines(run / "events.jsonl")]
    assert "guard_kl" in kinds
    assert not (run / "rollbacks.json").exists()
