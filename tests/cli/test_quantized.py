# SPDX-License-Identifier: Apache-2.0
"""QLoRA end to end on a tiny model: trained, exported, asked again, continued, refused."""

import json
import math

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from alignax.errors import AlignaxError, ModelError, RunError, UsageError
from alignax.export.folder import read_manifest
from alignax.export.peft import read_adapter
from alignax.models.lora import add_lora, merged, peft_to_adapter
from alignax.models.weights import export_tensors, load_model
from tests.cli.tiny_model import QUICK, alignax, read_lines


def words_of(tiny, run):
    return ("--model", tiny / "model", "--data", tiny / "pairs.jsonl", "--output", run, *QUICK)


@pytest.fixture(scope="module")
def qlora(tiny):
    """A finished DPO run on an nf4 base."""
    run = tiny / "runs" / "qlora"
    assert alignax("dpo", *words_of(tiny, run), "--quantize", "nf4") == 0
    return run


def test_it_starts_at_ln_2_and_learns(qlora):
    lines = read_lines(qlora / "metrics.jsonl")
    train = [line["loss"] for line in lines if line["kind"] == "train"]
    assert train[0] == pytest.approx(math.log(2), abs=1e-5)
    assert train[-1] < train[0]


def test_the_merged_export_is_the_decoded_base_and_the_delta(tiny, qlora):
    """Bit by bit: base decoded in float32, the adapter added, written in float32."""
    adapter = qlora / "export" / "adapter"
    tensors, spec, base_hash = read_adapter(adapter)
    base = load_model(tiny / "model", quantize="nf4")
    assert base_hash == base.weights_hash
    assert read_manifest(adapter)["base"]["quantize"] == "nf4"
    assert "nf4" in (adapter / "README.md").read_text(encoding="utf-8")
    add_lora(base.model, spec, key=jax.random.key(0))
    peft_to_adapter(base.model, tensors)
    want = export_tensors(merged(base.model))
    got = load_file(qlora / "export" / "merged" / "model.safetensors")
    assert got.keys() == want.keys()
    for name, values in want.items():
        np.testing.assert_array_equal(got[name], values, err_msg=name)
    plain = load_file(tiny / "model" / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    assert not np.array_equal(got[name], plain[name])


def test_a_run_is_asked_and_measured_on_its_quantised_base(qlora, capsys):
    capsys.readouterr()
    assert alignax("evaluate", "heldout", "--model", qlora, "--json") == 0
    printed = capsys.readouterr()
    assert "model.quantize nf4: 14 weight matrices" in printed.err
    after = json.loads((qlora / "summary.json").read_text())["after"]
    values = json.loads(printed.out)
    values = values.get("metrics", values)
    assert values["loss"] == pytest.approx(after["loss"], abs=1e-5)


def test_export_from_a_checkpoint(qlora):
    words = ("export", qlora, "--checkpoint", "last", "--export.dtype", "bfloat16")
    assert alignax(*words) == 0
    assert read_manifest(qlora / "export" / "merged")["checks"]["prompts"] == 8


def test_another_quantisation_does_not_continue_a_run(tiny, tmp_path):
    run = tmp_path / "run"
    words = ("dpo", *words_of(tiny, run), "--train.save_steps", "2", "--export.merged", "false")
    assert alignax(*words, "--quantize", "nf4") == 0
    (run / "summary.json").unlink()
    with pytest.raises(RunError, match="cannot be continued") as caught:
        alignax(*words, "--quantize", "int8", "--train.resume")
    assert "model.quantize: the run has 'nf4', now 'int8'" in str(caught.value)


def test_an_adapter_names_the_quantisation_that_it_needs(tiny, qlora):
    words = ("generate", "--model", tiny / "model", "--adapter", qlora, "--prompt", "hi")
    with pytest.raises(ModelError) as caught:
        alignax(*words)
    assert "--model.quantize nf4" in str(caught.value)


def test_full_training_is_refused(tiny, tmp_path):
    words = ("dpo", *words_of(tiny, tmp_path / "run"), "--quantize", "nf4")
    with pytest.raises(UsageError, match="model.quantize nf4 keeps the base frozen"):
        alignax(*words, "--lora.enabled", "false")
    with pytest.raises(AlignaxError, match="not valid") as caught:
        alignax("dpo", *words_of(tiny, tmp_path / "run"), "--quantize", "nf5")
    assert "'nf4'" in str(caught.value)


def test_rank_stabilised_adapters_are_continued_as_such(tiny, tmp_path):
    """SFT with alpha / √rank on codes, then DPO from it: its own shape, the same start."""
    first, second = tmp_path / "first", tmp_path / "second"
    words = ("--quantize", "int8", "--export.merged", "false")
    sft = words_of(tiny, first)
    assert alignax("sft", *sft, *words, "--lora.rslora", "--lora.alpha", "2") == 0
    _, spec, _ = read_adapter(first / "export" / "adapter")
    assert (spec.alpha, spec.scale, spec.rslora) == (2.0, 1.0, True)
    dpo = ("dpo", "--model", tiny / "model", "--data", tiny / "pairs.jsonl", "--output", second)
    assert alignax(*dpo, "--adapter", first, *QUICK, *words) == 0
    lines = read_lines(second / "metrics.jsonl")
    train = [line["loss"] for line in lines if line["kind"] == "train"]
    assert train[0] == pytest.approx(math.log(2), abs=1e-4)
    config = json.loads((second / "export/adapter/adapter_config.json").read_text())
    assert (config["use_rslora"], config["lora_alpha"]) == (True, 2)
    with pytest.raises(UsageError, match="differ from the adapter") as caught:
        alignax(*dpo[:-1], tmp_path / "third", "--adapter", first, *words, "--lora.rslora", "false")
    assert "lora.rslora: the adapter has True, the recipe False" in str(caught.value)
