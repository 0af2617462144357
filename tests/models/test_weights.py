# SPDX-License-Identifier: Apache-2.0
"""Strict loading: what is refused, in which words, and what the identity of weights covers."""

import json

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from alignax.errors import MissingExtra, ModelError
from alignax.models import demo
from alignax.models.sharding import build_mesh
from alignax.models.weights import load_model, resolve_model, stop_ids_of
from tests.models.tiny_llama import write_folder, write_gguf

SHARDS = 3
Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


def change(folder, edit):
    """Rewrite the folder's single weights file."""
    file = folder / "model.safetensors"
    weights = load_file(file)
    edit(weights)
    save_file(weights, file)
    return folder


def refusal(path):
    """The error of loading, as a user reads it."""
    with pytest.raises(ModelError) as caught:
        load_model(path)
    return str(caught.value)


def test_all_tensor_problems_come_in_one_error(tmp_path):
    """Missing, unexpected and mis-shaped tensors are listed together."""

    def edit(weights):
        del weights[Q_PROJ]
        weights["model.norm.weight"] = np.ones(7, np.float32)
        weights["model.layers.0.self_attn.q_norm.weight"] = np.ones(8, np.float32)

    text = refusal(change(write_folder(tmp_path / "model"), edit))
    assert "3 problems" in text
    assert f"missing: {Q_PROJ}" in text
    assert "unexpected: model.layers.0.self_attn.q_norm.weight [8]" in text
    assert "shape: model.norm.weight is [7], the configuration says [16]" in text


def test_known_buffers_and_a_copy_of_the_tied_head_are_no_problem(tmp_path):
    """Old folders carry rotary buffers and a second copy of the embedding."""

    def edit(weights):
        weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].copy()

    plain = load_model(write_folder(tmp_path / "plain"))
    loaded = load_model(change(write_folder(tmp_path / "model"), edit))
    assert loaded.weights_hash == plain.weights_hash
    assert loaded.model.lm_head is None


def test_a_tied_head_of_its_own_is_refused(tmp_path):
    """The configuration says tied, the file has another head: neither is taken silently."""

    def edit(weights):
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"] + 1

    text = refusal(change(write_folder(tmp_path / "model"), edit))
    assert "lm_head.weight differs from the embedding" in text


def test_integer_weights_are_refused(tmp_path):
    """Quantised tensors without a quantisation record do not pass as weights."""

    def edit(weights):
        weights[Q_PROJ] = weights[Q_PROJ].astype(np.int8)

    assert f"type: {Q_PROJ} is I8" in refusal(change(write_folder(tmp_path / "model"), edit))


def test_vocabulary_that_differs_from_the_embedding_is_refused(tmp_path):
    """Both numbers are shown."""
    text = refusal(write_folder(tmp_path / "model", changes={"vocab_size": 41}))
    assert "model.embed_tokens.weight is [40, 16], the configuration says [41, 16]" in text


@pytest.mark.parametrize("keep", [0, 5, 300, -1])
def test_truncated_weights_are_refused(tmp_path, keep):
    """Cut within the header or within the data: the file is named with its size."""
    folder = write_folder(tmp_path / "model")
    file = folder / "model.safetensors"
    content = file.read_bytes()[:keep]
    file.write_bytes(content)
    text = refusal(folder)
    assert f"{file} ({len(content)} bytes) is damaged or cut short" in text


def test_missing_and_damaged_shards_come_in_one_error(tmp_path):
    """The names of all bad shards are listed."""
    folder = write_folder(tmp_path / "model", shards=SHARDS)
    first, second, _ = sorted(folder.glob("*.safetensors"))
    first.unlink()
    second.write_bytes(second.read_bytes()[:-4])
    text = refusal(folder)
    assert f"shard {first.name} (7 tensors) is missing" in text
    assert f"{second.name}" in text
    assert "damaged or cut short" in text


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "is not JSON"),
        ("[]", "must hold a JSON object, got list"),
        ("{}", "has no usable 'weight_map'"),
        ('{"weight_map": {"a": 1}}', "has no usable 'weight_map'"),
    ],
)
def test_bad_index_is_refused(tmp_path, content, reason):
    """The index file is named."""
    folder = write_folder(tmp_path / "model", shards=SHARDS)
    (folder / "model.safetensors.index.json").write_text(content)
    text = refusal(folder)
    assert "model.safetensors.index.json" in text
    assert reason in text


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "has no config.json"),
        ("vocab_size: 40", "config.json is not JSON"),
        ("[1]", "must hold a JSON object"),
        ('{"model_type": "gpt2"}', "supported are: LlamaForCausalLM"),
        (
            '{"model_type": "llama", "architectures": ["LlamaForTokenClassification"]}',
            "supported are: LlamaForCausalLM",
        ),
        ('{"model_type": "llama"}', "vocab_size must be a positive whole number, got None"),
    ],
)
def test_bad_configuration_is_refused(tmp_path, content, reason):
    """The folder or file is named, with what is wrong about it."""
    folder = write_folder(tmp_path / "model")
    (folder / "config.json").unlink()
    if content is not None:
        (folder / "config.json").write_text(content)
    text = refusal(folder)
    assert str(folder) in text
    assert reason in text


