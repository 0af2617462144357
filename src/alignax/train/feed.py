# SPDX-License-Identifier: Apache-2.0
"""Host batches → batches on the devices, the next one fetched and placed while a step runs."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from alignax.records import PackedBatch
from alignax.train.reference import gather_cached


@dataclass(frozen=True)
class Fed:
    """One step's input.

    Attributes:
        index: Index of the step.
        batch: Host arrays.
        placed: The same on the devices.
        cached: [g, b, p, s] values of the rows on the devices, by the names of the tables; None
            without tables.
        position: State of the data iterator after this batch.
        waited: Seconds in which the devices had nothing to do because this was not there.
    """

    index: int
    batch: PackedBatch
    placed: Any
    cached: Any
    position: Any
    waited: float


class Feed:
    """Iterator over the steps of a run; one batch is fetched ahead in a thread."""

    def __init__(
        self,
        batches: Iterable[tuple[int, PackedBatch]],
        place: Callable[[Any], Any],
        tables: Mapping[str, np.ndarray],
        position: Callable[[], Any],
    ):
        """Begin with the first batch.

        Args:
            batches: ``(index of the step, host batch)``.
            place: Puts host arrays with a leading micro-batch axis onto the devices.
            tables: [n, s] values of all rows, by name.
            position: State of the data iterator.
        """
        self._batches = iter(batches)
        self._place = place
        self._tables = tables
        self._position = position
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="alignax-feed")
        self._ahead: Future[Fed | None] = self._pool.submit(self._fetch)

    @contextmanager
    def open(self) -> Iterator["Feed"]:
        """End the thread on the way out."""
        try:
            yield self
        finally:
            self._pool.shutdown(cancel_futures=True)

    def __iter__(self) -> "Feed":
        """Return itself."""
        return self

    def __next__(self) -> Fed:
        """Wait for the next batch, and have the one after it fetched.

        What went wrong in fetching a batch is raised when that batch is due, not earlier.
        """
        started = time.perf_counter()
        fed = self._ahead.result()
        if fed is None:
            raise StopIteration
        self._ahead = self._pool.submit(self._fetch)
        return replace(fed, waited=time.perf_counter() - started)

    def _fetch(self) -> Fed | None:
        """Fetch and place one batch; None at the end."""
        found = next(self._batches, None)
        if found is None:
            return None
        index, batch = found
        cached = None
        if self._tables:
            cached = {name: gather_cached(t, batch.example) for name, t in self._tables.items()}
        placed, cached = jax.block_until_ready(self._place((batch, cached)))
        return Fed(index, batch, placed, cached, self._position(), 0.0)
