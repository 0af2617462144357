# SPDX-License-Identifier: Apache-2.0
"""One update, many ways: the same pairs give the same loss, gradient and next weights."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from alignax.models.decoder import REMAT
from alignax.models.lora import LoraSpec
from alignax.recipe import OptimizerSection
from alignax.train.optimizer import build_optimizer, build_schedule
from tests.train.tiny import SPEC, Rows, Run, flat, policy

SGD = optax.sgd(1.0)


def one_update(rows, **settings):
    """Loss, gradient norm and the change of the weights (the gradient, under SGD)."""
    run = Run(rows, optimizer=SGD, **settings)
    before = flat(run.state.trainable)
    values = run.update(0)
    return values["loss"], values["grad_norm"], before - flat(run.state.trainable)


@pytest.mark.parametrize("pairs", [8, 7])
def test_accumulation_changes_nothing(pairs):
    """C19 a: 1x8, 2x4, 4x2, 8x1 and a short last group are one step."""
    rows = Rows(pairs)
    model = policy(warm=True)
    loss, norm, gradient = one_update(rows, model=model, microbatches=1)
    for micro in (2, 4, 8):
        split = one_update(rows, model=model, microbatches=micro)
        np.testing.assert_allclose(split[0], loss, rtol=1e-6)
        np.testing.assert_allclose(split[1], norm, rtol=1e-5)
        np.testing.assert_allclose(split[2], gradient, rtol=1e-4, atol=1e-6 * norm)


def test_sft_weighs_tokens_not_micro_batches():
    """C19 b: the mean is over tokens, whatever the split."""
    rows = Rows(8, answers=1)
    one, four = (
        one_update(rows, kind="sft", mode="none", model=policy(warm=True), microbatches=m)
        for m in (1, 4)
    )
    np.testing.assert_allclose(four[0], one[0], rtol=1e-6)
    run = Run(rows, kind="sft", mode="none", model=policy(warm=True))
    total = -run.score(run.start).sum()
    np.testing.assert_allclose(one[0], total / rows.lengths[:, 1].sum(), rtol=1e-5)
    np.testing.assert_allclose(four[2], one[2], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("remat", sorted(REMAT.keys() - {"none"}))
def test_remat_changes_nothing(remat):
    rows, model = Rows(8), policy(warm=True)
    plain = one_update(rows, model=model)
    again = one_update(rows, model=model, remat=remat)
    np.testing.assert_allclose(again[:2], plain[:2], rtol=1e-6)
    np.testing.assert_allclose(again[2], plain[2], rtol=1e-5, atol=1e-7)


def test_the_first_update_on_an_adapter_drops_nothing():
    """ln 2 through the very step that trains; later steps do drop."""
    rows, spec = Rows(8), LoraSpec(4, 8.0, 0.5, ("q_proj", "v_proj"))
    wet = Run(rows, model=policy(spec=spec, warm=True), reference_adapter=True, optimizer=SGD)
    dry = Run(rows, model=policy(warm=True), reference_adapter=True, optimizer=SGD)
    assert wet.update(0)["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert dry.update(0)["loss"] == pytest.approx(math.log(2), abs=1e-6)
    np.testing.assert_allclose(flat(wet.state.trainable), flat(dry.state.trainable), rtol=1e-6)
    assert abs(wet.update(0)["loss"] - dry.update(0)["loss"]) > 1e-3


def test_packed_equals_padded():
    rows, model = Rows(8), policy(warm=True)
    packed = one_update(rows, model=model)
    padded = one_update(rows, model=model, packing=False)
    np.testing.assert_allclose(padded[0], packed[0], rtol=1e-5)
    np.testing.assert_allclose(padded[2], packed[2], rtol=1e-3, atol=1e-6)


@pytest.fixture(scope="module")
def one_device_losses():
    return Run(Rows(80), model=policy(warm=True), rows=4).losses(10)


@pytest.mark.parametrize("mesh", [(4, 1, 1), (1, 4, 1), (1, 1, 4), (1, 2, 2)])
def test_four_devices_equal_one(mesh, one_device_losses):
    """Losses of ten steps on data-only, fsdp-only and mixed meshes."""
    several = Run(Rows(80), model=policy(warm=True), mesh=mesh, rows=4).losses(10)
    np.testing.assert_allclose(several, one_device_losses, rtol=1e-4)
    assert several[-1] != several[0]


def test_full_training_on_a_mesh_equals_one_device():
    rows = Rows(24)
    model = policy(spec=None)
    single = Run(rows, model=model, trains="base", mode="live", rows=4, learning_rate=1e-3)
    several = Run(
        rows, model=policy(spec=None), trains="base", mode="live", rows=4, mesh=(1, 2, 2),
        learning_rate=1e-3,
    )  # fmt: skip
    ones = single.losses(3)
    np.testing.assert_allclose(several.losses(3), ones, rtol=1e-4)
    np.testing.assert_allclose(ones[0], math.log(2), rtol=1e-5)
    assert len(set(ones)) == 3


@pytest.mark.parametrize("trains", ["adapter", "base"])
def test_a_vocabulary_on_four_devices_stays_there(trains):
    """Neither the head nor logits are gathered; a device's 192 entries are no multiple of 128."""
    vocabulary = 768
    updates = []
    for mesh in ((1, 1, 1), (1, 1, 4)):
        spec = SPEC if trains == "adapter" else None
        model = policy(spec=spec, warm=trains == "adapter", vocab_size=vocabulary)
        run = Run(
            Rows(8, answers=1), kind="sft", mode="none", model=model, trains=trains, mesh=mesh,
            optimizer=SGD,
        )  # fmt: skip
        before = flat(run.state.trainable)
        placed, _ = run.place((run.batch(0), None))
        program = run.step.lower(run.state, run.frozen, None, placed, None).compile()
        state, metrics = program(run.state, run.frozen, None, placed, None)
        updates.append((float(metrics["loss"].total), before - flat(state.trainable)))
    gathers = re.findall(r"= \(?\w+\[([\d,]*)\][^=]* all-gather", program.as_text())
    assert not [shape for shape in gathers if str(vocabulary) in shape.split(",")]
    (loss, gradient), (split_loss, split_gradient) = updates
    np.testing.assert_allclose(split_loss, loss, rtol=1e-5)
    np.testing.assert_allclose(split_gradient, gradient, rtol=1e-3, atol=1e-6)
    assert np.abs(gradient).max() > 1e-4


