# SPDX-License-Identifier: Apache-2.0
"""The reference: what it is called, and rows → its log-probs.

Cached values lie in one file a (reference, encoding, dtype), where they are found by row id, never
by position (``reference_cache``). A value that is missing at training time is an error.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from alignax.records import PackedBatch
from alignax.train.forward import Network, Weights, answer_logps
from alignax.train.reference_cache import ReferenceCache


@dataclass(frozen=True)
class ReferenceIdentity:
    """What the policy is compared with: hashes of base and adapter (None: no adapter)."""

    base: str
    adapter: str | None

    def key(self, encoding_digest: str, dtype: str) -> str:
        """Name of the cache file for rows encoded in this way."""
        parts = [self.base, self.adapter or "none", encoding_digest, dtype]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def build_score_step(network: Network, *, adapter: bool) -> Callable[[Weights, PackedBatch], Any]:
    """Compile ``(weights, batch [g, …]) → (sums [g, b, p, s], tokens [g, b, p, s])``."""
    # Nothing is differentiated, so there is nothing to recompute.
    network = replace(network, remat="none")

    def score(weights: Weights, batch: PackedBatch) -> Any:
        def one(micro: PackedBatch) -> Any:
            logps = answer_logps(network, weights, micro, adapter=adapter)
            return logps.sums, logps.tokens

        return jax.lax.map(one, batch)

    return jax.jit(score)


def scored(
    step: Callable[..., Any], arguments: tuple[Any, ...], batches: Iterable[PackedBatch]
) -> Iterator[tuple[np.ndarray, Any]]:
    """Apply a scoring step to batches, the next one under way while a result is fetched.

    Yields:
        The examples of a batch [n], and the tree of the step's results for them, [n, s] each.
    """
    under_way: tuple[Any, Any] | None = None
    for batch in batches:
        ahead = batch.example, step(*arguments, batch)
        if under_way is not None:
            yield _fetched(*under_way)
        under_way = ahead
    if under_way is not None:
        yield _fetched(*under_way)


def _fetched(example_gbp: Any, results: Any) -> tuple[np.ndarray, Any]:
    """Bring results to the host, without those of unused slots."""
    example, results = jax.device_get((example_gbp, results))
    used = example >= 0
    return example[used], jax.tree.map(lambda result: result[used], results)


def score_rows(
    step: Callable[[Weights, PackedBatch], Any],
    weights: Weights,
    batches: Iterable[PackedBatch],
    count: int,
    answers: int,
    progress: Callable[[int], None] = lambda _: None,
) -> tuple[np.ndarray, np.ndarray]:
    """Score all examples of a data set, whatever their place in the batches.

    Returns:
        (sums, tokens), both [n, s], in the order of the data set.
    """
    sums_ns = np.full((count, answers), np.nan, np.float32)
    tokens_ns = np.zeros((count, answers), np.int32)
    for examples, (sums, tokens) in scored(step, (weights,), batches):
        sums_ns[examples] = sums
        tokens_ns[examples] = tokens
        progress(len(examples))
    return sums_ns, tokens_ns


def fill_cache(
    cache: ReferenceCache,
    step: Callable[[Weights, PackedBatch], Any],
    weights: Weights,
    batches: Iterable[PackedBatch],
    row_ids: Sequence[str],
    progress: Callable[[int], None] = lambda _: None,
    *,
    save_seconds: float = 30.0,
) -> None:
    """Score rows into the cache; saved at intervals, so that a killed pass continues.

    Args:
        cache: Where values go.
        step: Compiled scoring step.
        weights: The reference.
        batches: Placed batches of the rows.
        row_ids: Row id of every row.
        progress: Told how many rows were done.
        save_seconds: Time between two saves; what a kill can cost.
    """
    ids: list[str] = []
    values: list[np.ndarray] = []
    saved = time.monotonic()
    try:
        for examples, (sums, _) in scored(step, (weights,), batches):
            ids += [str(row_ids[index]) for index in examples.tolist()]
            values += list(sums)
            progress(len(examples))
            if time.monotonic() - saved >= save_seconds:
                cache.add(ids, np.stack(values))
                ids, values, saved = [], [], time.monotonic()
    finally:
        # An interrupt or an error further on must not cost what was computed.
        if ids:
            cache.add(ids, np.stack(values))


def gather_cached(table_ns: np.ndarray, example_gbp: np.ndarray) -> np.ndarray:
    """Pick the reference values of a batch: [g, b, p, s], zeros in unused slots."""
    values = table_ns[np.maximum(example_gbp, 0)]
    return np.where(example_gbp[..., None] >= 0, values, 0.0).astype(np.float32)


def arrays_hash(tree: Any) -> str:
    """Hash the names, shapes and bytes of a tree of arrays (16 hex digits)."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(jax.device_get(tree)):
        array = np.ascontiguousarray(leaf)
        digest.update(f"{jax.tree_util.keystr(path)}{array.shape}{array.dtype}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]


def describe(identity: ReferenceIdentity | Mapping[str, Any]) -> str:
    """Write an identity on one line."""
    parts = vars(identity) if isinstance(identity, ReferenceIdentity) else identity
    adapter = parts["adapter"]
    return f"base {parts['base'][:16]}, adapter {adapter[:16] if adapter else 'none'}"
