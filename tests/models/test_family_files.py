# SPDX-License-Identifier: Apache-2.0
"""GGUF files of other families than Llama, and what configurations of old and new spelling say."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from gguf import RopeScalingType
from safetensors.numpy import save_file

from alignax.models.config import DecoderConfig
from alignax.models.families import FAMILIES
from alignax.models.weights import export_tensors, load_model
from tests.models.test_families import plain_hidden
from tests.models.tiny_families import CONFIGS, arrays_of, decoder_config, write_gguf

GGUF = {
    "qwen2-yarn": [
        ("add_rope_scaling_type", RopeScalingType.YARN),
        ("add_rope_scaling_factor", 2.0),
        ("add_rope_scaling_orig_ctx_len", 32),
    ],
    "qwen3": [],
    "gemma": [],
    "gemma2": [
        ("add_sliding_window", 6),
        ("add_attn_logit_softcapping", 2.0),
        ("add_final_logit_softcapping", 3.0),
    ],
    "gemma3": [("add_sliding_window", 6)],
}
"""Variant → what its GGUF file says beyond sizes."""


@pytest.mark.parametrize("variant", GGUF)
def test_gguf_gives_the_logits_of_transformers(tmp_path, variant):
    ids_bt, want_btv, _ = arrays_of(variant)
    loaded = load_model(write_gguf(tmp_path / "a.gguf", variant, metadata=GGUF[variant]))
    got_btv = loaded.model.logits(plain_hidden(loaded.model, jnp.asarray(ids_bt)))
    np.testing.assert_allclose(got_btv, want_btv, rtol=0, atol=1e-4)
    assert loaded.family == FAMILIES[loaded.family].name
    # What a folder made of it says reads back as the same decoder.
    assert FAMILIES[loaded.family].from_hf(loaded.hf_config, []) == loaded.config


@pytest.mark.parametrize(
    ("family", "changes", "windows"),
    [
        ("mistral", {"sliding_window": None}, ()),
        ("mistral", {}, (4096, 4096)),
        ("qwen2", {"use_sliding_window": False}, ()),
        ("qwen2", {}, ()),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 1}, (None, 4096)),
        ("qwen3", {"use_sliding_window": True, "max_window_layers": 2}, ()),
    ],
)
def test_windows_of_what_a_configuration_leaves_out(family, changes, windows):
    """Defaults are those of transformers; an explicit null is not a missing key."""
    sizes = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    problems = []
    read = FAMILIES[family].from_hf(sizes | {"num_attention_heads": 2} | changes, problems)
    assert isinstance(read, DecoderConfig), problems
    assert read.windows == windows


@pytest.mark.parametrize(
    ("variant", "changes", "reason"),
    [
        ("mistral", {"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ("mistral", {"layer_types": ["chunked_attention"] * 3}, "layer_types must name"),
        ("qwen2", {"layer_types": ["sliding_attention"]}, "layer_types must name"),
        ("qwen3", {"rope_parameters": {"rope_type": "longrope"}}, "'longrope' is not supported"),
        ("qwen3", {"num_experts": 8}, "num_experts 8"),
        ("llama-yarn", {"sliding_window": 8}, "sliding_window 8"),
    ],
)
def test_what_a_family_does_not_have_is_refused(variant, changes, reason):
    problems = []
    model_type = CONFIGS[variant]["model_type"]
    assert FAMILIES[model_type].from_hf(CONFIGS[variant] | changes, problems) is None
    assert any(reason in problem for problem in problems), problems


def test_yarn_magnitude_follows_the_factor():
    """0.1 ln(4) + 1, unless the configuration states another."""
    assert decoder_config("llama-yarn").rope_scaling.magnitude == pytest.approx(1.138629436)
    rope = CONFIGS["llama-yarn"]["rope_parameters"] | {"attention_factor": 0.5}
    assert decoder_config("llama-yarn", rope_parameters=rope).rope_scaling.magnitude == 0.5


@pytest.mark.parametrize("prefix", ["language_model.", "model.language_model."])
def test_text_part_of_a_multimodal_folder(tmp_path, prefix):
    """Either spelling of its names; other towers are left out, and the export is a text model."""
    weights = arrays_of("gemma3")[2]
    text = CONFIGS["gemma3"] | {"sliding_window_pattern": 6}
    text = {key: value for key, value in text.items() if key not in ("layer_types", "head_dim")}
    outer = {
        "model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": text | {"head_dim": 8}, "vision_config": {}, "eos_token_id": [1, 7],
    }  # fmt: skip

    def rename(name):
        return prefix + (name if prefix == "language_model." else name.removeprefix("model."))

    tower = np.ones((2, 2), np.float32)
    others = ("vision_tower.a.weight", "model.multi_modal_projector.b.weight")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(outer), encoding="utf-8")
    tensors = {rename(name): values for name, values in weights.items()}
    save_file(tensors | dict.fromkeys(others, tower), folder / "model.safetensors")
    loaded = load_model(folder)
    assert loaded.config == decoder_config("gemma3")
    assert loaded.hf_config["architectures"] == ["Gemma3ForCausalLM"]
    assert loaded.hf_config["model_type"] == "gemma3_text"
    assert loaded.stop_ids == (1, 7)
    assert export_tensors(loaded.model).keys() == weights.keys()
