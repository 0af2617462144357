# SPDX-License-Identifier: Apache-2.0
"""How well something trivial tells chosen from rejected: length, single words, how answers begin.

A model learns the easiest rule that fits. If one of these fits nearly all pairs, that is the rule.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from alignax.data.languages import language

BUCKETS = 1 << 14
"""Hashed words of the classifier."""

FOLDS, STEPS, RATE, DECAY = 5, 80, 0.5, 1e-3
SAMPLE = 3000
"""Pairs that the classifier and the language mix look at, at most."""

_IM, _NOT = r"i(?:['’]?m| am)", r"(?:can['’]?t|cannot|can not|won['’]?t)"
REFUSAL = re.compile(
    rf"\W*(?:(?:{_IM} )?(?:really |very |so )?sorry|i apologi[sz]e|i {_NOT}|as an ai"
    rf"|{_IM} (?:just )?an ai|{_IM} unable)",
    re.IGNORECASE,
)
"""How answers begin that refuse."""

_WORD = re.compile(r"[^\W_]+|[^\w\s]")


def length_bias(ours: np.ndarray, theirs: np.ndarray) -> dict[str, Any]:
    """Accuracy of 'the longer answer is chosen' over the pairs that differ in length.

    Returns:
        ``accuracy``, its 95 % interval (Wilson) ``low`` and ``high``, and ``n``.
    """
    differ = ours != theirs
    count, hits = int(differ.sum()), int((ours > theirs).sum())
    return {"accuracy": round(hits / count, 4) if count else None, **wilson(hits, count)}


def wilson(hits: int, count: int) -> dict[str, Any]:
    """The 95 % interval of a share (Wilson 1927)."""
    if not count:
        return {"low": None, "high": None, "n": 0}
    z, share = 1.96, hits / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * np.sqrt(share * (1 - share) / count + z * z / (4 * count**2))
    return {"low": round(middle - half, 4), "high": round(middle + half, 4), "n": count}


def bag_of_words(pairs: Sequence[tuple[str, str]], *, seed: int = 0) -> dict[str, Any]:
    """Cross-validated accuracy of a linear classifier on the words of the two answers.

    Each pair is the difference of its sides' word shares, so length plays little part; the score is
    antisymmetric, and a pair is right when chosen scores higher (ties count half). Duplicates must
    be out, or the folds share rows.

    Returns:
        ``accuracy``, ``low``, ``high``, ``n``, and the ``words`` that weigh most on each side.
    """
    if len(pairs) < 10 * FOLDS:
        return {"accuracy": None, "low": None, "high": None, "n": len(pairs), "words": {}}
    features, names = _features(pairs)
    scores = _cross_fitted(features, seed)
    right = float((scores > 0).sum() + 0.5 * (scores == 0).sum())
    weights = _fit(features)
    order = np.argsort(weights)
    words = {
        "chosen": [names[i] for i in order[::-1][:8] if i in names],
        "rejected": [names[i] for i in order[:8] if i in names],
    }
    interval = wilson(round(right), len(pairs))
    return {"accuracy": round(right / len(pairs), 4), **interval, "words": words}


def _features(pairs: Sequence[tuple[str, str]]) -> tuple[Any, dict[int, str]]:
    """Make [n, words] of differences in square roots of word shares, sparse; and the words."""
    from scipy.sparse import csr_matrix

    vocabulary: dict[str, int] = {}
    said = [tuple(Counter(_words(side)) for side in pair) for pair in pairs]
    counts = Counter(word for sides in said for side in sides for word in side)
    for word, found in counts.most_common(BUCKETS):
        if found > 2:
            vocabulary[word] = len(vocabulary)
    values, columns, ends = [], [], [0]
    for sides in said:
        row: dict[int, float] = {}
        for sign, words in zip((1.0, -1.0), sides, strict=True):
            known = {vocabulary[word]: n for word, n in words.items() if word in vocabulary}
            total = max(sum(known.values()), 1)
            for place, times in known.items():
                row[place] = row.get(place, 0.0) + sign * math.sqrt(times / total)
        columns += row.keys()
        values += row.values()
        ends.append(len(columns))
    shape = (len(pairs), max(len(vocabulary), 1))
    matrix = csr_matrix((np.array(values), np.array(columns, np.int64), np.array(ends)), shape)
    return matrix, {place: word for word, place in vocabulary.items()}


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _fit(features: Any) -> np.ndarray:
    """Logistic regression without intercept on pair differences, all labelled 1."""
    weights = np.zeros(features.shape[1])
    momentum = np.zeros_like(weights)
    scale = features.shape[0] / 20
    for _ in range(STEPS):
        wrong = 1 / (1 + np.exp(np.clip(features @ weights, -30, 30)))
        gradient = features.T @ wrong / scale - DECAY * weights
        momentum = 0.9 * momentum + gradient
        weights += RATE * momentum
    return weights


def _cross_fitted(features: Any, seed: int) -> np.ndarray:
    """[n] scores of chosen over rejected, each by a classifier that has not seen the pair."""
    count = features.shape[0]
    folds = np.random.default_rng(seed).permutation(count) % FOLDS
    scores = np.zeros(count)
    for fold in range(FOLDS):
        scores[folds == fold] = features[folds == fold] @ _fit(features[folds != fold])
    return scores


def suspicion(pairs: Sequence[tuple[str, str]], *, seed: int = 0) -> np.ndarray:
    """[n] how much a cross-fitted classifier doubts each label: rejected over chosen."""
    return -_cross_fitted(_features(pairs)[0], seed)


def constant_openings(
    openings: np.ndarray, texts: Any, *, least: float = 0.1, ratio: float = 4.0
) -> list[dict[str, Any]]:
    """Find beginnings of answers that one side has and the other has not.

    Args:
        openings: [n, 2] hashes of how chosen and rejected begin.
        texts: (row, side) → the opening's text.
        least: Share of the pairs from which it counts.
        ratio: Times that it must be more frequent than on the other side.
    """
    found = []
    for side, name in enumerate(("chosen", "rejected")):
        values, first, counts = np.unique(openings[:, side], return_index=True, return_counts=True)
        for place in np.argsort(-counts)[:5]:
            there = int((openings[:, 1 - side] == values[place]).sum())
            count = int(counts[place])
            if count >= max(least * len(openings), 5) and count > ratio * there:
                text = texts(int(first[place]), side)
                found.append({"side": name, "text": text, "rows": count, "other_side": there})
    return found


def refusals(pairs: Sequence[tuple[str, str]]) -> dict[str, float]:
    """Share of refusals on each side."""
    count = max(len(pairs), 1)
    return {
        name: round(sum(bool(REFUSAL.match(pair[side])) for pair in pairs) / count, 4)
        for side, name in enumerate(("chosen", "rejected"))
    }


def language_mix(triples: Sequence[tuple[str, str, str]]) -> dict[str, Any]:
    """Languages of prompts and answers, and pairs whose answers are in other ones than the prompt.

    Texts that are too short to tell are left out of the comparison.
    """
    mix: dict[str, Counter[str]] = {"prompt": Counter(), "chosen": Counter(), "rejected": Counter()}
    differs = Counter({"chosen": 0, "rejected": 0})
    for triple in triples:
        spoken = [language(text) for text in triple]
        for name, found in zip(mix, spoken, strict=True):
            mix[name][found] += 1
        for name, found in zip(("chosen", "rejected"), spoken[1:], strict=True):
            differs[name] += found != spoken[0] and "unclear" not in (found, spoken[0])
    return {
        **{name: dict(found.most_common(8)) for name, found in mix.items()},
        "differs_from_prompt": dict(differs),
    }
