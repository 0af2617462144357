# SPDX-License-Identifier: Apache-2.0
"""Merged folders hold exactly the trained behaviour, with every stop id."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from alignax.errors import ModelError, RunError
from alignax.export.huggingface import folded, write_merged
from alignax.export.verify import bare, verify_merged
from alignax.models.config import DecoderConfig
from alignax.models.decoder import Decoder
from alignax.models.lora import LoraSpec, adapter_to_peft, add_lora, merged, peft_to_adapter
from alignax.models.tokenizer import load_tokenizer
from alignax.models.weights import export_tensors, load_model
from tests.export.conftest import END, EOS, config_for, with_adapter, write_base


def write(target, model, base, tokenizer, facts, **settings):
    """Write in float32 unless told otherwise."""
    settings = {"stop_ids": [END, EOS], "dtype": "float32"} | settings
    write_merged(target, model, base, tokenizer, facts, **settings)
    return target


def read(file):
    return json.loads(file.read_text(encoding="utf-8"))


def test_layout_and_stop_ids(tmp_path, trained, base, tokenizer, facts):
    """C23 (c): the base named one EOS only; the template's own stop id must not get lost."""
    assert base.stop_ids == (EOS,)
    folder = write(tmp_path / "m", trained, base, tokenizer, facts, dtype="bfloat16")
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md", "alignax.json", "chat_template.jinja", "config.json",
        "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    for name in ("config.json", "generation_config.json"):
        assert read(folder / name)["eos_token_id"] == [END, EOS]
    assert read(folder / "config.json")["dtype"] == "bfloat16"
    assert read(folder / "config.json")["model_type"] == "llama"
    assert load_model(folder).stop_ids == (END, EOS)
    again = load_tokenizer(folder)
    assert again.eos_token_id == tokenizer.eos_token_id == EOS
    assert again.chat_template == tokenizer.chat_template
    assert {t.dtype.name for t in load_file(folder / "model.safetensors").values()} == {"bfloat16"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_verify_passes(tmp_path, trained, base, tokenizer, facts, prompts, dtype):
    """The files hold the folded weights exactly, rounded once; float32 also acts the same."""
    folder = write(tmp_path / "m", trained, base, tokenizer, facts, dtype=dtype)
    checks = verify_merged(folder, trained, prompts, stop_ids=[END, EOS])
    assert checks.prompts == 4
    assert checks.max_logit_difference < {"float32": 1e-3}.get(dtype, 1.0)
    if dtype == "float32":
        assert (checks.greedy_equal, checks.greedy_tokens_equal) == (4, 1.0)
    manifest = read(folder / "alignax.json")
    assert manifest["checks"]["prompts"] == 4
    assert manifest["weights_hash"] == load_model(folder).weights_hash


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_verify_passes_on_a_bfloat16_base(tmp_path, base, tokenizer, facts, prompts, dtype):
    """The base computes in bfloat16; what is exported is rounded once, whatever its dtype."""
    loaded = load_model(base.path, dtype="bfloat16")
    model = with_adapter(loaded.model)
    folder = write(tmp_path / "m", model, loaded, tokenizer, facts, dtype=dtype)
    checks = verify_merged(folder, model, prompts, stop_ids=[END, EOS])
    assert checks.max_logit_difference < 1.0


def test_full_fine_tuning_and_untied_head(tmp_path, tokenizer, facts, prompts):
    """No adapter; the head is a tensor of its own."""
    base = load_model(write_base(tmp_path / "base", config_for(tied=False), tokenizer))
    base.model.lm_head.weight[...] += 0.3 * base.model.embed.weight[...]
    folder = write(tmp_path / "m", base.model, base, tokenizer, facts)
    assert "lm_head.weight" in load_file(folder / "model.safetensors")
    checks = verify_merged(folder, base.model, prompts, stop_ids=[END, EOS])
    assert checks.max_logit_difference == 0
    assert checks.greedy_equal == 4


def test_shards(tmp_path, trained, base, tokenizer, facts):
    """Several files with an index hold the same tensors as one."""
    one = write(tmp_path / "one", trained, base, tokenizer, facts)
    many = write(tmp_path / "many", trained, base, tokenizer, facts, shard_bytes=30_000)
    want = load_file(one / "model.safetensors")
    index = read(many / "model.safetensors.index.json")
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in want.values())
    assert index["weight_map"].keys() == want.keys()
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 2
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    for name, file in index["weight_map"].items():
        np.testing.assert_array_equal(load_file(many / file)[name], want[name])
    assert load_model(many).weights_hash == load_model(one).weights_hash


