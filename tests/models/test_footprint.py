# SPDX-License-Identifier: Apache-2.0
"""Estimated bytes are those that hand counts, the traced program and the compiler give."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from alignax.losses import build_loss
from alignax.models.config import DecoderConfig
from alignax.models.decoder import REMAT, random_model
from alignax.models.footprint import (
    Job,
    activation_bytes,
    footprint,
    kept_by_tile,
    parameter_counts,
    share,
)
from alignax.models.lora import LoraSpec, add_lora
from alignax.recipe import OptimizerSection
from alignax.records import PackedBatch
from alignax.shapes import TILE
from alignax.train.forward import split_model
from alignax.train.optimizer import build_optimizer, build_schedule
from alignax.train.step import ReferencePlan, build_train_step, init_state

SMOLLM2 = DecoderConfig("llama", 49_152, 576, 1536, 30, 9, 3, 64, tie_embeddings=True)
LLAMA_8B = DecoderConfig("llama", 128_256, 4096, 14_336, 32, 32, 8, 128)
TINY = DecoderConfig("llama", 1024, 64, 160, 6, 4, 2, 16, tie_embeddings=True)
SPEC = LoraSpec(4, 8.0, 0.05, ("q_proj", "v_proj"))


def job(config=TINY, lora=SPEC, **settings):
    """A step of one row of 1,024 tokens."""
    sizes = {
        "dtype": "float32", "rows": 1, "tokens": 1024, "answers": 512, "tiles": 16,
        "microbatches": 1, "live_reference": False, "chunk": 128,
    }  # fmt: skip
    return Job(config=config, lora=lora, **(sizes | settings))


def test_weights_of_published_models():
    """The counts that their model cards give, and an adapter's by hand."""
    spec = LoraSpec(16, 32.0, 0.05, ("q_proj", "v_proj"))
    adapter = 30 * 16 * ((576 + 576) + (576 + 192))
    assert parameter_counts(SMOLLM2, spec) == (134_515_008, adapter)
    assert parameter_counts(LLAMA_8B, None) == (8_030_261_248, 0)


@pytest.mark.parametrize("lora", [SPEC, None])
def test_what_a_layer_keeps_by_hand(lora):
    """One more layer keeps, for each token: its input; or the projections and attention too."""
    d, f, queries, keys, heads = 64, 160, 64, 32, 4
    adapters = 2 * 4 if lora else 0
    # Input, q, k, v, attention and its normaliser, o, gate and up; nothing needs down's output.
    dots = d + queries + 2 * keys + queries + heads + d + 2 * f + adapters
    deeper = dataclasses.replace(TINY, layer_count=TINY.layer_count + 1)
    for remat, floats in (("full", d), ("dots", dots)):
        more, less = (kept_by_tile(c, lora, "float32", remat) for c in (deeper, TINY))
        per_token = (more - less) / TILE / 4
        assert per_token == pytest.approx(floats, abs=0.5), remat


def test_policies_in_order():
    kept = {remat: activation_bytes(job(), remat) for remat in REMAT}
    assert kept["full"] < kept["dots"] < kept["attention"] < kept["none"]


def compiled_temporary(lora, remat):
    """What the compiler sets aside for one step, in bytes."""
    model = random_model(TINY, seed=0)
    if lora is not None:
        add_lora(model, lora, key=jax.random.key(0))
    trains = "base" if lora is None else "adapter"
    network, start = split_model(model, trains=trains, answers=2, remat=remat)
    network = dataclasses.replace(network, chunk=128)
    trainable, frozen = network.part(start)
    schedule = build_schedule(OptimizerSection(), 10)
    optimizer = build_optimizer(OptimizerSection(), schedule)
    state = init_state(trainable, optimizer, jax.random.key(0))
    step = build_train_step(
        network, build_loss(kind="pair"), optimizer, schedule, ReferencePlan("cached"), state
    )
    row, answers = ((1, 1, 1024),) * 4, ((1, 1, 512),) * 3
    shapes = (*row, (1, 1, 16, 2), *answers, (1, 1), (1, 1, 8))
    batch = PackedBatch(*(jax.ShapeDtypeStruct(shape, jnp.int32) for shape in shapes))
    cached = {"reference": jax.ShapeDtypeStruct((1, 1, 8, 2), jnp.float32)}
    program = step.lower(state, frozen, None, batch, cached).compile()
    return program.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize(("lora", "remat"), [(SPEC, "dots"), (SPEC, "full"), (None, "dots")])
def test_temporary_memory_is_what_the_compiler_sets_aside(lora, remat):
    size = footprint(job(lora=lora), remat)
    estimate = size.gradients + size.activations + max(size.layer, size.head)
    assert estimate == pytest.approx(compiled_temporary(lora, remat), rel=0.2)


def test_held_arrays_by_hand():
    base, adapter = parameter_counts(TINY, SPEC)
    size = footprint(job(), "dots")
    assert (size.weights, size.trainable, size.optimizer) == (4 * base, 4 * adapter, 8 * adapter)
    assert size.reference == 0
    size = footprint(job(lora=None, live_reference=True, dtype="bfloat16"), "dots")
    # float32 masters, the bfloat16 copy that computes, and the reference's own weights.
    assert (size.trainable, size.weights, size.reference) == (4 * base, 2 * base, 2 * base)


def test_a_mesh_splits_weights_heads_and_logits():
    whole, split = footprint(job(), "dots"), footprint(job(fsdp=2, tensor=2), "dots")
    assert split.weights == whole.weights // 4
    assert split.activations < whole.activations
    assert split.head < whole.head
    part = share(TINY, 2)
    assert (part.head_count, part.kv_head_count, part.mlp_dim) == (2, 1, 80)
    # Two key heads cannot be shared by four devices: attention stays whole.
    assert (share(TINY, 4).head_count, share(TINY, 4).mlp_dim) == (4, 40)
