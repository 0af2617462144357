# SPDX-License-Identifier: Apache-2.0
"""Near-duplicates: MinHash signatures, bands that share them, and a look at the texts.

Signatures come from ``rensa``. Only they are kept for all rows (on disk, memory-mapped); candidates
are found by sorting one band after another, so memory is a few numbers a row.
"""

import mmap
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import SequenceMatcher

import numpy as np

SIZE = 5
"""Characters of a shingle."""

PERMUTATIONS, BANDS = 96, 24
"""Values of a signature, and bands of four: pairs of similarity 0.7 meet with 99.8 %."""

LIKE = 0.7
"""Similarity from which rows are near-duplicates: shared shingles over all shingles."""

PART = 0.6
"""Similarity that each part of a row (prompt, chosen, rejected) must have at least."""

SHORT = 120
"""Characters up to which parts are compared letter by letter."""

PREDECESSORS = 6
"""Earlier rows of a band that a row is compared with, the first one besides."""

SEED = 7
_WORDS = re.compile(r"[\W_]+")
_NUMBER = re.compile(r"\d+")
FACTOR = np.uint64(0x9E3779B97F4A7C15)
"""Odd, with bits all over: multiplying by it spreads what differs."""


def squeezed(text: str) -> str:
    """Keep letters and digits, in one case, with single spaces."""
    return _WORDS.sub(" ", text.casefold()).strip()


def signatures(texts: Sequence[str]) -> np.ndarray:
    """Sign squeezed texts: [n, PERMUTATIONS] uint32."""
    from rensa import RMinHash  # type: ignore[attr-defined]

    if not texts:
        return np.zeros((0, PERMUTATIONS), np.uint32)
    padded = [text.ljust(SIZE) for text in texts]
    flat = np.frombuffer("".join(padded).encode("utf-32-le", "replace"), np.uint32)
    count = len(flat) - SIZE + 1
    hashes = np.zeros(count, np.uint64)
    for offset in range(SIZE):
        hashes = hashes * FACTOR + flat[offset : offset + count].astype(np.uint64)
        hashes ^= hashes >> np.uint64(29)
    ends = np.cumsum([len(text) for text in padded])
    inside = np.ones(count, bool)
    for offset in range(1, SIZE):
        inside[ends[:-1] - offset] = False
    offsets = np.concatenate([[0], np.cumsum(np.array([len(t) for t in padded]) - SIZE + 1)])
    rows = RMinHash.digest_matrix_from_flat_token_hashes(
        hashes[inside], offsets.astype(np.uint64), PERMUTATIONS, SEED
    ).to_rows()
    return np.array(rows, np.uint32)


def candidates(signed: np.ndarray) -> Iterator[tuple[int, int]]:
    """Find pairs (earlier, later) that share a band and look alike by their signatures.

    Args:
        signed: [n, PERMUTATIONS] signatures, possibly memory-mapped.
    """
    found: set[tuple[int, int]] = set()
    width = PERMUTATIONS // BANDS
    for band in range(BANDS):
        keys = _keys(signed, band * width, width)
        order = np.argsort(keys, kind="stable")
        found.update(_within(signed, keys[order], order))
    yield from sorted(found, key=lambda pair: (pair[1], pair[0]))


def _keys(signed: np.ndarray, start: int, width: int) -> np.ndarray:
    """Hash one band of all rows, in parts, so that little of the file is in memory."""
    keys = np.empty(len(signed), np.uint64)
    for at in range(0, len(signed), 1 << 16):
        part = np.ascontiguousarray(signed[at : at + (1 << 16), start : start + width], np.uint64)
        mixed = np.zeros(len(part), np.uint64)
        for column in part.T:
            mixed = (mixed ^ column) * FACTOR
            mixed ^= mixed >> np.uint64(31)
        keys[at : at + len(part)] = mixed
        release(signed)
    return keys


def release(array: np.ndarray) -> None:
    """Let go of a memory-mapped file's pages; they stay on disk, or in the system's cache."""
    mapped = getattr(array, "_mmap", None)
    if mapped is not None and hasattr(mapped, "madvise"):
        mapped.madvise(mmap.MADV_DONTNEED)


