# SPDX-License-Identifier: Apache-2.0
"""Limits by hand, log-probs by hand, and draws that belong to their row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alignax.generate.sampling import Rule, choose, keep_top_k, keep_top_p, row_keys

LOGITS = jnp.log(jnp.asarray([[0.1, 0.4, 0.2, 0.3], [0.25, 0.25, 0.25, 0.25]]))


def kept(logits_bv):
    """Which tokens are still possible."""
    return np.isfinite(np.asarray(logits_bv)).tolist()


def test_top_k_keeps_the_likeliest_and_ties():
    """Four equal tokens tie with the second; all stay."""
    assert kept(keep_top_k(LOGITS, 2)) == [[False, True, False, True], [True] * 4]
    assert kept(keep_top_k(LOGITS, 9)) == [[True] * 4] * 2


@pytest.mark.parametrize(
    ("p", "want"),
    [
        (0.05, [False, True, False, False]),
        (0.39, [False, True, False, False]),
        (0.41, [False, True, False, True]),
        (0.71, [False, True, True, True]),
        (1.0, [True, True, True, True]),
    ],
)
def test_top_p_keeps_the_smallest_set_that_reaches_p(p, want):
    """The sorted probabilities are 0.4, 0.3, 0.2, 0.1."""
    assert kept(keep_top_p(LOGITS[:1], jnp.float32(p))) == [want]


def test_greedy_takes_the_likeliest_and_tells_its_logp():
    """The log-prob is the model's own, ln 0.4; equal tokens give the first."""
    ids, logps = choose(LOGITS, row_keys(0, jnp.arange(2)), Rule(), jnp.float32(0), jnp.float32(1))
    assert ids.tolist() == [1, 0]
    np.testing.assert_allclose(logps, np.log([0.4, 0.25]), rtol=1e-6)


def test_logp_is_untempered_and_unrestricted():
    """Top-k of one forces the token; its log-prob stays that of the whole distribution."""
    rule = Rule(greedy=False, top_k=1)
    ids, logps = choose(
        LOGITS[:1], row_keys(3, jnp.arange(1)), rule, jnp.float32(7), jnp.float32(1)
    )
    assert ids.tolist() == [1]
    np.testing.assert_allclose(logps, np.log([0.4]), rtol=1e-6)


def test_frequencies_follow_the_tempered_distribution():
    """At temperature 0.5 probabilities are squared and renormalised: 1, 16, 4, 9 of 30."""
    count = 4000
    logits = jnp.broadcast_to(LOGITS[:1], (count, 4))
    rule = Rule(greedy=False)
    keys = row_keys(0, jnp.arange(count))
    ids, _ = choose(logits, keys, rule, jnp.float32(0.5), jnp.float32(1))
    share = np.bincount(np.asarray(ids), minlength=4) / count
    np.testing.assert_allclose(share, np.asarray([1, 16, 4, 9]) / 30, rtol=0, atol=0.03)


def test_a_row_draws_the_same_wherever_it_lies():
    """Keys come from (seed, row), not from the place in the batch."""
    keys = row_keys(5, jnp.asarray([4, 2, 0]))
    again = row_keys(5, jnp.asarray([0, 4]))
    np.testing.assert_array_equal(jax.random.key_data(keys[::-2]), jax.random.key_data(again))
    other = row_keys(6, jnp.asarray([0]))
    assert (jax.random.key_data(other) != jax.random.key_data(again)[:1]).any()
