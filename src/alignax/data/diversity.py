# SPDX-License-Identifier: Apache-2.0
"""How many different things the rejected answers say.

``distinct`` is the share of distinct answers after near-duplicates are put together: clusters over
answers. ``distinct_2`` is the share of different word pairs among all word pairs. ``similarity`` is
the mean over random pairs of answers of their signatures' agreement (an estimate of the Jaccard
similarity of 5-character shingles; no embeddings).
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from alignax.data import near

GOAL = 0.80
"""Wanted share of distinct rejected answers."""

PAIRS = 20_000
_WORD = re.compile(r"\w+")


def diversity(signed: np.ndarray, texts: Sequence[str], *, seed: int = 0) -> dict[str, Any]:
    """Measure it.

    Args:
        signed: [n, p] signatures of all rejected answers.
        texts: Some of the answers, for the word pairs.
        seed: Of the random pairs.
    """
    count = len(signed)
    if not count:
        return {"distinct": None, "goal": GOAL, "n": 0}
    groups = near.clusters(signed)
    grams = [pair for text in texts for pair in _pairs_of_words(text)]
    generator = np.random.default_rng(seed)
    one, other = generator.integers(0, count, (2, PAIRS))
    apart = one != other
    alike = np.array(
        [(signed[a] == signed[b]).mean() for a, b in zip(one[apart], other[apart], strict=True)]
    )
    return {
        "distinct": round(len(np.unique(groups)) / count, 4),
        "goal": GOAL,
        "distinct_2": round(len(set(grams)) / len(grams), 4) if grams else None,
        "similarity": round(float(alike.mean()), 4) if len(alike) else None,
        "n": count,
    }


def _pairs_of_words(text: str) -> list[tuple[str, str]]:
    words = _WORD.findall(text.casefold())
    return list(zip(words, words[1:], strict=False))
