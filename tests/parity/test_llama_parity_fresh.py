# SPDX-License-Identifier: Apache-2.0
"""Logits equal those of transformers on weights that no file holds; the stored ones are current."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from alignax.models.weights import export_tensors, load_model

torch = pytest.importorskip("torch")

from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

from tests.parity import make_llama  # noqa: E402


def our_logits(model, ids_bt):
    """Logits of plain sequences."""
    ids_bt = jnp.asarray(ids_bt)
    positions_bt = jnp.broadcast_to(jnp.arange(ids_bt.shape[1]), ids_bt.shape)
    ones_bt = jnp.ones_like(ids_bt)
    tiles_bm2 = jnp.full((len(ids_bt), 1, 2), -1)
    hidden_btd = model.hidden(
        ids_bt, positions_bt, ones_bt, 0 * ones_bt, tiles_bm2, attention="dense"
    )
    return np.asarray(hidden_btd @ model.head_vd.T)


@pytest.mark.parametrize("seed", [11, 12])
@pytest.mark.parametrize("variant", make_llama.VARIANTS)
def test_fresh_weights_give_the_same_logits(tmp_path, variant, seed):
    """What transformers saves loads here, tensor by tensor, and computes the same."""
    model = LlamaForCausalLM(LlamaConfig(**make_llama.SIZES, **make_llama.VARIANTS[variant]))
    model = model.float().eval()
    make_llama.randomise(model, seed)
    model.save_pretrained(tmp_path)
    ids_bt = np.random.default_rng(seed).integers(0, make_llama.SIZES["vocab_size"], (3, 70))
    with torch.no_grad():
        want_btv = model(torch.from_numpy(ids_bt)).logits.numpy()
    loaded = load_model(tmp_path)
    for name, tensor in export_tensors(loaded.model).items():
        np.testing.assert_array_equal(tensor, model.state_dict()[name].numpy())
    np.testing.assert_allclose(our_logits(loaded.model, ids_bt), want_btv, rtol=0, atol=1e-4)


def test_stored_values_are_those_of_the_script(tmp_path, monkeypatch):
    """The files beside the script are what it writes: ids and weights exactly, logits to 1e-5."""
    stored = make_llama.FOLDER
    monkeypatch.setattr(make_llama, "FOLDER", tmp_path)
    make_llama.main()
    with np.load(stored / "llama.npz") as old, np.load(tmp_path / "llama.npz") as new:
        assert set(old) == set(new)
        for name in old:
            tolerance = 1e-5 if name.endswith("logits") else 0
            np.testing.assert_allclose(new[name], old[name], rtol=0, atol=tolerance, err_msg=name)
    old, new = (
        json.loads((folder / "llama.json").read_text(encoding="utf-8"))
        for folder in (stored, tmp_path)
    )
    for config in (*old.values(), *new.values()):
        config.pop("transformers_version", None)
    assert old == new
