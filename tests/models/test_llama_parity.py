# SPDX-License-Identifier: Apache-2.0
"""Tiny random Llamas: logits equal those of transformers (tests/parity/make_llama.py)."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from gguf import RopeScalingType

from alignax.models.config import RopeScaling
from alignax.models.families import FAMILIES
from alignax.models.families.llama import llama3_divisors
from alignax.models.gguf import read_gguf
from alignax.models.rotary import scaled_frequencies
from alignax.models.weights import export_tensors, hf_config, load_model
from tests.models.tiny_llama import VARIANTS, arrays_of, config_of, write_folder, write_gguf


def logits_of(model, ids_bt):
    """Logits of plain sequences."""
    ids_bt = jnp.asarray(ids_bt)
    positions_bt = jnp.broadcast_to(jnp.arange(ids_bt.shape[1]), ids_bt.shape)
    ones_bt = jnp.ones_like(ids_bt)
    tiles_bm2 = jnp.full((len(ids_bt), 1, 2), -1)
    hidden_btd = model.hidden(
        ids_bt, positions_bt, ones_bt, 0 * ones_bt, tiles_bm2, attention="dense"
    )
    return np.asarray(hidden_btd @ model.head_vd.T)


@pytest.mark.parametrize("variant", VARIANTS)
def test_folder_gives_the_logits_of_transformers(tmp_path, variant):
    """Grouped heads, biases, norms that are not 1, rotary base and scaling, tied or not."""
    ids_bt, want_btv, _ = arrays_of(variant)
    loaded = load_model(write_folder(tmp_path / "model", variant))
    np.testing.assert_allclose(logits_of(loaded.model, ids_bt), want_btv, rtol=0, atol=1e-4)
    assert loaded.stop_ids == (2, 3)
    assert loaded.source == "hf"


@pytest.mark.parametrize(
    ("variant", "metadata"),
    [
        ("tied", ()),
        (
            "linear",
            [
                ("add_rope_scaling_type", RopeScalingType.LINEAR),
                ("add_rope_scaling_factor", 3.0),
            ],
        ),
    ],
)
def test_gguf_gives_the_logits_of_transformers(tmp_path, variant, metadata):
    """The interleaved rows of query and key (weights and biases) are put back."""
    ids_bt, want_btv, _ = arrays_of(variant)
    loaded = load_model(write_gguf(tmp_path / "model.gguf", variant, metadata=metadata))
    np.testing.assert_allclose(logits_of(loaded.model, ids_bt), want_btv, rtol=0, atol=1e-4)
    assert loaded.stop_ids == (2, 3)
    assert loaded.source == "gguf"


@pytest.mark.parametrize("variant", VARIANTS)
def test_exported_tensors_are_those_of_the_folder(tmp_path, variant):
    """Names, shapes and values come back bit for bit; a tied head is not written."""
    loaded = load_model(write_folder(tmp_path / "model", variant))
    exported, weights = export_tensors(loaded.model), arrays_of(variant)[2]
    assert exported.keys() == weights.keys()
    for name, values in weights.items():
        np.testing.assert_array_equal(exported[name], values)
        assert exported[name].flags.c_contiguous


@pytest.mark.parametrize("variant", VARIANTS)
def test_old_and_new_spelling_of_rope_agree(variant):
    """``rope_theta`` with ``rope_scaling`` means the same as ``rope_parameters``."""
    new, from_hf = config_of(variant), FAMILIES["llama"].from_hf
    rope = new["rope_parameters"]
    old = {key: value for key, value in new.items() if key != "rope_parameters"}
    old["rope_theta"] = rope["rope_theta"]
    scaling = {key: value for key, value in rope.items() if key not in ("rope_theta", "rope_type")}
    old["rope_scaling"] = scaling | {"type": rope["rope_type"]} if scaling else None
    assert from_hf(old, []) == from_hf(new, [])


@pytest.mark.parametrize("variant", VARIANTS)
def test_written_configuration_reads_back(variant):
    """``hf_config`` and ``from_hf`` are inverses."""
    config = FAMILIES["llama"].from_hf(config_of(variant), [])
    assert FAMILIES["llama"].from_hf(hf_config(config), []) == config


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"hidden_size": None}, "hidden_size must be"),
        ({"num_key_value_heads": 3}, "not a multiple"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"quantization_config": {"bits": 4}}, "quantised folders"),
        ({"rope_parameters": None, "rope_scaling": {"rope_type": "su", "factor": 2}}, "'su'"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear"}}, "needs factor"),
        ({"rope_parameters": 3}, "must be an object"),
        ({"rope_parameters": {"rope_theta": "big"}}, "rope_theta must be a positive number"),
        ({"rms_norm_eps": -1}, "rms_norm_eps must be a positive number"),
    ],
)
def test_configuration_that_is_not_supported_is_refused(changes, reason):
    """Every field that changes the computation is either understood or refused."""
    problems = []
    changed = {k: v for k, v in (config_of("tied") | changes).items() if v is not None}
    assert FAMILIES["llama"].from_hf(changed, problems) is None
    assert any(reason in problem for problem in problems), problems


def test_bfloat16_weights_load_as_either_dtype(tmp_path):
    """Stored bfloat16 values are exact in float32, and kept in bfloat16."""
    folder = write_folder(tmp_path / "model", dtype=ml_dtypes.bfloat16)
    wide, narrow = load_model(folder), load_model(folder, dtype="bfloat16")
    assert narrow.model.dtype == jnp.bfloat16
    assert wide.weights_hash == narrow.weights_hash
    for name, values in export_tensors(narrow.model).items():
        np.testing.assert_array_equal(export_tensors(wide.model)[name], values.astype(np.float32))


def test_llama3_scaling_is_recovered_from_the_factors_of_a_gguf_file(tmp_path):
    """The factors of Llama 3's released models give its parameters back."""
    scaling = RopeScaling("llama3", 32.0)
    factors = llama3_divisors(scaling, 300.0, 8).astype(np.float32)
    factors[-1] = 32.0
    path = write_gguf(tmp_path / "odd.gguf", tensors={"rope_freqs.weight": factors})
    problems = []
    assert FAMILIES["llama"].from_gguf(read_gguf(path), problems) is None
    assert "rope_freqs.weight holds factors" in problems[0]

    metadata = [("add_rope_freq_base", 500_000.0)]
    factors = llama3_divisors(scaling, 500_000.0, 8).astype(np.float32)
    path = write_gguf(
        tmp_path / "right.gguf", tensors={"rope_freqs.weight": factors}, metadata=metadata
    )
    assert FAMILIES["llama"].from_gguf(read_gguf(path), []).rope_scaling == scaling


def test_divisors_of_llama3_are_those_of_the_decoder():
    """The frequencies that the decoder uses are the plain ones over these divisors."""
    scaling = RopeScaling("llama3", 8.0, 1.0, 4.0, 256)
    plain = 500.0 ** (-np.arange(0, 8, 2) / 8)
    divisors = llama3_divisors(scaling, 500.0, 8)
    np.testing.assert_allclose(
        scaled_frequencies(jnp.asarray(plain, jnp.float32), scaling, 500.0),
        plain / divisors,
        rtol=1e-5,
    )
    assert divisors[0] == 1
    assert 1 < divisors[2] < 8
    np.testing.assert_allclose(divisors[3], 8)