def _within(signed: np.ndarray, keys: np.ndarray, order: np.ndarray) -> Iterator[tuple[int, int]]:
    """Compare rows of one band with the few before them and with the first."""
    new = np.concatenate([[True], keys[1:] != keys[:-1]])
    first = np.maximum.accumulate(np.where(new, np.arange(len(keys)), 0))
    place = np.arange(len(keys)) - first
    for back in (*range(1, PREDECESSORS + 1), 0):
        # back 0 stands for the first row of the band.
        later = np.flatnonzero(place > PREDECESSORS if back == 0 else place >= back)
        earlier = first[later] if back == 0 else later - back
        for at in range(0, len(later), 1 << 15):
            one, other = order[earlier[at : at + (1 << 15)]], order[later[at : at + (1 << 15)]]
            alike = (signed[one] == signed[other]).mean(1) >= LIKE - 0.12
            yield from zip(one[alike].tolist(), other[alike].tolist(), strict=True)
            release(signed)


def nearly_equal(ours: Sequence[str], theirs: Sequence[str]) -> bool:
    """Compare the squeezed parts of two rows.

    Every part must be alike, and all of them together; prompts must hold the same numbers, because
    exercises that differ in nothing else are different exercises.
    """
    if sorted(_NUMBER.findall(ours[0])) != sorted(_NUMBER.findall(theirs[0])):
        return False
    alike = []
    for one, other in zip(ours, theirs, strict=True):
        alike.append(similarity(one, other))
        if alike[-1] < PART:
            return False
    sizes = [max(len(one), len(other)) for one, other in zip(ours, theirs, strict=True)]
    return sum(a * s for a, s in zip(alike, sizes, strict=True)) >= LIKE * sum(sizes)


def similarity(one: str, other: str) -> float:
    """Share of common shingles; short texts are compared letter by letter where that gives more."""
    if one == other:
        return 1.0
    ours, theirs = _shingles(one), _shingles(other)
    shared = len(ours & theirs) / max(len(ours | theirs), 1)
    if min(len(one), len(other)) <= SHORT and max(len(one), len(other)) <= 2 * SHORT:
        letters = SequenceMatcher(None, one, other, autojunk=False).ratio()
        shared = max(shared, 2 * letters - 1)
    return shared


def _shingles(text: str) -> set[str]:
    return {text[i : i + SIZE] for i in range(max(len(text) - SIZE + 1, 1))}


def near_duplicates(
    signed: np.ndarray, parts: Callable[[int], Sequence[str]], skip: np.ndarray
) -> dict[int, int]:
    """Find rows that nearly repeat an earlier one.

    Args:
        signed: [n, PERMUTATIONS] signatures of whole rows.
        parts: Row → its squeezed parts; none for rows that are no examples.
        skip: [n] rows that are not looked at (exact duplicates, unusable rows).

    Returns:
        Row → the earlier row that it repeats.
    """
    found: dict[int, int] = {}
    for earlier, later in candidates(signed):
        if later in found or skip[later] or skip[earlier]:
            continue
        ours, theirs = parts(earlier), parts(later)
        if ours and theirs and nearly_equal(ours, theirs):
            found[later] = found.get(earlier, earlier)
    return found


def clusters(signed: np.ndarray, threshold: float = LIKE) -> np.ndarray:
    """Group texts by their signatures alone: [n] number of each text's first near-equal."""
    parent = np.arange(len(signed))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = int(parent[index])
        return index

    for earlier, later in candidates(signed):
        if (signed[earlier] == signed[later]).mean() >= threshold:
            one, other = root(earlier), root(later)
            parent[max(one, other)] = min(one, other)
    return np.array([root(i) for i in range(len(signed))], np.int64)


def combined(parts: Iterable[np.ndarray]) -> np.ndarray:
    """Signature of several texts taken together: the least of each value."""
    return np.minimum.reduce(list(parts))
