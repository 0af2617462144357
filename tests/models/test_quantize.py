# SPDX-License-Identifier: Apache-2.0
"""Quantised bases: the codes of an oracle, the function and gradients of the decoded weights."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from alignax.errors import ModelError
from alignax.models.codes import SCHEMES, decode, encode
from alignax.models.config import DecoderConfig
from alignax.models.decoder import REMAT, random_model
from alignax.models.footprint import Job, base_bytes, footprint, kept_by_tile
from alignax.models.layers import DropoutKey, LoRAParam
from alignax.models.lora import LoraSpec, adapted, add_lora, merged, projections
from alignax.models.sharding import build_mesh
from alignax.models.weights import export_tensors, hf_config, load_model
from alignax.shapes import TILE
from tests.models.rows import shared_prefix_rows
from tests.models.tiny_families import VARIANTS, decoder_config, write_folder

CONFIG = DecoderConfig("llama", 64, 64, 80, 2, 4, 2, 16, tie_embeddings=True)
"""Inputs of 64 (whole blocks) and, of down_proj, of 80: its blocks run across outputs."""
ROWS = shared_prefix_rows([[(10, 6, 8), (20, 5, 9)]], TILE)
SPEC = LoraSpec(3, 6.0, 0.1, "all-linear")
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip
"""Appendix E of the QLoRA paper (Dettmers et al. 2023)."""


def write(folder, config=CONFIG, *, dtype=np.float32, edit=lambda tensors: None):
    """Write a random base; returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {n: v.astype(dtype) for n, v in export_tensors(random_model(config, seed=3)).items()}
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(hf_config(config)), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("base"))


def trained(model, dropout=0.0):
    """Give a decoder an adapter with values in it."""
    add_lora(model, LoraSpec(3, 6.0, dropout, "all-linear"), key=jax.random.key(1))
    for index, linear in enumerate(adapted(model).values()):
        shape = linear.lora_b[...].shape
        linear.lora_b[...] = 0.3 * jax.random.normal(jax.random.key(index), shape)
    return model