def test_bfloat16_computes_near_float32():
    """Base and activations in bfloat16; log-probs, adapter, gradient and state in float32."""
    rows = Rows(8)
    narrow = Run(rows, model=policy(warm=True, dtype=jnp.bfloat16), optimizer=SGD)
    model = policy(warm=True)
    rounded = nnx.state(model, nnx.Param)
    nnx.update(model, jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(x.dtype), rounded))
    wide = Run(rows, model=model, optimizer=SGD)
    assert {x.dtype for x in jax.tree.leaves(narrow.frozen)} == {jnp.dtype("bfloat16")}
    scores, want = (run.score(run.start) for run in (narrow, wide))
    assert scores.dtype == np.float32
    # 8 bits of mantissa: a hundredth of a nat a token is far above rounding, far below a bug.
    np.testing.assert_array_less(np.abs(scores - want), 0.01 * rows.lengths[:, 1:])
    assert np.unique(scores).size == scores.size
    before = flat(narrow.state.trainable)
    values, (loss, _, gradient) = narrow.update(0), one_update(rows, model=model)
    assert {x.dtype for x in jax.tree.leaves(narrow.state.trainable)} == {jnp.dtype("float32")}
    np.testing.assert_allclose(values["loss"], loss, atol=0.01)
    moved = before - flat(narrow.state.trainable)
    assert np.linalg.norm(moved - gradient) < 0.05 * np.linalg.norm(gradient)


