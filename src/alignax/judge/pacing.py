# SPDX-License-Identifier: Apache-2.0
"""Many workers and one endpoint → calls that are spaced, repeated and paid for within limits."""

import random
import threading
import time
from collections.abc import Callable
from typing import NamedTuple


class Clock(NamedTuple):
    """Time, so that tests need not wait."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Pace:
    """Spaces the calls of all workers, and holds them all back when the endpoint asks for it."""

    def __init__(self, per_minute: float | None, clock: Clock):
        """Allow ``per_minute`` calls a minute; None: as many as the workers make."""
        self._gap = 60.0 / per_minute if per_minute else 0.0
        self._clock = clock
        self._next = clock.now()
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Sleep until the next call is due."""
        with self._lock:
            start = max(self._next, self._clock.now())
            self._next = start + self._gap
        while (left := start - self._clock.now()) > 0:
            self._clock.sleep(left)

    def hold(self, seconds: float) -> None:
        """Let no call start within the next ``seconds``."""
        with self._lock:
            self._next = max(self._next, self._clock.now() + seconds)


class Backoff:
    """Waiting times between tries: doubling, with jitter; the endpoint's own wish wins."""

    def __init__(self, *, first: float = 1.0, longest: float = 60.0, seed: int = 0):
        """Start at ``first`` seconds and stop growing at ``longest``."""
        self._first, self._longest = first, longest
        self._random = random.Random(seed)

    def seconds(self, attempt: int, retry_after: float | None) -> float:
        """Say how long to wait after try number ``attempt`` (from 0) failed."""
        if retry_after is not None:
            return retry_after
        return min(self._first * 2**attempt, self._longest) * self._random.uniform(0.5, 1.0)


class Budget:
    """A hard cap on money: a call is only made if its worst case still fits."""

    def __init__(self, cap: float):
        """Allow ``cap`` units of money."""
        self._cap, self.spent, self._reserved = cap, 0.0, 0.0
        self._lock = threading.Lock()

    def reserve(self, worst: float) -> bool:
        """Set money aside for a call; False if it does not fit."""
        with self._lock:
            if self.spent + self._reserved + worst > self._cap:
                return False
            self._reserved += worst
            return True

    def settle(self, worst: float, actual: float) -> None:
        """Replace what was set aside by what it cost."""
        with self._lock:
            self._reserved -= worst
            self.spent += actual


class Patience:
    """Tells when an endpoint fails so often in a row that asking on is pointless."""

    def __init__(self, limit: int):
        """Give up after ``limit`` failed items in a row."""
        self._limit, self._failed = limit, 0
        self._lock = threading.Lock()

    def note(self, *, failed: bool) -> None:
        """Count an item."""
        with self._lock:
            self._failed = self._failed + 1 if failed else 0

    @property
    def lost(self) -> bool:
        """Whether to stop asking."""
        return self._failed >= self._limit
