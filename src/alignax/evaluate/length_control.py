# SPDX-License-Identifier: Apache-2.0
"""Verdicts, answer lengths and prompt difficulties → the win rate at equal length.

The model of Dubois et al. 2024 (arXiv 2404.04475): P(win) = σ(φ tanh(Δ/s) + ψ d + θ), with Δ the
baseline's length minus the model's, s its sample standard deviation and d the prompt's difficulty.
At equal length the first term is gone: the length-controlled win rate is the mean of σ(ψ d + θ).
"""

from typing import NamedTuple

import numpy as np

STEPS = 200
TOLERANCE = 1e-10

ALPACA_PRIOR = ((-1.85, 0.7, 0.0), (7.0, 10.0, 1e-3))
"""Centre and precision of φ, ψ, θ when AlpacaEval's coefficients are fitted here.

The official fit adds the verdicts on two answerers that were told to be verbose and concise, which
holds φ and ψ near values that they share. These figures stand in for those verdicts: they make the
stationary point agree with the published coefficients of three models. A fourth fit, of other
verdicts (alpaca-7b against text_davinci_003), is 0.3 points from its published figure.
"""

ALPACA_PRIOR_BLIND = ((-1.0, 0.0), (50.0, 1e-3))
"""The same for φ and θ when the prompts' difficulties are not at hand."""

WEAK_PRIOR = ((0.0, 0.0), (1.0, 1e-3))
"""φ and θ of any other judge: only keeps the estimate finite."""


class Coefficients(NamedTuple):
    """Coefficients of length, difficulty and the model itself (φ, ψ, θ)."""

    length: float
    difficulty: float
    model: float


def length_feature(lengths: np.ndarray) -> np.ndarray | None:
    """Turn [n, 2] lengths (baseline, model) into tanh(Δ/s); None if they are unknown or equal.

    As in the official tool the spread is the sample's, over all prompts given.
    """
    gap = lengths[:, 0] - lengths[:, 1]
    if len(gap) < 2 or np.isnan(gap).any():
        return None
    spread = float(gap.std(ddof=1))
    return np.tanh(gap / spread) if spread > 0 else None


def at_equal_length(weights: Coefficients, difficulty: np.ndarray) -> float:
    """Win rate in per cent at equal length, averaged over prompts of the given difficulties."""
    return 100 * float(_sigmoid(weights.model + weights.difficulty * difficulty).mean())


def fit(
    features: np.ndarray, wins: np.ndarray, *, centre: np.ndarray, precision: np.ndarray
) -> np.ndarray:
    """Fit a logistic regression to wins between 0 and 1 under a Gaussian prior.

    Maximises Σ w log p + (1-w) log(1-p) - ½ (c - centre)ᵀ precision (c - centre) by Newton's
    method with step halving. A positive definite precision makes the answer finite and unique even
    where the data alone would not.

    Args:
        features: [n, k].
        wins: [n] shares won.
        centre: [k] mean of the prior.
        precision: [k, k] inverse covariance of the prior.
    """

    def value(c: np.ndarray) -> float:
        z, off = features @ c, c - centre
        return float((wins * z - np.logaddexp(0.0, z)).sum() - off @ precision @ off / 2)

    here = np.array(centre, np.float64)
    for _ in range(STEPS):
        p = _sigmoid(features @ here)
        slope = features.T @ (wins - p) - precision @ (here - centre)
        curve = (features * (p * (1 - p))[:, None]).T @ features + precision
        step = np.linalg.solve(curve, slope)
        size, before = 1.0, value(here)
        while value(here + size * step) < before - TOLERANCE and size > 1e-6:
            size /= 2
        here = here + size * step
        if np.abs(size * step).max() < TOLERANCE:
            break
    return here


def fitted(
    wins: np.ndarray,
    lengths: np.ndarray,
    difficulty: np.ndarray | None = None,
    *,
    prior: tuple[tuple[float, ...], tuple[float, ...]],
) -> float | None:
    """Estimate the length-controlled win rate in per cent by fitting the coefficients.

    Args:
        wins: [n] shares won, NaN where there is no verdict; such prompts still count in the mean.
        lengths: [n, 2] of the baseline's and the model's answers.
        difficulty: [n], or None to leave that term out.
        prior: Centre and precision of each coefficient, in the order φ, ψ (if used), θ.

    Returns:
        None if it cannot be fitted: no verdicts, or lengths unknown or of equal difference.
    """
    length, known = length_feature(lengths), ~np.isnan(wins)
    if length is None or not known.any():
        return None
    columns = [length, np.ones(len(wins))]
    if difficulty is not None:
        columns.insert(1, difficulty)
    centre, precision = (np.array(part) for part in prior)
    weights = fit(
        np.stack(columns, 1)[known], wins[known], centre=centre, precision=np.diag(precision)
    )
    slope = weights[1] if difficulty is not None else 0.0
    unused = np.zeros(1) if difficulty is None else difficulty
    return at_equal_length(Coefficients(weights[0], slope, weights[-1]), unused)


def _sigmoid(z: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0.0, -z))
