# SPDX-License-Identifier: Apache-2.0
"""Families on weights that no file holds, exports that transformers loads, stored values."""

import json

import numpy as np
import pytest

from alignax.export.huggingface import config_json, write_shards
from alignax.models.weights import export_tensors, load_model

torch = pytest.importorskip("torch")

from transformers import AutoModelForCausalLM  # noqa: E402

from tests.models.test_families import plain_hidden  # noqa: E402
from tests.parity import make_families  # noqa: E402


def our_logits(model, ids_bt):
    """Logits of plain sequences."""
    return np.asarray(model.logits(plain_hidden(model, ids_bt)))


@pytest.mark.parametrize("variant", make_families.VARIANTS)
def test_fresh_weights_give_the_same_logits_and_go_back(tmp_path, variant):
    """What transformers saves computes the same here, and what is written here the same there."""
    model = make_families.build(variant, 1000)
    model.save_pretrained(tmp_path / "theirs", max_shard_size="4KB")
    ids_bt = np.random.default_rng(7).integers(0, 40, (2, 60))
    want_btv = make_families.logits_of(model, ids_bt)
    loaded = load_model(tmp_path / "theirs")
    np.testing.assert_allclose(our_logits(loaded.model, ids_bt), want_btv, rtol=0, atol=1e-4)
    ours = tmp_path / "ours"
    ours.mkdir()
    write_shards(ours, export_tensors(loaded.model), 10**6)
    config = config_json(loaded.hf_config, loaded.stop_ids, "float32")
    (ours / "config.json").write_text(json.dumps(config), encoding="utf-8")
    again = AutoModelForCausalLM.from_pretrained(
        ours, dtype=torch.float32, attn_implementation="eager"
    )
    got_btv = make_families.logits_of(again.eval(), ids_bt)
    np.testing.assert_allclose(got_btv, want_btv, rtol=0, atol=1e-6)


@pytest.mark.parametrize("variant", make_families.VARIANTS)
def test_configuration_made_here_means_the_same_there(tmp_path, variant):
    """A configuration written from the decoder's own is read by transformers as the folder's."""
    from alignax.models.weights import hf_config

    model = make_families.build(variant, 1001)
    model.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    # Token ids are no part of a decoder; those that classes assume lie beyond this vocabulary.
    config = hf_config(loaded.config) | {"pad_token_id": 0}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    again = AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, attn_implementation="eager"
    )
    ids_bt = np.random.default_rng(8).integers(0, 40, (1, 60))
    want_btv = make_families.logits_of(model, ids_bt)
    got_btv = make_families.logits_of(again.eval(), ids_bt)
    np.testing.assert_allclose(got_btv, want_btv, rtol=0, atol=1e-5)


def test_stored_values_are_those_of_the_script(tmp_path, monkeypatch):
    """The files beside the script are what it writes: ids and weights exactly, logits to 1e-5."""
    stored = make_families.FOLDER
    monkeypatch.setattr(make_families, "FOLDER", tmp_path)
    make_families.main()
    with np.load(stored / "families.npz") as old, np.load(tmp_path / "families.npz") as new:
        assert set(old) == set(new)
        for name in old:
            tolerance = 1e-5 if name.endswith("logits") else 0
            np.testing.assert_allclose(new[name], old[name], rtol=0, atol=tolerance, err_msg=name)
    old, new = (
        json.loads((folder / "families.json").read_text(encoding="utf-8"))
        for folder in (stored, tmp_path)
    )
    for config in (*old.values(), *new.values()):
        config.pop("transformers_version", None)
    assert old == new
