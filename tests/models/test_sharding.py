# SPDX-License-Identifier: Apache-2.0
"""A model on four devices is the model on one; what cannot be split is said."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

from alignax.errors import UsageError
from alignax.models.config import DecoderConfig
from alignax.models.decoder import random_model
from alignax.models.layers import DropoutKey, LoRAParam
from alignax.models.lora import LoraSpec, adapted, add_lora
from alignax.models.sharding import build_mesh, commit, place_batch, place_model
from alignax.shapes import TILE
from tests.models.rows import Rows, shared_prefix_rows

CONFIG = DecoderConfig("llama", 64, 32, 48, 2, 4, 2, 8)
# Rows of different fill, so that their lists of tiles differ.
EXAMPLES = [
    [(40, 20, 30), (60, 33, 21)],
    [(9, 4, 5)],
    [(100, 30, 40)],
    [(5, 6, 7), (20, 30, 40), (50, 20, 9)],
]


def build(config=CONFIG):
    """A random decoder with an adapter that counts."""
    model = random_model(config, seed=0)
    add_lora(model, LoraSpec(2, 4.0, 0.25, ("q_proj", "down_proj")), key=jax.random.key(1))
    for linear in adapted(model).values():
        linear.lora_b[...] = jnp.full(linear.lora_b[...].shape, 0.05)
    return model


def outcome(model, rows):
    """Hidden states, and gradients of base and adapter."""
    graphdef, base, adapter = nnx.split(model, nnx.Param, LoRAParam)

    @jax.jit
    def run(base, adapter, rows):
        def loss(base, adapter):
            out = nnx.merge(graphdef, base, adapter).hidden(
                *rows, remat="dots", dropout_key=DropoutKey(jax.random.key(5))
            )
            return (out * jnp.arange(32)[None, None]).sum(), out

        return jax.grad(loss, (0, 1), has_aux=True)(base, adapter)

    return jax.tree.map(np.asarray, run(base, adapter, rows))


@pytest.fixture(scope="module")
def rows():
    return shared_prefix_rows(EXAMPLES, 2 * TILE)


@pytest.fixture(scope="module")
def one_device(rows):
    return outcome(build(), rows)


@pytest.mark.parametrize("mesh", [(4, 1, 1), (1, 2, 2), (2, 1, 2)])
def test_mesh_changes_nothing(mesh, rows, one_device):
    mesh = build_mesh(*mesh)
    model = build()
    assert place_model(model, mesh) == []
    placed = place_batch(jax.tree.map(lambda x: np.asarray(x)[None], rows), mesh)
    got = outcome(model, Rows(*(x[0] for x in placed)))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(one_device), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * max(1.0, np.abs(b).max()))


def test_places():
    model = build()
    place_model(model, build_mesh(1, 2, 2))
    specs = {
        ".".join(map(str, path)): leaf[...].sharding.spec
        for path, leaf in nnx.to_flat_state(nnx.state(model))
    }
    assert specs["embed.weight"] == specs["lm_head.weight"] == P("tensor", "fsdp")
    for name in ("attention.q_proj", "attention.k_proj", "mlp.gate_proj", "mlp.up_proj"):
        assert specs[f"layers.{name}.kernel"] == P(None, "fsdp", "tensor")
    for name in ("attention.o_proj", "mlp.down_proj"):
        assert specs[f"layers.{name}.kernel"] == P(None, "tensor", "fsdp")
    for name in ("final_norm.scale", "layers.input_norm.scale", "layers.mlp.down_proj.lora_a"):
        assert not any(specs[name])
    (shard, *_) = model.embed.weight[...].addressable_shards
    assert shard.data.shape == (32, 16)


def test_rows_go_to_data_and_fsdp():
    batch = place_batch({"ids": np.zeros((3, 4, 8), np.int32)}, build_mesh(2, 2, 1))
    assert batch["ids"].sharding.spec == P(None, ("data", "fsdp"))
    assert {s.data.shape for s in batch["ids"].addressable_shards} == {(3, 1, 8)}


def test_what_an_axis_does_not_divide_stays_whole_and_is_said():
    """Three heads of width 8 cannot be shared by two devices, although 24 columns could."""
    config = DecoderConfig("llama", 61, 32, 48, 2, 3, 1, 8, tie_embeddings=True)
    model = build(config)
    notices = place_model(model, build_mesh(1, 2, 2))
    assert [n.split(":")[0] for n in sorted(notices)] == [
        "embed.weight",
        *(f"layers.attention.{name}_proj.kernel" for name in "koqv"),
    ]
    assert "3 heads" in "".join(notices)
    assert "61" in "".join(notices)
    assert model.layers.attention.q_proj.kernel[...].sharding.spec == P(None, "fsdp", None)
    assert model.layers.mlp.up_proj.kernel[...].sharding.spec == P(None, "fsdp", "tensor")


def test_too_few_devices():
    with pytest.raises(UsageError, match=r"needs 8 devices, there are 4"):
        build_mesh(2, 2, 2)


def test_commit_leaves_placed_arrays_alone():
    mesh = build_mesh(4, 1, 1)
    placed = place_batch(np.zeros((1, 4)), mesh)
    again, loose = commit((placed, jnp.zeros(3)), mesh)
    assert again is placed
    assert loose.sharding.is_fully_replicated
    assert len(loose.sharding.device_set) == 4
