# SPDX-License-Identifier: Apache-2.0
"""Adapters are written in PEFT's layout, read strictly, and checked against the trained model."""

import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from alignax.errors import ModelError, RunError
from alignax.export.peft import adapter_config, read_adapter, write_adapter
from alignax.export.verify import bare, verify_adapter
from alignax.models.lora import LoraSpec, adapter_to_peft, add_lora, peft_to_adapter
from tests.export.conftest import END, EOS, LORA

WEIGHTS = "adapter_model.safetensors"


@pytest.fixture
def folder(tmp_path, trained, tokenizer, facts):
    """A written adapter."""
    write_adapter(tmp_path / "adapter", trained, LORA, tokenizer, facts, stop_ids=[END])
    return tmp_path / "adapter"


def rewrite(folder, change):
    """Alter the tensors of a written adapter."""
    save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS)


def test_layout(folder, base, facts):
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md", "adapter_config.json", WEIGHTS, "alignax.json", "chat_template.jinja",
        "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    config = json.loads((folder / "adapter_config.json").read_text())
    want = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8,
        "lora_dropout": 0.05, "target_modules": ["down_proj", "q_proj"], "bias": "none",
        "fan_in_fan_out": False, "base_model_name_or_path": str(base.path),
    }  # fmt: skip
    assert config | want == config
    shapes = {name: tensor.shape for name, tensor in load_file(folder / WEIGHTS).items()}
    assert len(shapes) == 2 * 2 * 2
    stem = "base_model.model.model.layers.1"
    assert shapes[f"{stem}.mlp.down_proj.lora_A.weight"] == (4, 48)
    assert shapes[f"{stem}.mlp.down_proj.lora_B.weight"] == (32, 4)
    manifest = json.loads((folder / "alignax.json").read_text())
    assert manifest["base"]["weights_hash"] == base.weights_hash
    assert manifest["stop_ids"] == [END]
    assert manifest["run"] == facts.run
    assert len(manifest["adapter_hash"]) == 64


def test_read_gives_back_what_was_written(folder, trained, base):
    tensors, spec, base_hash = read_adapter(folder)
    want = adapter_to_peft(trained)
    assert tensors.keys() == want.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor, want[name])
    assert spec == LORA
    assert base_hash == base.weights_hash


def test_verify_passes(folder, base, trained, prompts):
    checks = verify_adapter(folder, trained, base, prompts, stop_ids=[END, EOS])
    assert checks.max_logit_difference == 0
    assert (checks.prompts, checks.greedy_equal, checks.greedy_tokens_equal) == (4, 4, 1.0)
    assert json.loads((folder / "alignax.json").read_text())["checks"]["greedy_equal"] == 4


def test_a_bare_copy_leaves_the_model_alone(trained):
    """The base in memory may carry the trained adapter; the check must not lean on it."""
    assert bare(trained).layers.attention.q_proj.lora_a is None
    assert trained.layers.attention.q_proj.lora_a is not None


def test_extra_prefix_is_refused_by_name(folder):
    """C23 (d): a server would answer as the base does, without an error."""
    rewrite(folder, lambda tensors: {f"base_model.{name}": t for name, t in tensors.items()})
    with pytest.raises(ModelError) as caught:
        read_adapter(folder)
    assert len(caught.value.problems) == 8
    assert (
        "not a PEFT name of a known projection: "
        "base_model.base_model.model.model.layers.0.mlp.down_proj.lora_A.weight"
    ) in caught.value.problems


def roll(tensors):
    """Shift the rows of one projection's B."""
    return {
        name: np.roll(tensor, 1, axis=0) if "q_proj.lora_B" in name else tensor
        for name, tensor in tensors.items()
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: {f"base_model.{n}": v for n, v in t.items()}, "not a PEFT name"),
        (lambda t: {n: v for n, v in t.items() if "layers.1" not in n}, "missing: base_model"),
        (roll, "2 of 8 tensors differ from the trained ones.*\n.*changes logits by"),
    ],
)
def test_verify_refuses_another_adapter(folder, base, trained, prompts, change, message):
    """All problems at once, and the folder cannot be mistaken for a good one any more."""
    rewrite(folder, change)
    with pytest.raises(RunError, match=message) as caught:
        verify_adapter(folder, trained, base, prompts, stop_ids=[END, EOS])
    assert f"{WEIGHTS} is not what was written" in str(caught.value)
    assert not folder.exists()
    assert (folder.parent / "adapter.failed" / WEIGHTS).exists()


def test_verify_shows_both_hashes_of_another_base(folder, base, trained, prompts):
    manifest = json.loads((folder / "alignax.json").read_text())
    manifest["base"]["weights_hash"] = "f" * 64
    (folder / "alignax.json").write_text(json.dumps(manifest))
    with pytest.raises(RunError, match=f"names base {'f' * 64}.*{base.weights_hash}"):
        verify_adapter(folder, trained, base, prompts, stop_ids=[END, EOS])


