# SPDX-License-Identifier: Apache-2.0
"""Intervals against published tables and simulated coverage."""

import math

import numpy as np
import pytest

from alignax.metrics.intervals import mean_interval, paired, wilson


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    # z = 1.959964: (p + z²/2n ± z·sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n)
    [
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (5, 10, 0.2366, 0.7634),
        (81, 263, 0.2553, 0.3662),  # Newcombe 1998, table I
    ],
)
def test_wilson(successes, n, low, high):
    score = wilson(successes, n)
    np.testing.assert_allclose([score.low, score.high], [low, high], atol=5e-5)
    assert score.value == successes / n
    assert score.n == n


def test_wilson_of_nothing_is_unknown():
    score = wilson(0, 0)
    assert math.isnan(score.value)
    assert (score.low, score.high, score.n) == (0.0, 1.0, 0)


def test_mean_interval_by_hand():
    """1, 2, 3, 4: mean 2.5, s = sqrt(5/3), t(3) = 3.182446, half = t·s/2."""
    score = mean_interval([1.0, 2.0, 3.0, 4.0])
    half = 3.182446 * math.sqrt(5 / 3) / 2
    np.testing.assert_allclose(
        [score.value, score.low, score.high], [2.5, 2.5 - half, 2.5 + half], rtol=1e-6
    )


def test_too_few_values_give_no_false_certainty():
    assert mean_interval([7.0]).low == -math.inf
    assert math.isnan(mean_interval([]).value)
    assert mean_interval([]).n == 0


def test_the_interval_holds_the_truth_in_95_of_100_cases():
    samples = np.random.default_rng(0).normal(3.0, 2.0, size=(2000, 12))
    scores = [mean_interval(sample) for sample in samples]
    share = np.mean([score.low <= 3.0 <= score.high for score in scores])
    assert 0.94 < share < 0.96


def test_pairing_removes_the_spread_between_items():
    before = np.linspace(-50.0, 50.0, 20)
    after = before + 1.0 + 0.01 * np.cos(before)
    score = paired(before, after)
    assert 0.99 < score.low < score.value < score.high < 1.01
