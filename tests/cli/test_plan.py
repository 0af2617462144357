# SPDX-License-Identifier: Apache-2.0
"""A plan tells from configuration alone what fits, and training obeys it."""

import json
import re

import pytest

from alignax.cli.fitting import job_of, no_room, require_fit, settle
from alignax.cli.known import DEVICES, GIB, SHAPES, Device
from alignax.cli.planning import meshes, model_shape, step_flops
from alignax.errors import ModelError, RunError, UsageError
from alignax.models.weights import hf_config
from alignax.recipe import build_recipe
from tests.cli.tiny_model import CONFIG, QUICK, alignax, read_lines

SIZES = (1, 1, 4096, 2048, 64)


def plan(capsys, *words):
    """Run ``alignax plan --json``; returns the exit code and the plan."""
    capsys.readouterr()
    code = alignax("plan", *words, "--json")
    return code, json.loads(capsys.readouterr().out)


def test_a_small_model_fits_this_machine(capsys):
    code, found = plan(capsys, "--model", "smollm2-135m", "--train.microbatch_tokens", "512")
    assert code == 0
    assert found["fits"]
    assert found["model"]["parameters"] == 134_515_008
    parts = dict(found["memory_gib"])
    peak, layer, head = parts.pop("peak"), parts.pop("layer"), parts.pop("head")
    assert peak == pytest.approx(sum(parts.values()) + max(layer, head))
    assert [p["remat"] for p in found["policies"]] == ["none", "attention", "dots", "full"]


def test_a_configuration_file_is_enough(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(hf_config(CONFIG)), encoding="utf-8")
    assert model_shape(str(tmp_path)) == CONFIG
    with pytest.raises(ModelError, match=r"no-such.*named shape"):
        model_shape("no-such")


def test_what_cannot_fit_is_refused_and_the_ways_out_fit(capsys):
    words = ("--model", "llama-3.2-1b", "--lora.enabled", "false")
    code, found = plan(capsys, *words, "--device", "l4")
    assert (code, found["fits"]) == (1, False)
    assert found["memory_gib"]["peak"] > found["device"]["limit_gib"]
    ways = " / ".join(found["would_fit"])
    assert "lora.enabled true" in ways
    assert "mesh.fsdp 2" in ways
    (named,) = re.findall(r"such as ([\w-]+)", ways)
    assert DEVICES[named].memory > DEVICES["l4"].memory
    assert plan(capsys, *words, "--device", named)[0] == 0
    assert plan(capsys, *words[:2], "--device", "l4")[0] == 0
    assert plan(capsys, *words, "--device", "l4", "--devices", "2", "--mesh.fsdp", "2")[0] == 0
    assert alignax("plan", *words, "--device", "l4") == 1
    printed = capsys.readouterr()
    assert "does not fit" in printed.err
    assert "optimizer" in printed.out


def test_slices_know_their_devices(capsys):
    counts = {name: DEVICES[name].count for name in ("v4-8", "v5p-8", "v5e-8", "v6e-8", "h100")}
    assert counts == {"v4-8": 4, "v5p-8": 4, "v5e-8": 8, "v6e-8": 8, "h100": 1}
    code, found = plan(capsys, "--model", "llama-3.1-8b", "--device", "v5e-8",
                       "--model.dtype", "bfloat16")  # fmt: skip
    assert code == 0
    # 16 GiB a chip do not hold 8 billion weights; split over the slice they fit.
    assert found["step"]["mesh"]["fsdp"] * found["step"]["mesh"]["tensor"] > 1
    assert {m["data"] * m["fsdp"] * m["tensor"] for m in found["meshes"]} == {8}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--device", "h1000"), "unknown device 'h1000'"),
        (("--device", "v5e-8", "--devices", "3"), "has 8 devices, got --devices 3"),
        (("--device", "h100", "--mesh.fsdp", "2"), "needs more than 1 devices"),
        (("--devices", "0"), "at least 1"),
    ],
)
def test_bad_devices(words, message):
    with pytest.raises(UsageError, match=message):
        alignax("plan", "--model", "smollm2-135m", *words)