def test_verify_refuses_a_tokenizer_that_never_stops(folder, base, trained, prompts, tokenizer):
    """C23 (c) for an adapter: its tokenizer's EOS must be a stop id."""
    with pytest.raises(RunError, match=f"EOS is {tokenizer.eos_token_id}.*\\[{END}\\]"):
        verify_adapter(folder, trained, base, prompts, stop_ids=[END])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3', supported is 'LORA'"),
        ({"use_dora": True}, "use_dora is True, supported is False"),
        ({"bias": "all"}, "bias is 'all', supported is 'none'"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save is \['lm_head'\]"),
        ({"rank_pattern": {"q_proj": 2}}, r"q_proj.lora_A.weight is \[4, 32\], .* says rank 2"),
        ({"rank_pattern": {"q_(": 2}}, r"pattern 'q_\(' of an adapter cannot be read"),
        ({"alpha_pattern": {"q_proj": -1}}, "pattern 'q_proj' of an adapter has the value -1"),
        ({"r": 5}, r"is \[4, 48\], adapter_config.json says rank 5"),
        ({"r": None}, "names no rank"),
    ],
)
def test_other_kinds_of_adapters_are_refused(folder, change, message):
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | change))
    with pytest.raises(ModelError, match=message):
        read_adapter(folder)


def test_ranks_and_alphas_of_single_modules_are_honoured(folder):
    """PEFT's patterns: every module's update, alpha / rank · B A, is what its own numbers say."""
    config = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / WEIGHTS)
    narrow = "base_model.model.model.layers.1.self_attn.q_proj.lora_"
    tensors[f"{narrow}A.weight"] = np.ascontiguousarray(tensors[f"{narrow}A.weight"][:2])
    tensors[f"{narrow}B.weight"] = np.ascontiguousarray(tensors[f"{narrow}B.weight"][:, :2])
    save_file(tensors, folder / WEIGHTS)
    patterns = {
        "rank_pattern": {r"layers\.1\.self_attn\.q_proj": 2},
        "alpha_pattern": {"^model.layers.0.mlp.down_proj": 5, "q_proj": 12},
    }
    (folder / "adapter_config.json").write_text(json.dumps(config | patterns))
    got, spec, _ = read_adapter(folder)
    assert (spec.rank, spec.alpha) == (4, 8.0)
    for name in tensors:
        if ".lora_A." not in name:
            continue
        other = name.replace("lora_A", "lora_B")
        alpha = 12 if "q_proj" in name else 5 if "layers.0" in name else 8
        want = alpha / len(tensors[name]) * tensors[other] @ tensors[name]
        np.testing.assert_allclose(spec.scale * got[other] @ got[name], want, atol=1e-6)
        assert np.abs(want).max() > 1e-3


def test_rank_stabilised_scale_is_kept(folder, base):
    """PEFT scales by alpha / √r = 8 / 2."""
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"use_rslora": True}))
    (folder / "alignax.json").unlink()
    _, spec, base_hash = read_adapter(folder)
    assert (spec.alpha, spec.rslora, spec.scale) == (8.0, True, 4.0)
    assert adapter_config(spec, "base")["use_rslora"] is True
    assert base_hash is None


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "adapter_config.json").unlink(), "cannot read the adapter's"),
        (lambda f: (f / "adapter_config.json").write_text("{"), "is not JSON"),
        (lambda f: (f / WEIGHTS).unlink(), f"has no {WEIGHTS}; it has README.md"),
        (lambda f: (f / WEIGHTS).write_bytes(b"12345678901"), r"\(11 bytes\) is damaged"),
    ],
)
def test_damaged_folders(folder, damage, message):
    damage(folder)
    with pytest.raises(ModelError, match=message):
        read_adapter(folder)


def test_a_second_run_does_not_replace_the_first(folder, trained, tokenizer, other_run):
    before = (folder / "alignax.json").read_text()
    with pytest.raises(RunError, match="is an export of run"):
        write_adapter(folder, trained, LORA, tokenizer, other_run)
    assert (folder / "alignax.json").read_text() == before


def test_nothing_is_written_without_an_adapter_or_with_nan(
    tmp_path, base, trained, tokenizer, facts
):
    with pytest.raises(ModelError, match="no adapter to export"):
        write_adapter(tmp_path / "a", base.model, LORA, tokenizer, facts)
    broken = bare(trained)
    add_lora(broken, LORA, key=jax.random.key(0))
    tensors = adapter_to_peft(trained)
    tensors[next(iter(tensors))][0, 0] = np.nan
    peft_to_adapter(broken, tensors)
    with pytest.raises(ModelError, match="1 tensors cannot be exported"):
        write_adapter(tmp_path / "a", broken, LORA, tokenizer, facts)
    assert not (tmp_path / "a").exists()


def test_fractional_alpha_survives(tmp_path, base, tokenizer, facts):
    spec = LoraSpec(2, 2.5, 0.0, ("v_proj",))
    model = bare(base.model)
    add_lora(model, spec, key=jax.random.key(0))
    write_adapter(tmp_path / "a", model, spec, tokenizer, facts)
    assert read_adapter(tmp_path / "a")[1] == spec
