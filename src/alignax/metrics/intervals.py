# SPDX-License-Identifier: Apache-2.0
"""Per-item values → a score with its 95 % interval."""

import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from alignax.records import Score

CONFIDENCE = 0.95


def wilson(successes: int, n: int) -> Score:
    """Estimate a rate with Wilson's score interval (Wilson 1927).

    Unlike the textbook interval it stays within 0 … 1 and is not empty at 0 or ``n`` successes.

    >>> score = wilson(9, 10)
    >>> round(score.low, 4), round(score.high, 4)
    (0.5958, 0.9821)
    """
    if n == 0:
        return Score(math.nan, 0.0, 1.0, 0)
    z = float(special.ndtri(0.5 + CONFIDENCE / 2))
    rate, scale = successes / n, 1 + z * z / n
    centre = (rate + z * z / (2 * n)) / scale
    half = z / scale * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    return Score(rate, max(0.0, centre - half), min(1.0, centre + half), n)


def mean_interval(values: Sequence[float] | np.ndarray) -> Score:
    """Estimate a mean with Student's t interval.

    One value alone says nothing about the spread: the interval is then unbounded.
    """
    sample = np.asarray(values, np.float64).ravel()
    n = len(sample)
    if n == 0:
        return Score(math.nan, -math.inf, math.inf, 0)
    mean = float(sample.mean())
    if n == 1:
        return Score(mean, -math.inf, math.inf, 1)
    half = float(special.stdtrit(n - 1, 0.5 + CONFIDENCE / 2) * sample.std(ddof=1) / math.sqrt(n))
    return Score(mean, mean - half, mean + half, n)


def paired(before: Sequence[float] | np.ndarray, after: Sequence[float] | np.ndarray) -> Score:
    """Estimate the mean change of the same items, measured twice."""
    return mean_interval(np.asarray(after, np.float64) - np.asarray(before, np.float64))


def bootstrap(
    values: Sequence[float] | np.ndarray, *, resamples: int = 4000, seed: int = 0
) -> Score:
    """Estimate a mean with the percentile bootstrap (Efron 1979); items are resampled whole."""
    sample = np.asarray(values, np.float64).ravel()
    n = len(sample)
    if n == 0:
        return Score(math.nan, -math.inf, math.inf, 0)
    generator = np.random.default_rng(seed)
    means = np.array([generator.choice(sample, n).mean() for _ in range(resamples)])
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(means, [tail, 100 - tail])
    return Score(float(sample.mean()), float(low), float(high), n)


def sign_test(wins: int, losses: int) -> float:
    """Two-sided p-value of the exact sign test: how surprising the split would be for a fair coin.

    Ties are left out. 1.0 when nothing was decided.

    >>> sign_test(9, 1)
    0.021484375
    """
    n = wins + losses
    tail = float(special.bdtr(min(wins, losses), n, 0.5)) if n else 1.0
    return min(1.0, 2 * tail)