def test_meshes_are_all_ways_to_share():
    # 9 heads and 3 key heads cannot be shared by two.
    assert meshes(SHAPES["smollm2-135m"], 4) == [(4, 1, 1), (2, 2, 1), (1, 4, 1)]
    assert (1, 1, 4) in meshes(SHAPES["llama-3.1-8b"], 4)


def smollm2(limit, kind="gpu", **settings):
    """Recipe, step and device of SmolLM2-135M with a memory limit in GiB."""
    recipe = build_recipe({"train.memory_limit_gib": limit} | settings)
    device = Device("box", kind, 64 * GIB, 1e11)
    limit_bytes = int(limit * GIB)
    job = job_of(
        recipe, SHAPES["smollm2-135m"], None, SIZES, live=False, limit=limit_bytes
    )  # fmt: skip
    return recipe, job, device


def test_auto_takes_the_quickest_policy_that_fits():
    chosen = {}
    for limit in (64, 9, 5, 1):
        verdict = settle(*smollm2(limit))
        chosen[limit] = verdict.remat, verdict.fits
        assert verdict.fits == (verdict.total <= limit * GIB)
        assert verdict.remat in verdict.reason
    assert chosen[64] == ("none", True)
    assert chosen[1] == ("full", False)
    remats = [remat for remat, _ in chosen.values()]
    assert remats == sorted(remats, key=["none", "dots", "full"].index)
    assert settle(*smollm2(64, "cpu")).remat == "dots"
    asked = settle(*smollm2(1, **{"train.remat": "attention"}))
    assert (asked.remat, asked.fits) == ("attention", False)


def test_a_run_that_cannot_fit_is_refused_unless_told():
    recipe, job, device = smollm2(1)
    with pytest.raises(RunError) as caught:
        require_fit(recipe, job, device, longest=500)
    assert "does not fit" in str(caught.value)
    assert "train.memory_check false" in str(caught.value)
    recipe, job, device = smollm2(1, **{"train.memory_check": False})
    assert not require_fit(recipe, job, device, longest=500).fits
    verdict = settle(recipe, job, device)
    assert "optimizer 1.00" in str(no_room(verdict, [], device))


def test_training_asks_before_it_compiles(tiny, tmp_path):
    words = ("--model", tiny / "model", "--data", tiny / "pairs.jsonl", *QUICK)
    with pytest.raises(RunError, match="does not fit"):
        alignax(
            "dpo", *words, "--output", tmp_path / "run", "--train.memory_limit_gib", "0.01"
        )  # fmt: skip
    assert not (tmp_path / "run").exists()


def test_a_run_says_which_policy_it_took_and_why(dpo_run):
    (event,) = [e for e in read_lines(dpo_run / "events.jsonl") if e["kind"] == "memory"]
    assert "train.remat dots (the quickest that fits)" in event["message"]
    assert "\n  remat: dots " in (dpo_run / "recipe.yaml").read_text(encoding="utf-8")


def test_useful_work_by_hand():
    """LoRA: 2 forward and 2 backward FLOPs a weight and token; full training 6."""
    config = SHAPES["smollm2-135m"]
    recipe = build_recipe({})
    _, job, _ = smollm2(8)
    useful, done = step_flops(job, "dots", 1)
    head = 2 * 576 * 49_152 * 2048
    body = 2 * 30 * (2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536) * 4096
    attention = 4 * 128**2 * 9 * 64 * 30 * 64
    assert useful == pytest.approx(3 * (head + body) + 3 * attention)
    assert done > useful
    assert step_flops(job, "full", 1)[1] == pytest.approx(done + body + attention)
    assert recipe.train.remat == "auto"
    assert config.body_parameters * 2 * 4096 == body
