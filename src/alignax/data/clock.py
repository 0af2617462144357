# SPDX-License-Identifier: Apache-2.0
"""A limit on the time that a stranger's code may take."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class TookTooLong(Exception):
    """The time was up."""


@contextmanager
def time_limit(seconds: float, what: str) -> Iterator[None]:
    """Raise in the main thread when the time is up.

    In other threads, and where the system has no interval timers, there is no limit: a thread
    cannot be interrupted, and the main thread has rendered with the same template before.

    Raises:
        TookTooLong: It took longer.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(
        signal, "setitimer"
    ):
        yield
        return

    def ring(_number: int, _frame: Any) -> None:
        raise TookTooLong(f"{what} took longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