def test_folding_orientation():
    """C23 (a): A = [[1,0,0],[0,2,0]], B = identity, base zero: the transposed reading scrambles."""
    config = DecoderConfig(
        family="llama", vocab_size=4, d_model=3, mlp_dim=3, layer_count=1, head_count=1,
        kv_head_count=1, head_dim=2,
    )  # fmt: skip
    model = Decoder(config)
    add_lora(model, LoraSpec(2, 2.0, 0.0, ("q_proj",)), key=jnp.zeros(2, jnp.uint32))
    stem = "base_model.model.model.layers.0.self_attn.q_proj"
    a, b = np.asarray([[1, 0, 0], [0, 2, 0]], np.float32), np.eye(2, dtype=np.float32)
    peft_to_adapter(model, {f"{stem}.lora_A.weight": a, f"{stem}.lora_B.weight": b})
    weight = export_tensors(folded(model, "float32"))["model.layers.0.self_attn.q_proj.weight"]
    np.testing.assert_array_equal(weight, [[1, 0, 0], [0, 2, 0]])
    np.testing.assert_array_equal(weight @ np.ones(3), [1, 2])


def test_rounding_happens_once(base):
    """A float32 export of a bfloat16 base keeps what bfloat16 weights would lose."""
    graphdef, weights, rest = nnx.split(base.model, nnx.Param, ...)
    narrow = nnx.merge(graphdef, nnx.map_state(lambda _, x: x, weights), rest)
    narrow.layers.attention.q_proj.kernel[...] = jnp.full_like(
        narrow.layers.attention.q_proj.kernel[...], 0.5
    )
    model = with_adapter(narrow, LoraSpec(1, 1.0, 0.0, ("q_proj",)))
    tensors = {name: np.full_like(t, 2.0**-6) for name, t in adapter_to_peft(model).items()}
    peft_to_adapter(model, tensors)
    name = "model.layers.0.self_attn.q_proj.weight"
    assert (export_tensors(folded(model, "float32"))[name] == 0.5 + 2.0**-12).all()
    assert (export_tensors(folded(model, "bfloat16"))[name].astype(np.float32) == 0.5).all()


def scramble(tensors):
    name = "model.layers.0.self_attn.o_proj.weight"
    return tensors | {name: np.ascontiguousarray(tensors[name].T)}


def forget_delta(tensors):
    return tensors | {n: t * np.float32(1.001) for n, t in tensors.items() if "layers.1" in n}


@pytest.mark.parametrize("change", [scramble, forget_delta])
def test_verify_refuses_other_weights(tmp_path, trained, base, tokenizer, facts, prompts, change):
    folder = write(tmp_path / "m", trained, base, tokenizer, facts)
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file)
    with pytest.raises(RunError, match="tensors differ from the trained ones") as caught:
        verify_merged(folder, trained, prompts, stop_ids=[END, EOS])
    assert "model.safetensors is not what was written" in str(caught.value)
    assert not folder.exists()
    assert (tmp_path / "m.failed").exists()


def test_verify_refuses_the_base(tmp_path, trained, base, tokenizer, facts, prompts):
    """A folder that was written without the adapter is complete and wrong."""
    folder = write(tmp_path / "m", bare(trained), base, tokenizer, facts)
    with pytest.raises(RunError, match="4 of 20 tensors differ from the trained ones"):
        verify_merged(folder, trained, prompts, stop_ids=[END, EOS])


def test_verify_refuses_a_wrong_fold(
    tmp_path, trained, base, tokenizer, facts, prompts, monkeypatch
):
    """Folding itself is compared with the adapter, not only the files with the fold."""

    def halved(model, dtype=None):
        copy = merged(model)
        copy.layers.mlp.down_proj.kernel[...] *= 0.99
        return copy

    monkeypatch.setattr("alignax.export.huggingface.merged", halved)
    monkeypatch.setattr("alignax.export.verify.merged", halved)
    folder = write(tmp_path / "m", trained, base, tokenizer, facts)
    with pytest.raises(RunError, match="the adapter, folded in, changes logits by"):
        verify_merged(folder, trained, prompts, stop_ids=[END, EOS])


def test_verify_refuses_lost_stop_ids(tmp_path, trained, base, tokenizer, facts, prompts):
    """C23 (c): a server that knows no stop id never stops."""
    folder = write(tmp_path / "m", trained, base, tokenizer, facts)
    for name in ("config.json", "generation_config.json"):
        (folder / name).write_text(json.dumps(read(folder / name) | {"eos_token_id": 1}))
    with pytest.raises(RunError) as caught:
        verify_merged(folder, trained, prompts, stop_ids=[END, EOS])
    assert f"stop ids [{END}, {EOS}] are missing, it has [1]" in caught.value.problems


def test_weights_out_of_range_are_refused(tmp_path, base, tokenizer, facts):
    """1e5 does not fit into float16."""
    large = nnx.merge(*nnx.split(base.model))
    large.final_norm.scale = nnx.Param(large.final_norm.scale[...] * 1e5)
    with pytest.raises(ModelError, match=r"model\.norm\.weight has values that are not finite"):
        write(tmp_path / "m", large, base, tokenizer, facts, dtype="float16")
    assert not (tmp_path / "m").exists()