@pytest.mark.parametrize(
    ("file", "hint"),
    [("adapter_config.json", "model.adapter"), ("a.gguf", "name the GGUF file itself")],
)
def test_folder_of_another_kind_gets_a_hint(tmp_path, file, hint):
    """An adapter folder and a folder around a GGUF file are recognised."""
    (tmp_path / file).write_text("{}")
    assert hint in refusal(tmp_path)


def test_folder_without_weights_lists_what_it_has(tmp_path):
    """Pickled weights are not read; the way out is named."""
    folder = write_folder(tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    text = refusal(folder)
    assert "it has config.json, pytorch_model.bin" in text
    assert "convert pickled weights" in text


def test_gguf_of_another_architecture_is_refused(tmp_path):
    """What the file is, and what is supported."""
    text = refusal(write_gguf(tmp_path / "model.gguf", architecture="mamba"))
    assert "architecture 'mamba'; supported are: llama" in text


def test_gguf_tensors_are_checked_too(tmp_path):
    """An extra tensor is named as in the file."""
    extra = {"blk.0.attn_q_norm.weight": np.ones(8, np.float32)}
    text = refusal(write_gguf(tmp_path / "model.gguf", tensors=extra))
    assert "unexpected: blk.0.attn_q_norm.weight [8]" in text


def test_unusable_gguf_metadata_comes_in_one_error(tmp_path):
    """Mixtures of experts and unknown rotary scalings are refused together."""
    metadata = [("add_expert_count", 8), ("add_string", "llama.rope.scaling.type", "longrope")]
    text = refusal(write_gguf(tmp_path / "model.gguf", metadata=metadata))
    assert "expert_count 8" in text
    assert "'longrope'" in text


@pytest.mark.parametrize("path", ["no/such/folder", "", "./nothing", "a.gguf", "owner/name"])
def test_missing_path_says_what_is_accepted(monkeypatch, path):
    """A hub id is tried last, and fails clearly without a network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    text = refusal(path)
    assert f"no model at {path!r}" in text
    assert "'demo', 'demo-gemma', or a hub id when online" in text
    assert ("as a hub id it cannot be fetched" in text) == (path == "owner/name")


def test_demo_without_its_package_names_the_extra(monkeypatch):
    """The demo model is an optional dependency."""
    monkeypatch.setattr(demo, "SMOLLM2", "alignax_no_such_package")
    with pytest.raises(MissingExtra, match="demo"):
        resolve_model("demo")


def test_identity_covers_values_names_and_types_but_not_shards(tmp_path):
    """One changed bit changes the hash; another layout of the same tensors does not."""
    base = load_model(write_folder(tmp_path / "base")).weights_hash
    assert load_model(write_folder(tmp_path / "shards", shards=SHARDS)).weights_hash == base
    half = write_folder(tmp_path / "half", dtype=np.float16)
    assert load_model(half).weights_hash != base

    def flip(weights):
        weights[Q_PROJ].view(np.uint32)[-1, -1] ^= 1

    assert load_model(change(write_folder(tmp_path / "flip"), flip)).weights_hash != base

    def swap(weights):
        other = Q_PROJ.replace("1", "0")
        weights[Q_PROJ], weights[other] = weights[other], weights[Q_PROJ]

    assert load_model(change(write_folder(tmp_path / "swap"), swap)).weights_hash != base
    assert len(base) == 64


def test_stop_ids_join_both_configurations(tmp_path):
    """The generation configuration comes first, and no id comes twice."""
    folder = write_folder(tmp_path / "model")
    assert stop_ids_of(folder) == (2, 3)
    generation = {"eos_token_id": [7, 3]}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    assert stop_ids_of(folder) == (7, 3, 2)
    loaded = load_model(folder)
    assert loaded.stop_ids == (7, 3, 2)
    assert loaded.generation_config == generation


def test_weights_are_placed_on_the_mesh(tmp_path):
    """Values are the same on a mesh of several devices, and really split."""
    folder = write_folder(tmp_path / "model", "llama3")
    plain = load_model(folder)
    count = min(2, jax.device_count())
    placed = load_model(folder, mesh=build_mesh(1, count, 1))
    for left, right in zip(
        jax.tree.leaves(nnx.state(plain.model)),
        jax.tree.leaves(nnx.state(placed.model)),
        strict=True,
    ):
        np.testing.assert_array_equal(left, right)
    weight = placed.model.embed.weight[...]
    assert weight.addressable_shards[0].data.shape == (40, 16 // count)
