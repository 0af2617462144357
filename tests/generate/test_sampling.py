# SPDX-License-Identifier: Apache-2.0
"""Limits by hand, log-probs by hand, and draws that belong to their row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alignax.generate.choice import Choice
from alignax.generate.sampling import (
    Rule,
    Settings,
    choose,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    penalise,
    row_keys,
)

LOGITS = jnp.log(jnp.asarray([[0.1, 0.4, 0.2, 0.3], [0.25, 0.25, 0.25, 0.25]]))


def kept(logits_sv):
    """Which tokens are still possible."""
    return np.isfinite(np.asarray(logits_sv)).tolist()


def keys(seed, rows):
    """Keys of some rows under one seed."""
    return row_keys(jnp.full(len(rows), seed, jnp.uint32), jnp.asarray(rows, jnp.uint32))


def drawn(logits_sv, choice, seed=0):
    """Choose with one setting for all rows."""
    count = len(logits_sv)
    values = (
        choice.temperature, choice.top_k or 0, choice.top_p or 1.0, choice.min_p or 0.0,
        choice.penalty,
    )  # fmt: skip
    settings = Settings(*(jnp.full(count, value) for value in values))
    seen = jnp.zeros((count, 0), bool)
    rows = range(count)
    return choose(logits_sv, keys(seed, list(rows)), Rule.covering(choice), settings, seen)


def test_top_k_keeps_the_likeliest_and_ties():
    """Four equal tokens tie with the second; all stay. Rows may differ in k; 0 keeps all."""
    assert kept(keep_top_k(LOGITS, jnp.asarray([2, 2]))) == [[False, True, False, True], [True] * 4]
    assert kept(keep_top_k(LOGITS, jnp.asarray([1, 9])))[0] == [False, True, False, False]
    assert kept(keep_top_k(LOGITS, jnp.asarray([9, 0]))) == [[True] * 4] * 2


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
    assert kept(keep_top_p(LOGITS[:1], jnp.asarray([p]))) == [want]


def test_limits_equal_sorting():
    """On random rows with ties, infinities and both signs."""
    rng = np.random.default_rng(0)
    logits = np.round(rng.normal(0, 3, (40, 97)), 1).astype(np.float32)
    logits[:, ::9] = -np.inf
    counts = rng.integers(1, 97, 40)
    want = [row >= np.sort(row)[::-1][k - 1] for row, k in zip(logits, counts, strict=True)]
    got = np.asarray(keep_top_k(jnp.asarray(logits), jnp.asarray(counts)))
    np.testing.assert_array_equal(got, np.where(want, logits, -np.inf))
    shares = rng.uniform(0.05, 0.95, 40).astype(np.float32)
    for row, p, got in zip(
        logits,
        shares,
        np.asarray(keep_top_p(jnp.asarray(logits), jnp.asarray(shares))),
        strict=True,
    ):
        weights = np.exp(row.astype(np.float64))
        best = np.sort(row)[::-1]
        mass = np.cumsum(np.sort(weights)[::-1]) / weights.sum()
        np.testing.assert_array_equal(
            np.isfinite(got), (row >= best[np.argmax(mass >= p)]) & np.isfinite(row)
        )


def test_min_p_is_a_share_of_the_likeliest():
    """Half of 0.4 is 0.2: three tokens are at or above it; 0 keeps all."""
    assert kept(keep_min_p(LOGITS[:1], jnp.asarray([0.499]))) == [[False, True, True, True]]
    assert kept(keep_min_p(LOGITS[:1], jnp.asarray([0.51]))) == [[False, True, False, True]]
    assert kept(keep_min_p(LOGITS[:1], jnp.asarray([0.0]))) == [[True] * 4]


def test_penalty_lowers_what_was_seen():
    """3 / 2 and -1 · 2 for seen tokens; others stay."""
    logits = jnp.asarray([[3.0, -1.0, 3.0, -1.0]])
    seen = jnp.asarray([[True, True, False, False]])
    assert penalise(logits, seen, jnp.asarray([2.0])).tolist() == [[1.5, -2.0, 3.0, -1.0]]


def test_greedy_takes_the_likeliest_and_tells_its_logp():
    """The log-prob is the model's own, ln 0.4; equal tokens give the first."""
    ids, logps = drawn(LOGITS, Choice())
    assert ids.tolist() == [1, 0]
    np.testing.assert_allclose(logps, np.log([0.4, 0.25]), rtol=1e-6)


def test_logp_is_untempered_and_unrestricted():
    """Top-k of one forces the token; its log-prob stays that of the whole distribution."""
    ids, logps = drawn(LOGITS[:1], Choice(7.0, top_k=1), seed=3)
    assert ids.tolist() == [1]
    np.testing.assert_allclose(logps, np.log([0.4]), rtol=1e-6)


def test_frequencies_follow_the_tempered_distribution():
    """At temperature 0.5 probabilities are squared and renormalised: 1, 16, 4, 9 of 30."""
    count = 4000
    logits = jnp.broadcast_to(LOGITS[:1], (count, 4))
    share = np.bincount(np.asarray(drawn(logits, Choice(0.5))[0]), minlength=4) / count
    np.testing.assert_allclose(share, np.asarray([1, 16, 4, 9]) / 30, rtol=0, atol=0.03)


def test_rows_may_choose_differently():
    """A greedy row beside one that is drawn from all tokens."""
    count = 400
    logits = jnp.broadcast_to(LOGITS[:1], (count, 4))
    hot = jnp.asarray([0.0, 1.0] * (count // 2))
    settings = Settings(hot, jnp.zeros(count), jnp.ones(count), jnp.zeros(count), jnp.ones(count))
    rule = Rule.covering(Choice(), Choice(1.0))
    ids, _ = choose(
        logits, keys(0, list(range(count))), rule, settings, jnp.zeros((count, 0), bool)
    )
    assert set(ids[::2].tolist()) == {1}
    assert set(ids[1::2].tolist()) == {0, 1, 2, 3}


def test_the_rule_is_no_wider_than_needed():
    assert Rule.covering(Choice()) == Rule(greedy=True, limits=False, penalty=False)
    assert Rule.covering(Choice(1.0, top_p=1.0)) == Rule(greedy=False)
    assert Rule.covering(Choice(1.0, min_p=0.1), Choice(penalty=1.1)) == Rule(False, True, True)


def test_a_row_draws_the_same_wherever_it_lies():
    """Keys come from (seed, row), not from the place in the batch."""
    first = jax.random.key_data(keys(5, [4, 2, 0]))
    again = jax.random.key_data(keys(5, [0, 4]))
    np.testing.assert_array_equal(first[::-2], again)
    other = jax.random.key_data(keys(6, [0]))
    assert (other != again[:1]).any()
