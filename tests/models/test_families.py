# SPDX-License-Identifier: Apache-2.0
"""Every family: the values of transformers, and one answer however tokens are laid out.

The models are those of tests/parity/make_families.py. A family that is added there is tested here.
"""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from alignax.errors import ModelError
from alignax.models.cache import init_cache
from alignax.models.decoder import Decoder, random_model
from alignax.models.families import FAMILIES
from alignax.models.lora import LoraSpec, adapted, add_lora, merged
from alignax.models.weights import export_tensors, hf_config, load_model
from alignax.shapes import TILE
from tests.models.rows import shared_prefix_rows
from tests.models.tiny_families import (
    CONFIGS,
    DTYPES,
    VARIANTS,
    arrays_of,
    decoder_config,
    family_of,
    write_folder,
)

BY_LENGTH = tuple(
    v
    for v in VARIANTS
    if (scaling := decoder_config(v).rope_scaling) is not None and scaling.kind == "dynamic"
)
every_variant = pytest.mark.parametrize("variant", VARIANTS)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Variant → its decoder, loaded once."""
    loaded = {}

    def get(variant):
        if variant not in loaded:
            folder = tmp_path_factory.mktemp(variant)
            loaded[variant] = load_model(write_folder(folder, variant)).model
        return loaded[variant]

    return get


@functools.partial(jax.jit, static_argnums=(0, 2))
def hidden_of(graphdef, state, attention, *rows):
    """One program for all models of a shape; weights are no constants of it."""
    return nnx.merge(graphdef, state).hidden(*rows, attention=attention)


@functools.partial(jax.jit, static_argnums=0)
def decode_of(graphdef, state, *arguments):
    """The same for cached decoding."""
    return nnx.merge(graphdef, state).decode(*arguments)


def plain_hidden(model, ids_bt):
    """Final hidden states of plain sequences, by dense attention."""
    ids_bt = jnp.asarray(ids_bt)
    positions_bt = jnp.broadcast_to(jnp.arange(ids_bt.shape[1]), ids_bt.shape)
    ones_bt = jnp.ones_like(ids_bt)
    tiles_bm2 = jnp.full((len(ids_bt), 1, 2), -1)
    rows = (ids_bt, positions_bt, ones_bt, 0 * ones_bt, tiles_bm2)
    return hidden_of(*nnx.split(model), "dense", *rows)


def test_every_family_has_a_variant():
    assert {family_of(variant).name for variant in VARIANTS} == set(FAMILIES)


@every_variant
def test_logits_are_those_of_transformers(models, variant):
    ids_bt, want_btv, _ = arrays_of(variant)
    model = models(variant)
    got_btv = model.logits(plain_hidden(model, ids_bt))
    np.testing.assert_allclose(got_btv, want_btv, rtol=0, atol=1e-4)


@every_variant
def test_exported_tensors_are_those_of_the_folder(models, variant):
    """Names, shapes and values, bit for bit; and an untrained model has the same names."""
    model, weights = models(variant), arrays_of(variant)[2]
    exported = export_tensors(model)
    assert exported.keys() == weights.keys()
    for name, values in weights.items():
        np.testing.assert_array_equal(exported[name], values, err_msg=name)
        assert exported[name].flags.c_contiguous
    fresh = export_tensors(random_model(model.config, seed=0))
    assert {n: v.shape for n, v in fresh.items()} == {n: v.shape for n, v in weights.items()}


@every_variant
def test_random_norms_begin_at_a_factor_of_one(variant):
    config = decoder_config(variant)
    for path, leaf in nnx.iter_graph(random_model(config, seed=0)):
        if isinstance(leaf, nnx.Param) and path[-1] == "scale":
            np.testing.assert_array_equal(leaf[...] + config.norm_offset, 1.0)


@every_variant
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_shards_of_half_width_load(tmp_path, variant, dtype):
    """Stored values are exact in float32; how they are spread over shards does not matter."""
    folder = write_folder(tmp_path / "model", variant, shards=3, dtype=DTYPES[dtype])
    for name, values in export_tensors(load_model(folder).model).items():
        want = arrays_of(variant)[2][name].astype(DTYPES[dtype]).astype(np.float32)
        np.testing.assert_array_equal(values, want, err_msg=name)


@every_variant
def test_missing_and_unexpected_tensors_are_listed(tmp_path, variant):
    first = sorted(arrays_of(variant)[2])[0]

    def edit(weights):
        kept = {name: values for name, values in weights.items() if name != first}
        buffer = np.ones(2, np.float32)
        name = "model.layers.0.self_attn.rotary_emb.inv_freq"
        return kept | {"model.layers.0.extra.weight": buffer, name: buffer}

    with pytest.raises(ModelError) as caught:
        load_model(write_folder(tmp_path / "model", variant, edit=edit))
    assert sorted(p.split(" [")[0] for p in caught.value.problems) == [
        f"missing: {first}",
        "unexpected: model.layers.0.extra.weight",
    ]


@every_variant
def test_written_configuration_reads_back(variant):
    """``hf_config`` and ``from_hf`` are inverses."""
    config = decoder_config(variant)
    problems = []
    assert family_of(variant).from_hf(json.loads(json.dumps(hf_config(config))), problems) == config
    assert not problems


@every_variant
def test_packed_row_equals_ordinary_rows(models, variant):
    """[p c r] packed with others = [p c] and [p r] alone, padded."""
    model = models(variant)
    # With dynamic scaling a sequence beyond the original length has frequencies of its own, and
    # the two answers of a pair share those of the longer one.
    examples = [(9, 3, 8), (5, 1, 4)] if variant in BY_LENGTH else [(30, 20, 25), (17, 8, 21)]
    packed = shared_prefix_rows([examples], TILE, vocab_size=40)
    hidden_td = hidden_of(*nnx.split(model), "tiled", *packed)[0]
    plain = shared_prefix_rows([[(e[0] + n,)] for e in examples for n in e[1:]], TILE)
    ids, sources = np.zeros(plain.ids.shape, np.int32), []
    for row, (slot, branch) in enumerate(np.ndindex(len(examples), 2)):
        mine = np.asarray(packed.segments[0]) == slot + 1
        branches = np.asarray(packed.branches[0])
        (source,) = np.nonzero(mine & ((branches == 0) | (branches == branch + 1)))
        ids[row, : len(source)] = packed.ids[0, source]
        sources.append(source)
    want = hidden_of(*nnx.split(model), "dense", jnp.asarray(ids), *plain[1:])
    for row, source in enumerate(sources):
        np.testing.assert_allclose(hidden_td[source], want[row, : len(source)], rtol=0, atol=5e-5)


@every_variant
def test_cached_decoding_equals_the_full_forward(models, variant):
    """A left-padded prompt at once, then one token a call, far past the window."""
    model = models(variant)
    ids_bt = jnp.asarray(arrays_of(variant)[0])[:, : 20 if variant in BY_LENGTH else None]
    total = ids_bt.shape[1]
    prompt = total - 3
    want_btd = plain_hidden(model, ids_bt)
    cache = init_cache(model.config, len(ids_bt), total + 2, jnp.float32)
    pad = ((0, 0), (2, 0))
    positions = jnp.broadcast_to(jnp.arange(prompt), (len(ids_bt), prompt))
    decode = functools.partial(decode_of, *nnx.split(model))
    got, cache = decode(
        jnp.pad(ids_bt[:, :prompt], pad), jnp.pad(positions, pad, constant_values=-1), cache
    )
    np.testing.assert_allclose(got[:, 2:], want_btd[:, :prompt], rtol=0, atol=5e-5)
    for place in range(prompt, total):
        one = slice(place, place + 1)
        got, cache = decode(ids_bt[:, one], jnp.full((len(ids_bt), 1), place), cache)
        np.testing.assert_allclose(got, want_btd[:, one], rtol=0, atol=5e-5)


@every_variant
def test_adapter_on_every_projection_folds_in(models, variant):
    """all-linear takes what there is; folded in, it computes the same."""
    model = nnx.merge(*nnx.split(models(variant)))
    add_lora(model, LoraSpec(2, 3.0, 0.0, "all-linear"), key=jax.random.key(0))
    assert {"q_proj", "k_proj", "v_proj", "o_proj"} <= adapted(model).keys()
    for linear in adapted(model).values():
        linear.lora_b[...] = jnp.full(linear.lora_b[...].shape, 0.03)
    ids_bt = arrays_of(variant)[0]
    want_btd = plain_hidden(model, ids_bt)
    assert float(jnp.abs(want_btd - plain_hidden(models(variant), ids_bt)).max()) > 1e-2
    np.testing.assert_allclose(plain_hidden(merged(model), ids_bt), want_btd, rtol=0, atol=2e-4)


@every_variant
def test_program_does_not_grow_with_depth(variant):
    """Layers that differ are still one scan."""
    config = decoder_config(variant)
    deeper = dataclasses.replace(
        config,
        layer_count=2 * config.layer_count,
        windows=2 * config.windows,
        rotary_layers=2 * config.rotary_layers,
    )
    rows = shared_prefix_rows([[(5, 2, 3)]], TILE)
    sizes = [
        jax.make_jaxpr(Decoder(each).hidden)(*rows).pretty_print(name_stack=False).count("\n")
        for each in (config, deeper)
    ]
    assert sizes[0] == sizes[1]


@every_variant
def test_features_of_other_families_are_refused(variant):
    """What changes the computation elsewhere is never skipped here."""
    strange = {
        "clip_qkv": 8.0, "use_bidirectional_attention": True, "attention_chunk_size": 64,
        "quantization_config": {"bits": 4},
    }  # fmt: skip
    for key, value in strange.items():
        problems = []
        assert family_of(variant).from_hf(CONFIGS[variant] | {key: value}, problems) is None
        assert any(key in problem for problem in problems), problems