def nf4_oracle(weight):
    """Slow and plain: blocks of 64 of the flattened weights, absmax, nearest of 16 values."""
    flat = weight.astype(np.float64).ravel()
    flat = np.concatenate([flat, np.zeros(-flat.size % 64)])
    codes, scales = [], []
    for block in flat.reshape(-1, 64):
        scale = np.abs(block).max()
        scales.append(scale)
        codes += [min(range(16), key=lambda i: abs(NF4[i] - x / scale)) for x in block]
    return np.array(codes), np.array(scales, np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_nf4_codes_are_those_of_the_oracle(tmp_path, dtype):
    """Equal codes and scales for every projection of every layer, as the file holds it."""
    base = write(tmp_path, dtype=dtype)
    tensors = load_file(base / "model.safetensors")
    model = load_model(base, quantize="nf4").model
    blocks = {"mlp": ("gate_proj", "up_proj", "down_proj")}
    for name, linear in projections(model).items():
        block = "mlp" if name in blocks["mlp"] else "self_attn"
        kernel = linear.kernel.get_value()
        assert kernel.qvalue.dtype == jnp.uint4
        for layer in range(CONFIG.layer_count):
            codes, scales = nf4_oracle(tensors[f"model.layers.{layer}.{block}.{name}.weight"])
            got = np.asarray(kernel.qvalue[layer].astype(jnp.int32)).ravel()
            np.testing.assert_array_equal(got, codes)
            np.testing.assert_array_equal(np.asarray(kernel.scale[layer]).ravel(), scales)


@pytest.mark.parametrize(
    ("scheme", "levels"), [("nf4", 16), ("int4", 16), ("int8", 256), ("fp8", 256)]
)
def test_a_weight_is_rounded_to_the_nearest_value(scheme, levels):
    """Every decoded weight is the nearest of those that its block's scale allows."""
    weight_oi = np.random.default_rng(0).standard_normal((3, 128)).astype(np.float32)
    codes = encode(weight_oi, scheme)
    got = np.asarray(decode(codes, 128, 3)).reshape(-1, 64)
    values = {
        "nf4": np.array(NF4),
        "int4": np.arange(-8, 8.0),
        "int8": np.arange(-128, 128.0),
        "fp8": np.arange(256).astype(np.uint8).view(jnp.float8_e4m3fn).astype(np.float64),
    }[scheme]
    values = values[np.isfinite(values)]
    assert len(values) <= levels
    for row, kept, scale in zip(
        weight_oi.reshape(-1, 64), got, np.asarray(codes.scale).ravel(), strict=True
    ):
        allowed = values * scale
        best = np.abs(row[:, None] - allowed[None]).min(1)
        np.testing.assert_allclose(np.abs(row - kept), best, atol=1e-6 * scale * values.max())


def test_blocks_of_zeros_stay_zero():
    weight_oi = np.zeros((2, 128), np.float32)
    weight_oi[1, 5] = 3.0
    for scheme in SCHEMES:
        got = np.asarray(decode(encode(weight_oi, scheme), 128, 2))
        assert (got[0] == 0).all()
        assert got[1, 5] == pytest.approx(3.0, rel=0.07)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_hidden_states_are_those_of_the_decoded_weights(folder, dtype):
    model = trained(load_model(folder, quantize="nf4", dtype=dtype).model)
    plain = nnx.merge(*nnx.split(model))
    for linear in projections(plain).values():
        linear.keep_weights(linear.weights().astype(dtype))
    got, want = (jax.jit(lambda m=m: m.hidden(*ROWS))() for m in (model, plain))
    assert got.dtype == dtype
    np.testing.assert_allclose(
        got.astype(np.float32), want.astype(np.float32), atol=1e-5 if dtype == "float32" else 0.1
    )


@pytest.mark.parametrize("remat", ["none", "dots", "full"])
def test_gradients_are_those_of_the_decoded_weights(folder, remat):
    model = trained(load_model(folder, quantize="nf4").model, dropout=0.1)
    plain = nnx.merge(*nnx.split(model))
    for linear in projections(plain).values():
        linear.keep_weights(linear.weights())
    key = DropoutKey(jax.random.key(5))

    def gradient(model, remat):
        graphdef, adapter, rest = nnx.split(model, LoRAParam, ...)

        def total(adapter):
            whole = nnx.merge(graphdef, adapter, rest)
            return jnp.sin(whole.hidden(*ROWS, remat=remat, dropout_key=key)).sum()

        return jax.tree.leaves(jax.jit(jax.grad(total))(adapter))

    for got, want in zip(gradient(model, remat), gradient(plain, "none"), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
        assert jnp.abs(want).max() > 0


def test_the_backward_pass_keeps_no_decoded_weights():
    """What is kept for a token is the same as of a plain base, under every policy."""
    for remat in REMAT:
        plain, coded = (
            kept_by_tile(CONFIG, SPEC, "float32", remat, quantize) for quantize in ("none", "nf4")
        )
        # Tables of 16 values may be kept; the weights of one layer are 100 KiB.
        assert 0 <= coded - plain <= 1024, remat


def test_merging_decodes_all_projections_and_adds_the_delta(folder):
    model = trained(load_model(folder, quantize="nf4", dtype="bfloat16").model)
    whole = merged(model, jnp.float32)
    for name, linear in projections(model).items():
        delta = linear.lora_scale * np.einsum(
            "lir,lro->lio", np.asarray(linear.lora_a[...]), np.asarray(linear.lora_b[...])
        )
        got = projections(whole)[name]
        assert got.scheme is None
        np.testing.assert_allclose(got.kernel[...], linear.weights() + delta, atol=1e-6)
    assert projections(merged(model))["q_proj"].kernel[...].dtype == jnp.bfloat16


def test_bytes_are_counted(folder):
    """4 bits and a float32 for 64 weights: 0.5625 bytes a weight."""
    loaded = load_model(folder, quantize="nf4")
    weights = 2 * sum(i * o for i, o in CONFIG.projections.values())
    assert loaded.quantised.tensors == 14
    assert loaded.quantised.weights == weights
    assert loaded.quantised.bytes == weights * 0.5625
    assert "0.5625 bytes a weight" in str(loaded.quantised)
    assert "14 weight matrices" in str(loaded.quantised)
    rest = base_bytes(CONFIG, "float32", "none") - 4 * weights
    assert base_bytes(CONFIG, "float32", "nf4") == rest + weights * 0.5625
    assert base_bytes(CONFIG, "float32", "int8") == rest + weights * 1.0625


def test_a_plan_counts_codes():
    sizes = (1, 512, 256, 8, 1, False, 128)
    plain = Job(CONFIG, SPEC, "float32", *sizes)
    coded = Job(CONFIG, SPEC, "float32", *sizes, quantize="nf4")
    less = footprint(plain, "dots").weights - footprint(coded, "dots").weights
    assert less == 2 * sum(i * o for i, o in CONFIG.projections.values()) * (4 - 0.5625)
    assert footprint(plain, "dots").trainable == footprint(coded, "dots").trainable


def test_each_quantisation_is_an_identity(folder):
    hashes = {load_model(folder, quantize=q).weights_hash for q in ("none", *SCHEMES)}
    assert len(hashes) == 1 + len(SCHEMES)
    again = load_model(folder, quantize="nf4", dtype="bfloat16").weights_hash
    assert again in hashes


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_family(tmp_path, variant):
    """Dense families are quantised, with an error that their block's range allows."""
    base = write_folder(tmp_path, variant)
    config = decoder_config(variant)
    if config.experts is not None:
        with pytest.raises(ModelError, match="mixture of .* experts, whose weights cannot be"):
            load_model(base, quantize="nf4")
        return
    plain, coded = (load_model(base, quantize=q) for q in ("none", "int8"))
    assert coded.quantised.tensors == 7 * config.layer_count
    for name, linear in projections(coded.model).items():
        want = projections(plain.model)[name].weights()
        np.testing.assert_allclose(linear.weights(), want, atol=jnp.abs(want).max() / 250)


def test_weights_that_are_not_finite_are_named(tmp_path):
    name = "model.layers.1.mlp.up_proj.weight"

    def edit(tensors):
        tensors[name][3, 5] = np.nan

    with pytest.raises(ModelError, match=f"{name} has weights that are not finite"):
        load_model(write(tmp_path, edit=edit), quantize="int4")


def test_a_mesh_splits_codes(folder):
    plain = load_model(folder, quantize="nf4").model
    placed = load_model(folder, quantize="nf4", mesh=build_mesh(1, 2, 2))
    kernel = placed.model.layers.mlp.gate_proj.kernel.get_value()
    assert kernel.qvalue.sharding.spec == jax.sharding.PartitionSpec(None, "tensor", "fsdp")
    assert kernel.scale.sharding.spec == jax.sharding.PartitionSpec(None, "tensor", None)
    got, want = (jax.jit(lambda m=m: m.hidden(*ROWS))() for m in (placed.model, plain))
    np.testing.assert_allclose(got, want, atol=1e-5)
