# SPDX-License-Identifier: Apache-2.0
"""Adapters: their sum, their dropout, their merge and their published names."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from alignax.errors import ModelError, UsageError
from alignax.models.config import DecoderConfig
from alignax.models.decoder import random_model
from alignax.models.layers import DropoutKey, LoRAParam, kept_entries
from alignax.models.lora import (
    BLOCKS,
    LoraSpec,
    adapted,
    adapter_to_peft,
    add_lora,
    merged,
    peft_to_adapter,
    projections,
)
from alignax.shapes import TILE
from tests.models.rows import shared_prefix_rows

CONFIG = DecoderConfig("llama", 64, 32, 48, 2, 4, 2, 8, tie_embeddings=True)
ROWS = shared_prefix_rows([[(10, 6, 8), (20, 5, 9)]], TILE)


def build(targets=("q_proj", "v_proj"), *, trained=True, dropout=0.0, rank=3):
    """A random decoder with an adapter."""
    model = random_model(CONFIG, seed=0)
    add_lora(model, LoraSpec(rank, 2.0 * rank, dropout, targets), key=jax.random.key(1))
    for index, linear in enumerate(adapted(model).values() if trained else ()):
        shape = linear.lora_b[...].shape
        linear.lora_b[...] = 0.3 * jax.random.normal(jax.random.key(index), shape)
    return model


def hidden(model, **options):
    return jax.jit(lambda: model.hidden(*ROWS, **options))()


def test_fresh_adapter_changes_nothing():
    model = build("all-linear", trained=False)
    np.testing.assert_array_equal(hidden(model), hidden(model, adapter=False))


def test_adapter_can_be_left_out():
    model = build()
    bare = hidden(random_model(CONFIG, seed=0))
    np.testing.assert_array_equal(hidden(model, adapter=False), bare)
    assert jnp.abs(hidden(model) - bare).max() > 1e-3


def test_all_linear_and_draws():
    model = build("all-linear", trained=False, rank=4)
    assert tuple(adapted(model)) == tuple(projections(model)) == tuple(BLOCKS)
    draws = [linear.lora_a[...] for linear in adapted(model).values()]
    for name, a in zip(BLOCKS, draws, strict=True):
        width = CONFIG.projections[name][0]
        assert a.shape == (2, width, 4)
        assert 0.9 / np.sqrt(width) < jnp.abs(a).max() <= 1 / np.sqrt(width)
    firsts = {float(a[layer, 0, 0]) for a in draws for layer in range(2)}
    assert len(firsts) == 2 * len(draws)


@pytest.mark.parametrize("targets", [("q_proj", "attn.qkv"), ()])
def test_targets_without_a_match_are_named(targets):
    with pytest.raises(UsageError) as caught:
        build(targets)
    text = str(caught.value)
    assert all(name in text for name in (*targets, *BLOCKS, "all-linear"))


def test_merged_delta_by_hand():
    """C23 (a): rows of A are ranks; the transposed reading gives another delta."""
    config = DecoderConfig("llama", 8, 3, 2, 1, 1, 1, 2)
    model = random_model(config, seed=0)
    add_lora(model, LoraSpec(2, 2.0, 0.0, ("q_proj",)), key=jax.random.key(0))
    linear = projections(model)["q_proj"]
    linear.kernel[...] = jnp.zeros((1, 3, 2))
    a = np.array([[1, 0, 0], [0, 2, 0]], np.float32)
    names = [
        f"base_model.model.model.layers.0.self_attn.q_proj.lora_{side}.weight" for side in "AB"
    ]
    peft_to_adapter(model, dict(zip(names, (a, np.eye(2, dtype=np.float32)), strict=True)))
    folded = projections(merged(model))["q_proj"].kernel[...]
    np.testing.assert_array_equal(folded[0].T, a)
    np.testing.assert_array_equal(jnp.ones((1, 3)) @ folded[0], [[1.0, 2.0]])


def test_merged_acts_like_the_adapter_and_leaves_the_model_alone():
    model = build("all-linear")
    before = nnx.state(model)
    folded = merged(model)
    np.testing.assert_allclose(hidden(folded), hidden(model), rtol=0, atol=2e-5)
    assert not adapted(folded)
    jax.tree.map(np.testing.assert_array_equal, nnx.state(model), before)


def test_dropout_needs_a_key():
    wet, dry = build(dropout=0.5), build()
    np.testing.assert_array_equal(hidden(wet), hidden(dry))
    one, two = (hidden(wet, dropout_key=DropoutKey(jax.random.key(seed))) for seed in (1, 2))
    assert jnp.abs(one - hidden(dry)).max() > 1e-3
    assert jnp.abs(one - two).max() > 1e-3
    np.testing.assert_array_equal(one, hidden(wet, dropout_key=DropoutKey(jax.random.key(1))))
    off = DropoutKey(jax.random.key(1), jnp.bool_(False))
    np.testing.assert_allclose(hidden(wet, dropout_key=off), hidden(dry), rtol=0, atol=1e-6)


def test_dropout_differs_between_layers():
    """With equal layers and nothing added to the stream, gradients of B differ by masks only."""
    model = build(("down_proj",), trained=False, dropout=0.5)
    for name, linear in projections(model).items():
        still = name in ("o_proj", "down_proj")
        linear.kernel[...] = (
            0 * linear.kernel[...] if still else linear.kernel[...][:1].repeat(2, 0)
        )
    down = projections(model)["down_proj"]
    down.lora_a[...] = down.lora_a[...][:1].repeat(2, 0)
    graphdef, base, adapter = nnx.split(model, nnx.Param, LoRAParam)

    @jax.jit
    def gradient(key):
        def loss(adapter):
            out = nnx.merge(graphdef, base, adapter).hidden(*ROWS, dropout_key=key)
            return (out * jnp.arange(32)[None, None]).sum()

        return jax.grad(loss)(adapter)["layers"]["mlp"]["down_proj"]["lora_b"][...]

    still, moved = gradient(None), gradient(DropoutKey(jax.random.key(0)))
    np.testing.assert_allclose(still[0], still[1], rtol=1e-5)
    assert jnp.abs(moved[0] - moved[1]).max() > 0.1 * jnp.abs(moved).max()


@pytest.mark.parametrize("rate", [0.05, 0.5])
def test_kept_entries_are_as_many_as_asked_and_unrelated(rate):
    shape = (4, 400, 250)
    one, two = (
        np.asarray(kept_entries(jax.random.key(seed), shape, rate), np.float64) for seed in (0, 1)
    )
    # Five standard deviations.
    bound = 5 * np.sqrt(rate * (1 - rate) / one.size)
    assert abs(one.mean() - (1 - rate)) < bound
    shifted = [np.roll(one, 1, axis) for axis in range(3)]
    for other in (two, *shifted):
        joint = np.mean((one - one.mean()) * (other - other.mean()))
        assert abs(joint) < 5 * rate * (1 - rate) / np.sqrt(one.size)
    for axis in range(3):
        others = tuple(a for a in range(3) if a != axis)
        share = one.mean(others)
        spread = np.sqrt(rate * (1 - rate) * len(share) / one.size)
        assert np.abs(share - (1 - rate)).max() < 5 * spread


def test_published_names_and_shapes():
    tensors = adapter_to_peft(build(("q_proj", "down_proj")))
    prefix = "base_model.model.model.layers"
    assert {name: x.shape for name, x in tensors.items()} == {
        f"{prefix}.{layer}.{place}.lora_{side}.weight": shape
        for layer in range(2)
        for place, widths in (("self_attn.q_proj", (32, 32)), ("mlp.down_proj", (48, 32)))
        for side, shape in (("A", (3, widths[0])), ("B", (widths[1], 3)))
    }


def test_published_tensors_read_back():
    model, fresh = build("all-linear"), build("all-linear", trained=False)
    peft_to_adapter(fresh, adapter_to_peft(model))
    jax.tree.map(
        np.testing.assert_array_equal, nnx.state(fresh, LoRAParam), nnx.state(model, LoRAParam)
    )


def test_tensors_that_do_not_fit_come_in_one_error():
    """C23 (d), with a tensor of another rank too."""
    model = build()
    tensors = adapter_to_peft(model)
    first, second, *_ = sorted(tensors)
    tensors[f"base_model.{first}"] = tensors.pop(first)
    tensors[second] = tensors[second][:1]
    with pytest.raises(ModelError) as caught:
        peft_to_adapter(model, tensors)
    problems = "\n".join(caught.value.problems)
    assert f"missing: {first}" in problems
    assert f"unexpected: base_model.{first}" in problems
    assert f"mis-shaped: {second}" in problems
    assert len(caught.value.problems) == 3
