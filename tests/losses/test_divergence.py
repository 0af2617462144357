# SPDX-License-Identifier: Apache-2.0
"""Chunked KL, both ways, and sums of squared probabilities, against plain oracles."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alignax.losses.divergence import token_kl, token_squares
from tests.losses.test_logprobs import COUNT_B, SLOTS, WEIGHTS_BA, arrays, full_logits

USED_BA = jnp.arange(SLOTS)[None] < COUNT_B[:, None]


@pytest.mark.parametrize("forward", [False, True])
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("chunk", [3, 256])
def test_kl_and_its_gradient_equal_the_plain_formula(chunk, softcap, forward):
    ours_bad, our_head_vd, _ = arrays(0)
    theirs_bad, their_head_vd, _ = arrays(1)

    def oracle(ours_bad, our_head_vd):
        ours_bav = jax.nn.log_softmax(full_logits(ours_bad, our_head_vd, softcap))
        theirs_bav = jax.nn.log_softmax(full_logits(theirs_bad, their_head_vd, softcap))
        p_bav, q_bav = (theirs_bav, ours_bav) if forward else (ours_bav, theirs_bav)
        kl_ba = jnp.where(USED_BA, (jnp.exp(p_bav) * (p_bav - q_bav)).sum(-1), 0.0)
        return (WEIGHTS_BA * kl_ba).sum(), kl_ba

    def chunked(ours_bad, our_head_vd):
        kl_ba = token_kl(
            ours_bad, theirs_bad, our_head_vd, their_head_vd, COUNT_B,
            forward=forward, softcap=softcap, chunk=chunk,
        )  # fmt: skip
        return (WEIGHTS_BA * kl_ba).sum(), kl_ba

    (_, want_ba), want = jax.value_and_grad(oracle, (0, 1), has_aux=True)(ours_bad, our_head_vd)
    (_, got_ba), got = jax.value_and_grad(chunked, (0, 1), has_aux=True)(ours_bad, our_head_vd)
    np.testing.assert_allclose(got_ba, want_ba, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got[0], want[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(got[1], want[1], rtol=1e-4, atol=1e-4)


def test_kl_is_zero_between_equals_and_the_reference_gets_no_gradient():
    hidden_bad, head_vd, _ = arrays()
    kl_ba = token_kl(hidden_bad, hidden_bad, head_vd, head_vd, COUNT_B)
    np.testing.assert_allclose(kl_ba, 0, atol=1e-5)
    gradients = jax.grad(lambda h, w: token_kl(hidden_bad, h, head_vd, w, COUNT_B).sum(), (0, 1))(
        hidden_bad * 1.5, head_vd
    )
    for gradient in gradients:
        np.testing.assert_array_equal(gradient, 0)


def test_squares_equal_the_plain_formula_and_carry_no_gradient():
    hidden_bad, head_vd, _ = arrays(0)

    def total(hidden_bad):
        squares_ba = token_squares(hidden_bad, head_vd, COUNT_B, chunk=3)
        return squares_ba.sum(), squares_ba

    (_, got_ba), gradient = jax.value_and_grad(total, has_aux=True)(hidden_bad)
    p_bav = jax.nn.softmax(full_logits(hidden_bad, head_vd))
    want_ba = jnp.where(USED_BA, jnp.log(jnp.square(p_bav).sum(-1)), 0.0)
    np.testing.assert_allclose(got_ba, want_ba, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(gradient, 0)


def test_memory_does_not_grow_with_the_answer_places():
    """All logits of one side would be 8 times a chunk; policy and reference keep a few chunks."""
    slots, width, vocabulary, chunk = 512, 8, 4096, 64
    hidden = jax.ShapeDtypeStruct((1, slots, width), jnp.float32)
    head = jax.ShapeDtypeStruct((vocabulary, width), jnp.float32)
    count = jax.ShapeDtypeStruct((1,), jnp.int32)
    step = jax.jit(jax.grad(lambda *args: token_kl(*args, forward=True, chunk=chunk).sum()))
    compiled = step.lower(hidden, hidden, head, head, count).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 6 * chunk * vocabulary * 4