def test_full_training_in_bfloat16_keeps_float32_masters():
    rows = Rows(8, answers=1)
    settings = {"kind": "sft", "mode": "none", "trains": "base"}
    loss, _, gradient = one_update(rows, model=policy(spec=None), **settings)
    got, _, moved = one_update(
        rows, model=policy(spec=None), compute_dtype="bfloat16", **settings
    )  # fmt: skip
    np.testing.assert_allclose(got, loss, rtol=5e-3)
    assert np.linalg.norm(moved - gradient) < 0.05 * np.linalg.norm(gradient)
    assert moved.dtype == np.float32


def test_reference_sources_agree():
    rows = Rows(16)
    cached = Run(rows).losses(2)
    off = Run(rows, mode="live", reference_adapter=False).losses(2)
    copy = Run(rows, mode="live", reference_adapter=True).losses(2)
    np.testing.assert_allclose(off, cached, rtol=1e-5)
    np.testing.assert_allclose(copy, cached, rtol=1e-5)
    np.testing.assert_allclose(cached[0], math.log(2), rtol=1e-6)
    assert cached[1] != cached[0]


def test_dpo_on_an_sft_adapter():
    """C15: the frozen SFT policy is the reference; the base alone would not be."""
    rows = Rows(40)
    run = Run(rows, model=policy(warm=True), reference_adapter=True)
    first = run.table.copy()
    values = run.update(0)
    np.testing.assert_allclose(values["loss"], math.log(2), atol=1e-5)
    np.testing.assert_allclose(values["margin"], 0.0, atol=1e-5)
    for index in range(1, 5):
        run.update(index)
    np.testing.assert_array_equal(run.score(run.reference), first)
    wrong = Run(rows, model=policy(warm=True), reference_adapter=False).update(0)
    assert abs(wrong["margin"]) > 1e-3


def test_not_finite_leaves_the_state_alone():
    run = Run(Rows(8))
    run.table[3, 0] = np.nan
    before = jax.device_get(run.state)
    values = run.update(0)
    assert not values["finite"]
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(run.state), strict=True):
        np.testing.assert_array_equal(old, new)


def test_trainables_are_float32_and_small_updates_count():
    """C16 d: entries move even when each update is tiny."""
    run = Run(Rows(8), learning_rate=5e-7)
    assert {x.dtype for x in jax.tree.leaves(run.state.trainable)} == {jnp.dtype("float32")}
    before = flat(run.state.trainable)
    run.update(0)
    moved = (flat(run.state.trainable) != before).mean()
    assert moved > 0.3


@pytest.mark.parametrize("mesh", [(1, 1, 1), (1, 2, 2)])
def test_step_compiles_once(mesh):
    """Steps of an epoch that the batch size does not divide hold fewer pairs in the same shape."""
    run = Run(Rows(37), mesh=mesh)
    pairs = [sum(len(row) for micro in run.plan.step(i) for row in micro) for i in range(5)]
    assert sorted(pairs) == [7, 7, 7, 8, 8]
    for index in range(5):
        run.update(index)
    assert run.step._cache_size() == 1


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 1.0, 0.875, 0.75]),
        (
            "cosine",
            [0.5, 1.0, 1.0, (1 + math.cos(math.pi / 8)) / 2, (1 + math.cos(math.pi / 4)) / 2],
        ),
    ],
)
def test_schedule(schedule, values):
    settings = OptimizerSection(learning_rate=1.0, schedule=schedule, warmup_ratio=0.2)
    rate = build_schedule(settings, 10)
    np.testing.assert_allclose([float(rate(i)) for i in range(5)], values, rtol=1e-6)
    assert float(rate(9)) > 0


def test_clip_and_decay():
    settings = OptimizerSection(learning_rate=0.1, clip_norm=1.0, weight_decay=0.5)
    optimizer = build_optimizer(settings, optax.constant_schedule(0.1))
    weights = {"w": jnp.array([2.0])}
    updates, _ = optimizer.update({"w": jnp.array([100.0])}, optimizer.init(weights), weights)
    # Adam's first step has size 1 whatever the gradient; decay adds 0.5 · 2; both times the rate.
    np.testing.assert_allclose(updates["w"], [-0.1 * (1.0 + 1.0)], rtol=1e-5)
