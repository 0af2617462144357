# SPDX-License-Identifier: Apache-2.0
"""Chunked log-probs, their gradients and KL, against plain full-vocabulary oracles."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from alignax.losses import chunks
from alignax.losses.divergence import token_kl
from alignax.losses.logprobs import answer_sums, token_logps

ROWS, SLOTS, WIDTH, VOCABULARY = 3, 11, 8, 29
COUNT_B = jnp.array([11, 4, 0])


def arrays(seed=0, dtype=jnp.float32):
    """Hidden states, head and targets of a small case."""
    keys = jax.random.split(jax.random.key(seed), 3)
    hidden_bad = jax.random.normal(keys[0], (ROWS, SLOTS, WIDTH)).astype(dtype)
    head_vd = jax.random.normal(keys[1], (VOCABULARY, WIDTH)).astype(dtype)
    target_ba = jax.random.randint(keys[2], (ROWS, SLOTS), 0, VOCABULARY)
    return hidden_bad, head_vd, target_ba


def full_logits(hidden_bad, head_vd, softcap=None):
    """All logits at once."""
    logits_bav = jnp.einsum("bad,vd->bav", hidden_bad, head_vd)
    return logits_bav if softcap is None else softcap * jnp.tanh(logits_bav / softcap)


def full_logps(hidden_bad, head_vd, target_ba, softcap=None):
    """The plain way: all logits, log-softmax, pick, mask."""
    log_softmax_bav = jax.nn.log_softmax(full_logits(hidden_bad, head_vd, softcap))
    picked_ba = jnp.take_along_axis(log_softmax_bav, target_ba[..., None], -1)[..., 0]
    return jnp.where(jnp.arange(SLOTS)[None] < COUNT_B[:, None], picked_ba, 0.0)


WEIGHTS_BA = jnp.linspace(-1.0, 2.0, ROWS * SLOTS).reshape(ROWS, SLOTS)


@pytest.mark.parametrize("softcap", [None, 3.0])
def test_chunked_equals_a_loop_in_python(softcap):
    hidden_bad, head_vd, target_ba = arrays()
    got_ba = token_logps(hidden_bad, head_vd, target_ba, COUNT_B, softcap=softcap, chunk=3)
    for row in range(ROWS):
        for slot in range(SLOTS):
            expected = 0.0
            if slot < COUNT_B[row]:
                scores = np.asarray(hidden_bad[row, slot], np.float64) @ np.asarray(head_vd).T
                if softcap:
                    scores = softcap * np.tanh(scores / softcap)
                expected = scores[target_ba[row, slot]] - math.log(np.exp(scores).sum())
            np.testing.assert_allclose(got_ba[row, slot], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("chunk", [1, 2, 4, 11, 256])
def test_value_and_gradients_do_not_depend_on_the_chunk(chunk, softcap):
    hidden_bad, head_vd, target_ba = arrays()

    def oracle(hidden_bad, head_vd):
        return (WEIGHTS_BA * full_logps(hidden_bad, head_vd, target_ba, softcap)).sum()

    def ours(hidden_bad, head_vd, train_head):
        settings = {"softcap": softcap, "train_head": train_head, "chunk": chunk}
        return (WEIGHTS_BA * token_logps(hidden_bad, head_vd, target_ba, COUNT_B, **settings)).sum()

    value, (grad_bad, grad_vd) = jax.value_and_grad(oracle, (0, 1))(hidden_bad, head_vd)
    trained, trained_grads = jax.value_and_grad(ours, (0, 1))(hidden_bad, head_vd, True)
    frozen, frozen_grads = jax.value_and_grad(ours, (0, 1))(hidden_bad, head_vd, False)
    np.testing.assert_allclose([trained, frozen], [value, value], rtol=1e-5)
    np.testing.assert_allclose(trained_grads[0], grad_bad, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(trained_grads[1], grad_vd, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(frozen_grads[0], grad_bad, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(frozen_grads[1], 0)


def test_whole_chunks_followed_by_short_ones(monkeypatch):
    """Counts that end within, at and after a whole chunk take both loops."""
    monkeypatch.setattr(chunks, "TAIL", 2)
    hidden_bad, head_vd, target_ba = arrays()
    for count in range(SLOTS + 1):
        count_b = jnp.array([count, max(count - 3, 0), 0])
        got_ba = token_logps(hidden_bad, head_vd, target_ba, count_b, chunk=4)
        used_ba = jnp.arange(SLOTS)[None] < count_b[:, None]
        logp_bav = jax.nn.log_softmax(full_logits(hidden_bad, head_vd))
        want_ba = jnp.take_along_axis(logp_bav, target_ba[..., None], -1)[..., 0]
        np.testing.assert_allclose(got_ba, jnp.where(used_ba, want_ba, 0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("train_head", [False, True])
def test_unused_places_are_inert(train_head):
    """NaN in places beyond the count reaches neither values nor gradients."""
    hidden_bad, head_vd, target_ba = arrays()
    used_ba1 = (jnp.arange(SLOTS)[None] < COUNT_B[:, None])[..., None]

    def total(hidden_bad, head_vd):
        logp_ba = token_logps(hidden_bad, head_vd, target_ba, COUNT_B, train_head=train_head)
        kl_ba = token_kl(hidden_bad, hidden_bad * 2, head_vd, head_vd, COUNT_B)
        return (WEIGHTS_BA * (logp_ba + kl_ba)).sum()

    measure = jax.value_and_grad(total, (0, 1))
    clean = measure(jnp.where(used_ba1, hidden_bad, 0.0), head_vd)
    dirty = measure(jnp.where(used_ba1, hidden_bad, jnp.nan), head_vd)
    for ours, theirs in zip(jax.tree.leaves(dirty), jax.tree.leaves(clean), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert np.all(np.where(used_ba1, 0, dirty[1][0]) == 0)


@pytest.mark.parametrize("train_head", [False, True])
def test_bfloat16_models_get_float32_log_probs(train_head):
    hidden_bad, head_vd, target_ba = arrays(dtype=jnp.bfloat16)

    def total(hidden_bad, head_vd):
        logp_ba = token_logps(hidden_bad, head_vd, target_ba, COUNT_B, train_head=train_head)
        return logp_ba.sum(), logp_ba

    (_, got_ba), (grad_bad, grad_vd) = jax.value_and_grad(total, (0, 1), has_aux=True)(
        hidden_bad, head_vd
    )
    wide = hidden_bad.astype(jnp.float32), head_vd.astype(jnp.float32)
    assert got_ba.dtype == jnp.float32
    np.testing.assert_allclose(got_ba, full_logps(*wide, target_ba), rtol=1e-5, atol=1e-5)
    want = jax.grad(lambda h, w: full_logps(h, w, target_ba).sum(), (0, 1))(*wide)
    assert grad_bad.dtype == grad_vd.dtype == jnp.bfloat16
    np.testing.assert_allclose(grad_bad.astype(jnp.float32), want[0], rtol=3e-2, atol=3e-2)
    if train_head:
        np.testing.assert_allclose(grad_vd.astype(jnp.float32), want[1], rtol=3e-2, atol=6e-2)


@pytest.mark.parametrize("scale", [1e3, 1e4])
def test_extreme_logits_stay_finite(scale):
    hidden_bad, head_vd, target_ba = arrays()
    value, gradient = jax.value_and_grad(
        lambda h: token_logps(h, head_vd, target_ba, COUNT_B).sum()
    )(hidden_bad * scale)
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()
    assert (token_logps(hidden_bad * scale, head_vd, target_ba, COUNT_B) <= 0).all()


def test_six_tokens_shift_and_mask_by_hand():
    """Prompt ``7 3``, answers ``2 5`` and ``4``: which place predicts which token.

    The hidden state after a token is its one-hot vector and the head makes the token's own logit
    ln 9 higher (vocabulary of 10), so p(same token again) = 9 / 18 and any other is 1 / 18.
    """
    head_vd = jnp.eye(10) * math.log(9)
    row_t = jnp.array([7, 3, 2, 5, 4, 0])
    answer_index_ba = jnp.array([[1, 2, 1, 0]])
    answer_target_ba = jnp.array([[2, 5, 4, 0]])
    answer_slot_ba = jnp.array([[0, 0, 1, 2]])
    hidden_bad = jnp.eye(10)[row_t][None][:, answer_index_ba[0]]
    count_b = jnp.array([3])
    logp_ba = token_logps(hidden_bad, head_vd, answer_target_ba, count_b)
    other = math.log(1 / 18)
    np.testing.assert_allclose(logp_ba, [[other, other, other, 0.0]], rtol=1e-6)
    sums, tokens = answer_sums(logp_ba, answer_slot_ba, count_b, 2)
    np.testing.assert_allclose(sums, [[2 * other, other]], rtol=1e-6)
    np.testing.assert_array_equal(tokens, [[2, 1]])
    repeated = token_logps(hidden_bad, head_vd, jnp.array([[3, 2, 3, 9]]), count_b)
    np.testing.assert_allclose(repeated, [[math.log(0.5)] * 3 + [0.0]], rtol=1e-6)


def test_answer_sums_ignore_what_lies_in_unused_places():
    values_ba = jnp.array([[1.0, 2.0, 4.0, jnp.nan], [8.0, 16.0, jnp.inf, 32.0]])
    slots_ba = jnp.array([[0, 2, 2, 0], [1, 1, 1, 0]])
    sums, tokens = answer_sums(values_ba, slots_ba, jnp.array([3, 2]), 3)
    np.testing.assert_array_equal(sums, [[1, 0, 6], [0, 24, 0]])
    np.testing.assert_array_equal(tokens, [[1, 0, 2], [0, 2, 0]])


@pytest.mark.parametrize("train_head", [False, True])
def test_rows_and_vocabulary_may_be_sharded(train_head):
    keys = jax.random.split(jax.random.key(0), 3)
    hidden_bad = jax.random.normal(keys[0], (4, 9, WIDTH))
    head_vd = jax.random.normal(keys[1], (32, WIDTH))
    target_ba = jax.random.randint(keys[2], (4, 9), 0, 32)
    count_b = jnp.array([9, 5, 0, 8])

    def total(hidden_bad, head_vd, target_ba, count_b):
        return token_logps(
            hidden_bad, head_vd, target_ba, count_b, train_head=train_head, chunk=4
        ).sum()

    measure = jax.jit(jax.value_and_grad(total, (0, 1)))
    want = measure(hidden_bad, head_vd, target_ba, count_b)
    mesh = jax.make_mesh((2, 2), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
    rows = NamedSharding(mesh, PartitionSpec("data"))
    compiled = measure.lower(
        jax.device_put(hidden_bad, rows),
        jax.device_put(head_vd, NamedSharding(mesh, PartitionSpec("tensor"))),
        jax.device_put(target_ba, rows),
        jax.device_put(count_b, rows),
    ).compile()
    got = compiled(
        jax.device_put(hidden_bad, rows),
        jax.device_put(head_vd, NamedSharding(mesh, PartitionSpec("tensor"))),
        jax.device_put(target_ba, rows),
        jax.device_put(count_b, rows),
    )
    for ours, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    assert "all-gather" not in compiled.as_text()


def test_adapters_may_be_mapped_over_a_shared_head():
    """A sweep maps hidden states of several adapters over one frozen head."""
    hidden_bad, head_vd, target_ba = arrays()
    stacked = jnp.stack([hidden_bad, hidden_bad * 0.5])

    def total(hidden_bad):
        return token_logps(hidden_bad, head_vd, target_ba, COUNT_B, chunk=4).sum()

    mapped = jax.vmap(jax.value_and_grad(total))(stacked)
    single = [jax.value_and_grad(total)(hidden_bad) for hidden_bad in stacked]
    for index, (value, gradient) in enumerate(single):
        np.testing.assert_allclose(mapped[0][index], value, rtol=1e-5)
        np.testing.assert_allclose(mapped[1][index], gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("train_head", [False, True])
def test_memory_does_not_grow_with_the_answer_places(train_head):
    """Temporary memory stays near one chunk of logits; all logits would be 8 times as much.

    A trained head's gradient is summed chunk by chunk: beside it there is room for one more.
    """
    slots, width, vocabulary, chunk = 512, 8, 4096, 64
    shapes = (
        jax.ShapeDtypeStruct((1, slots, width), jnp.float32),
        jax.ShapeDtypeStruct((vocabulary, width), jnp.float32),
        jax.ShapeDtypeStruct((1, slots), jnp.int32),
        jax.ShapeDtypeStruct((1,), jnp.int32),
    )
    step = jax.jit(
        jax.grad(lambda *args: token_logps(*args, train_head=train_head, chunk=chunk).sum(), (0, 1))
    )
    used = step.lower(*shapes).compile().memory_analysis().temp_size_in_bytes
    head = 2 * vocabulary * width * 4 if train_head else 0
    assert used < 3.5 * chunk * vocabulary * 4 + head


@pytest.mark.parametrize(
    ("rows", "vocabulary", "mebibytes", "want"),
    [
        (1, 49_152, 64, 256),  # 341 places would fit
        (1, 262_144, 64, 64),
        (16, 262_144, 64, 4),
        (1, 264, 64, 1024),  # a tiny vocabulary: as many as are of use
        (64, 1_000_000, 1, 1),  # none fits: one at a time
    ],
)
def test_chunk_from_memory(rows, vocabulary, mebibytes, want):
    got = chunks.places(rows, vocabulary, mebibytes * 2**20)
    assert got == want
    assert want == 1 or rows * want * vocabulary * 4 <= mebibytes * 2**20


def test_blocks_of_a_vocabulary_never_lie_on_two_devices():
    # SmolLM2, Llama 3, Qwen 2.5, Gemma 3 (64 · 4097) and GPT-2 (odd: no blocks).
    blocks = {49_152: 128, 128_256: 32, 151_936: 16, 262_208: 16, 50_257: None}
    assert {v: chunks.block_of(v) for v in blocks} == blocks
    for vocabulary, block in blocks.items():
        for devices in (2, 4, 8):
            if block is not None and vocabulary % (devices * 16) == 0:
                assert vocabulary // devices % block == 0, (vocabulary, devices)


@pytest.mark.parametrize("vocabulary", [49_152, 50_257])
def test_many_small_probabilities_are_not_lost(vocabulary):
    """A large vocabulary's normaliser keeps float32's precision, with one likely token or none."""
    rng = np.random.default_rng(0)
    head_vd = rng.normal(size=(vocabulary, 4)).astype(np.float32)
    hidden_bad = (rng.normal(size=(1, 64, 4)) * np.linspace(0, 2, 64)[:, None]).astype(np.float32)
    target_ba = rng.integers(0, vocabulary, (1, 64))
    logits_av = hidden_bad[0].astype(np.float64) @ head_vd.T.astype(np.float64)
    peak_a = logits_av.max(-1)
    log_sum_a = peak_a + np.log(np.exp(logits_av - peak_a[:, None]).sum(-1))
    want_a = logits_av[np.arange(64), target_ba[0]] - log_sum_a
    arguments = [jnp.asarray(x) for x in (hidden_bad, head_vd, target_ba, np.array([64]))]
    got_ba = jax.jit(token_logps)(*arguments)
    np.testing.assert_allclose(got_ba[0], want_a, rtol=0, atol=4e-6)
