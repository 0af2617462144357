# SPDX-License-Identifier: Apache-2.0
"""Summed NLL → perplexity; generated texts → how much they repeat themselves."""

import math
from collections.abc import Iterable

from alignax.records import Weighted


def perplexity(nll: Weighted) -> float:
    """Exponentiate the mean NLL per token; infinite where it overflows."""
    mean = nll.mean
    return math.exp(mean) if not mean > math.log(1e300) else math.inf


def distinct(texts: Iterable[str], *, size: int = 2) -> Weighted:
    """Count distinct word n-grams among all (Li et al. 2016, "distinct-n").

    N-grams are counted per text, so that many texts do not look repetitive for being many.

    >>> distinct(["so it goes", "a a a a"]).mean
    0.6
    """
    different, total = 0, 0
    for text in texts:
        words = text.split()
        grams = [tuple(words[i : i + size]) for i in range(len(words) - size + 1)]
        different += len(set(grams))
        total += len(grams)
    return Weighted(different, total)
