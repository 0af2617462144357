# SPDX-License-Identifier: Apache-2.0
"""Margins of pairs and a label of each → accuracy and margin by label."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from alignax.metrics.intervals import mean_interval, wilson


def by_label(labels: Sequence[str], margins: np.ndarray) -> dict[str, dict[str, Any]]:
    """Summarise the pairs of each label; the largest group first.

    Args:
        labels: [n] one label a pair.
        margins: [n] reward of chosen less reward of rejected; a tie counts as wrong.
    """
    names, place = np.unique(np.asarray(labels, object).astype(str), return_inverse=True)
    groups = {}
    for index in np.argsort(-np.bincount(place), kind="stable"):
        own = np.asarray(margins, np.float64)[place == index]
        accuracy, margin = wilson(int((own > 0).sum()), len(own)), mean_interval(own)
        groups[str(names[index])] = {
            "n": len(own),
            "accuracy": accuracy.value,
            "accuracy_low": accuracy.low,
            "accuracy_high": accuracy.high,
            "margin": margin.value,
            "margin_low": margin.low,
            "margin_high": margin.high,
        }
    return groups


def length_label(chosen_tokens: int, rejected_tokens: int) -> str:
    """Name which answer of a pair is clearly longer (by more than a tenth)."""
    if chosen_tokens > 1.1 * rejected_tokens:
        return "chosen longer"
    return "rejected longer" if rejected_tokens > 1.1 * chosen_tokens else "about equal"
