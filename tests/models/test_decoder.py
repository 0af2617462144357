# SPDX-License-Identifier: Apache-2.0
"""A decoder gives one answer however its tokens are laid out, cached, recomputed or stored."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from alignax.models.attention import AttentionSpec
from alignax.models.cache import init_cache
from alignax.models.config import DecoderConfig, RopeScaling
from alignax.models.decoder import REMAT, random_model
from alignax.models.layers import DropoutKey, LoRAParam
from alignax.models.lora import LoraSpec, adapted, add_lora
from alignax.models.rotary import rotary_angles, rotate
from alignax.shapes import TILE
from tests.models.rows import shared_prefix_rows

CONFIG = DecoderConfig("llama", 64, 32, 48, 2, 4, 2, 8, tie_embeddings=True)
# A local layer, then a global one, with capped and differently scaled scores.
LOCAL = dataclasses.replace(CONFIG, windows=(6, None), attention=AttentionSpec(0.6, 2.0))
# The second example lies across an edge of tiles.
EXAMPLES = [(40, 20, 30), (60, 33, 21), (5, 1, 4)]


@functools.cache
def adapted_model(dtype=jnp.float32, config=CONFIG):
    """Weights large enough to matter, and an adapter that changes the output."""
    model = random_model(config, seed=0, dtype=dtype)
    for path, leaf in nnx.iter_graph(model):
        if isinstance(leaf, nnx.Param) and path[-1] == "kernel":
            leaf[...] = 8 * leaf[...]
    add_lora(model, LoraSpec(2, 4.0, 0.0, ("q_proj", "down_proj")), key=jax.random.key(1))
    for linear in adapted(model).values():
        linear.lora_b[...] = jnp.full(linear.lora_b[...].shape, 0.05)
    return model


@pytest.mark.parametrize(
    ("attention", "config"), [("tiled", CONFIG), ("dense", CONFIG), ("tiled", LOCAL)]
)
def test_packed_row_equals_ordinary_rows(attention, config):
    """[p c r] packed with others = [p c] and [p r] alone, padded."""
    model = adapted_model(config=config)
    packed = shared_prefix_rows([EXAMPLES], 2 * TILE)
    hidden_td = jax.jit(lambda *x: model.hidden(*x, attention=attention))(*packed)[0]
    plain = shared_prefix_rows([[(e[0] + n,)] for e in EXAMPLES for n in e[1:]], TILE)
    ids, sources = np.zeros(plain.ids.shape, np.int32), []
    for row, (slot, branch) in enumerate(np.ndindex(len(EXAMPLES), 2)):
        mine = np.asarray(packed.segments[0]) == slot + 1
        branches = np.asarray(packed.branches[0])
        (source,) = np.nonzero(mine & ((branches == 0) | (branches == branch + 1)))
        ids[row, : len(source)] = packed.ids[0, source]
        sources.append(source)
    want = jax.jit(lambda *x: model.hidden(*x, attention="dense"))(jnp.asarray(ids), *plain[1:])
    for row, source in enumerate(sources):
        np.testing.assert_allclose(hidden_td[source], want[row, : len(source)], rtol=0, atol=1e-5)


@pytest.mark.parametrize("config", [CONFIG, LOCAL])
def test_cached_decoding_equals_the_full_forward(config):
    """A left-padded prompt at once, then one token a call; rows of different lengths."""
    model = adapted_model(config=config)
    lengths, prompt, steps = (9, 14), 10, 5
    rows = shared_prefix_rows([[(n,)] for n in lengths], TILE)
    want = jax.jit(lambda *x: model.hidden(*x, attention="dense"))(*rows)
    decode = jax.jit(model.decode)
    cache = init_cache(CONFIG, 2, prompt + steps, jnp.float32)
    # Row 0 begins with a prompt of 4, row 1 with one of 9.
    ids, positions = np.zeros((2, prompt), np.int32), np.full((2, prompt), -1, np.int32)
    for row, length in enumerate(lengths):
        size = length - steps
        ids[row, prompt - size :] = rows.ids[row, :size]
        positions[row, prompt - size :] = np.arange(size)
    hidden_btd, cache = decode(jnp.asarray(ids), jnp.asarray(positions), cache)
    for row, length in enumerate(lengths):
        size = length - steps
        got = hidden_btd[row, prompt - size :]
        np.testing.assert_allclose(got, want[row, :size], rtol=0, atol=1e-5)
    for step in range(steps):
        place = jnp.asarray(lengths) - steps + step
        token_b1 = jnp.take_along_axis(rows.ids, place[:, None], axis=1)
        hidden_btd, cache = decode(token_b1, place[:, None], cache)
        expected = want[jnp.arange(2), place]
        np.testing.assert_allclose(hidden_btd[:, 0], expected, rtol=0, atol=1e-5)
    assert cache.length == prompt + steps


def test_windows_and_caps_change_the_output():
    rows = shared_prefix_rows([[(14,)]], TILE)
    windowed = adapted_model(config=dataclasses.replace(CONFIG, windows=(6, None)))
    plain, local = (
        jax.jit(lambda *x, model=model: model.hidden(*x, attention="dense"))(*rows)
        for model in (adapted_model(), windowed)
    )
    np.testing.assert_allclose(local[0, :6], plain[0, :6], rtol=0, atol=1e-5)
    assert float(jnp.abs(local[0, 6:14] - plain[0, 6:14]).max(-1).min()) > 1e-3


def grad_of(model, rows, remat):
    """A function of the adapter that gives loss and gradient."""
    graphdef, base, adapter = nnx.split(model, nnx.Param, LoRAParam)

    def loss(adapter, key):
        out = nnx.merge(graphdef, base, adapter).hidden(*rows, remat=remat, dropout_key=key)
        return (out * jnp.arange(CONFIG.d_model)[None, None]).sum()

    return jax.value_and_grad(loss), adapter


def test_recomputing_changes_no_gradient():
    rows = shared_prefix_rows([EXAMPLES], 2 * TILE)
    results = []
    for remat in REMAT:
        gradient, adapter = grad_of(adapted_model(), rows, remat)
        results.append(jax.tree.leaves(jax.jit(gradient)(adapter, DropoutKey(jax.random.key(3)))))
    for other in results[1:]:
        for got, want in zip(other, results[0], strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * jnp.abs(want).max())


def test_attention_is_computed_again_under_attention_and_full_only():
    rows = shared_prefix_rows([EXAMPLES], 2 * TILE)
    loops = {}
    for remat in REMAT:
        gradient, adapter = grad_of(adapted_model(), rows, remat)
        loops[remat] = str(jax.make_jaxpr(gradient)(adapter, None)).count(" while[")
    assert loops["none"] == loops["dots"] == loops["full"] - 1 == loops["attention"] - 1


def test_program_does_not_grow_with_depth():
    rows = shared_prefix_rows([EXAMPLES], 2 * TILE)
    sizes = []
    for layer_count in (2, 7):
        model = random_model(dataclasses.replace(CONFIG, layer_count=layer_count), seed=0)
        sizes.append(jax.make_jaxpr(model.hidden)(*rows).pretty_print(name_stack=False).count("\n"))
    assert sizes[0] == sizes[1]


def test_parameters_are_named_and_shaped_as_documented():
    config = dataclasses.replace(
        CONFIG, tie_embeddings=False, attention_bias=True, mlp_bias=True, layer_count=3
    )
    model = random_model(config, seed=0)
    shapes = {
        ".".join(map(str, path)): leaf[...].shape
        for path, leaf in nnx.to_flat_state(nnx.state(model, nnx.Param))
    }
    inner, keys, d, f = 32, 16, 32, 48
    widths = {
        "attention.q_proj": (d, inner), "attention.k_proj": (d, keys),
        "attention.v_proj": (d, keys), "attention.o_proj": (inner, d),
        "mlp.gate_proj": (d, f), "mlp.up_proj": (d, f), "mlp.down_proj": (f, d),
    }  # fmt: skip
    want = {"embed.weight": (64, d), "lm_head.weight": (64, d), "final_norm.scale": (d,)}
    want |= {f"layers.{norm}.scale": (3, d) for norm in ("input_norm", "post_norm")}
    want |= {f"layers.{name}.kernel": (3, *width) for name, width in widths.items()}
    want |= {f"layers.{name}.bias": (3, out) for name, (_, out) in widths.items()}
    assert shapes == want


def test_head_is_the_embedding_when_tied():
    tied = random_model(CONFIG, seed=0)
    assert tied.head_vd is tied.embed.weight[...]
    untied = random_model(dataclasses.replace(CONFIG, tie_embeddings=False), seed=0)
    assert not np.array_equal(untied.head_vd, untied.embed.weight[...])


def test_random_models_follow_the_seed():
    first, again, other = (random_model(CONFIG, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.head_vd, again.head_vd)
    assert not np.array_equal(first.head_vd, other.head_vd)


def test_bfloat16_base_keeps_a_float32_adapter():
    model = adapted_model(jnp.bfloat16)
    rows = shared_prefix_rows([EXAMPLES], 2 * TILE)
    out = jax.jit(model.hidden)(*rows)
    assert out.dtype == model.dtype == jnp.bfloat16
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(nnx.state(model, LoRAParam)))
    want = jax.jit(adapted_model().hidden)(*rows)
    live = np.asarray(rows.segments) > 0
    np.testing.assert_allclose(out.astype(jnp.float32)[live], want[live], rtol=0, atol=0.15)


def test_rotation_by_hand():
    """Width 2, position p: a turn by p radians; halves are paired, not neighbours."""
    x = jnp.asarray([1.0, 0.0]).reshape(1, 1, 1, 2)
    position = jnp.asarray([[3]])
    turned = rotate(x, *rotary_angles(position, 2, 10_000.0, None))
    np.testing.assert_allclose(turned.ravel(), [np.cos(3), np.sin(3)], atol=1e-6)
    slower = rotate(x, *rotary_angles(position, 2, 10_000.0, RopeScaling("linear", 2.0)))
    np.testing.assert_allclose(slower.ravel(), [np.cos(1.5), np.sin(1.5)], atol=1e-6)
    wide = jnp.asarray([1.0, 0.0, 0.0, 0.0]).reshape(1, 1, 1, 4)
    turned = rotate(wide, *rotary_angles(position, 4, 10_000.0, None))
    np.testing.assert_allclose(turned.ravel(), [np.cos(3), 0, np.sin(3), 0], atol=1e-6)
