# SPDX-License-Identifier: Apache-2.0
"""The reference's log-probs, computed once and kept on disk by content.

One file a (reference, encoding, dtype); inside it values are found by row id, never by position.
A value that is missing at training time is an error.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from alignax.errors import RunError
from alignax.records import PackedBatch
from alignax.train.forward import Network, Weights, answer_logps


@dataclass(frozen=True)
class ReferenceIdentity:
    """What the policy is compared with: hashes of base and adapter (None: no adapter)."""

    base: str
    adapter: str | None

    def key(self, encoding_digest: str, dtype: str) -> str:
        """Name of the cache file for rows encoded in this way."""
        parts = [self.base, self.adapter or "none", encoding_digest, dtype]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


class ReferenceCache:
    """Row id → summed log-probs of its answers, in memory and in one file."""

    def __init__(self, file: Path):
        """Open the file if it exists."""
        self.file = file
        self._values: dict[str, np.ndarray] = {}
        if file.exists():
            with np.load(file, allow_pickle=False) as stored:
                self._values = dict(zip(stored["row_ids"].tolist(), stored["logps"], strict=True))

    def missing(self, row_ids: Sequence[str]) -> list[int]:
        """Positions of the rows whose values are not known yet (each row id once)."""
        seen = set(self._values)
        absent = []
        for index, row_id in enumerate(row_ids):
            if row_id not in seen:
                seen.add(row_id)
                absent.append(index)
        return absent

    def add(self, row_ids: Iterable[str], logps_ns: Float[np.ndarray, "n s"]) -> None:
        """Store values and write the file anew, atomically."""
        self._values.update(zip(row_ids, logps_ns, strict=True))
        self.file.parent.mkdir(parents=True, exist_ok=True)
        partial = self.file.with_suffix(f".{os.getpid()}.tmp.npz")
        np.savez(
            partial, row_ids=np.array(list(self._values)), logps=np.stack([*self._values.values()])
        )
        partial.replace(self.file)

    def table(self, row_ids: Sequence[str]) -> Float[np.ndarray, "n s"]:
        """Look up every row.

        Raises:
            RunError: Some rows have no value.
        """
        absent = [row_ids[index] for index in self.missing(row_ids)]
        if absent:
            raise RunError(
                f"the reference has no log-probs for {len(absent)} rows, first {absent[:3]}",
                hint=f"delete {self.file} to compute them anew",
            )
        return np.stack([self._values[row_id] for row_id in row_ids]).astype(np.float32)


def build_score_step(network: Network, *, adapter: bool) -> Callable[[Weights, PackedBatch], Any]:
    """Compile ``(weights, batch [g, …]) → (sums [g, b, p, s], tokens [g, b, p, s])``."""

    def score(weights: Weights, batch: PackedBatch) -> Any:
        def one(micro: PackedBatch) -> Any:
            logps = answer_logps(network, weights, micro, adapter=adapter)
            return logps.sums, logps.tokens

        return jax.lax.map(one, batch)

    return jax.jit(score)


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
    for batch in batches:
        sums, tokens = jax.device_get(step(weights, batch))
        example = np.asarray(batch.example)
        used = example >= 0
        sums_ns[example[used]] = sums[used]
        tokens_ns[example[used]] = tokens[used]
        progress(int(used.sum()))
    return sums_ns, tokens_ns


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
