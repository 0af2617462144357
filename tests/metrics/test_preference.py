# SPDX-License-Identifier: Apache-2.0
"""Preference metrics by hand, and merging of parts."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from alignax.metrics.drift import displaced, drift_metrics, kl_band
from alignax.metrics.preference import preference_metrics
from alignax.metrics.text import distinct, perplexity
from alignax.metrics.weighted import means, merge
from alignax.records import PairLogps, Weighted

# Δ chosen: 1, -3, 0; Δ rejected: -1, -1, 0; so Δ margin: 2, -2, 0 and the last is a tie.
PAIRS = PairLogps(
    policy_chosen=jnp.array([-10.0, -8.0, -4.0]),
    policy_rejected=jnp.array([-12.0, -6.0, -2.0]),
    reference_chosen=jnp.array([-11.0, -5.0, -4.0]),
    reference_rejected=jnp.array([-11.0, -5.0, -2.0]),
    chosen_tokens=jnp.array([4, 5, 1]),
    rejected_tokens=jnp.array([2, 5, 1]),
)


def rewards_of(pair):
    """Rewards at β = 0.5."""
    chosen = 0.5 * (pair.policy_chosen - pair.reference_chosen)
    return chosen, 0.5 * (pair.policy_rejected - pair.reference_rejected)


def measure(pair, valid):
    """Divide the metrics of some pairs."""
    return means(preference_metrics(pair, jnp.asarray(valid), rewards=rewards_of(pair)))


def test_values_by_hand():
    expected = {
        "reward_chosen": 0.5 * (1 - 3 + 0) / 3,
        "reward_rejected": 0.5 * (-1 - 1 + 0) / 3,
        "margin": 0.0,
        "accuracy": 1 / 3,
        "ties": 1 / 3,
        "chosen_logratio": -2 / 10,
        "rejected_logratio": -2 / 8,
        "chosen_logp": -22 / 10,
        "rejected_logp": -20 / 8,
    }
    got = measure(PAIRS, [True, True, True])
    assert set(got) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, atol=1e-6, err_msg=name)


def test_parts_merge_to_the_whole():
    whole = preference_metrics(PAIRS, jnp.ones(3, bool), rewards=rewards_of(PAIRS))
    parts = []
    for part, count in ((slice(0, 1), 1), (slice(1, 3), 2)):
        some = PairLogps(*[x[part] for x in PAIRS[:6]])
        ones = jnp.ones(count, bool)
        parts.append(preference_metrics(some, ones, rewards=rewards_of(some)))
    merged = merge(*parts)
    for name, value in whole.items():
        np.testing.assert_allclose(merged[name].total, value.total, rtol=1e-6, err_msg=name)
        np.testing.assert_allclose(merged[name].weight, value.weight, err_msg=name)


def test_unused_slots_do_not_count():
    dirty = PairLogps(*[x.at[1].set(jnp.nan) for x in PAIRS[:4]], *PAIRS[4:6])
    got = measure(dirty, [True, False, True])
    np.testing.assert_allclose(got["margin"], 0.5, rtol=1e-6)
    np.testing.assert_allclose(got["chosen_logratio"], 1 / 5, rtol=1e-6)


def test_an_empty_batch_has_weight_zero():
    metrics = preference_metrics(PAIRS, jnp.zeros(3, bool), rewards=rewards_of(PAIRS))
    assert all(float(value.weight) == 0 for value in metrics.values())
    assert all(math.isnan(value) for value in means(metrics).values())


def test_names_that_only_some_parts_hold_are_kept():
    merged = merge({"a": Weighted(1.0, 2.0)}, {"b": Weighted(3.0, 4.0)}, {"a": Weighted(5.0, 6.0)})
    assert merged == {"a": Weighted(6.0, 8.0), "b": Weighted(3.0, 4.0)}
    assert merge() == {}


def test_kl_is_averaged_over_tokens():
    kl, tokens = np.array([[0.4, 0.2], [0.0, 0.0]]), np.array([[4, 2], [0, 0]])
    np.testing.assert_allclose(drift_metrics(kl, tokens)["kl/token"].mean, 0.1)


@pytest.mark.parametrize(
    ("value", "band"),
    [(0.0, "below"), (0.0099, "below"), (0.01, "inside"), (0.1, "inside"), (0.11, "above")],
)
def test_the_band(value, band):
    assert kl_band(value) == band


def test_displacement_needs_both_signs():
    assert displaced(0.3, -0.01)
    assert not displaced(0.3, 0.01)
    assert not displaced(-0.3, -0.01)


def test_perplexity():
    """4 tokens at 1/2 and 4 at 1/8: mean NLL is 2 ln 2, perplexity 4."""
    nll = Weighted(4 * math.log(2) + 4 * math.log(8), 8)
    assert perplexity(nll) == pytest.approx(4.0)
    assert perplexity(Weighted(1e6, 1)) == math.inf
    assert math.isnan(perplexity(Weighted(0.0, 0)))


def test_distinct_counts_repeated_word_pairs():
    assert distinct(["a b a b a b"]) == Weighted(2, 5)
    assert distinct(["a b", "a b"]) == Weighted(2, 2)
    assert distinct(["a"]) == Weighted(0, 0)


def test_log_ratios_are_left_out_without_a_reference():
    metrics = preference_metrics(
        PAIRS, jnp.ones(3, bool), rewards=rewards_of(PAIRS), has_reference=False
    )
    assert not {name for name in metrics if "logratio" in name}
    assert float(metrics["chosen_logp"].total) == -22.0
