# SPDX-License-Identifier: Apache-2.0
"""One process writes to an output folder: a lock that ends with its process, and its owner's name.

The operating system holds the lock and drops it when the process dies, however it dies. The owner
file beside it is for messages only.
"""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from alignax.cli import terminal
from alignax.errors import RunError
from alignax.files import read_json, write_json

LOCK, OWNER = ".writer.lock", ".writer.json"
LOCK_FILES = (LOCK, OWNER)
"""What is no content of a folder."""


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Be the only process that writes to a folder, which is made if need be.

    A folder that still holds nothing at the end is taken away again.

    Raises:
        RunError: Another process writes to it, or it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot begin a run in {folder}: {error.strerror}") from error
    lock = FileLock(folder / LOCK)
    _acquire(lock, folder)
    try:
        before = _owner(folder)
        if before:
            terminal.warn(f"{_named(before)} ended without closing {folder}: taken over")
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        write_json(folder / OWNER, {"process": os.getpid(), "host": platform.node(), "since": now})
        yield
    finally:
        with suppress(OSError):
            (folder / OWNER).unlink(missing_ok=True)
            # While it is held: who waits for this very file sees that it is gone and begins anew.
            (folder / LOCK).unlink(missing_ok=True)
        lock.release()
        with suppress(OSError):  # it holds a run
            folder.rmdir()


def require_idle(folder: Path) -> None:
    """Refuse a folder that another process writes to, before anything is loaded.

    Raises:
        RunError: Another process writes to it.
    """
    if (folder / LOCK).exists():
        lock = FileLock(folder / LOCK)
        _acquire(lock, folder)
        lock.release()


def _acquire(lock: Any, folder: Path) -> None:
    """Take a lock at once or not at all."""
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise RunError(
            f"{_named(_owner(folder)) or 'another process'} is writing to {folder}; nothing was "
            "changed",
            hint="wait for it to end, or name another --output",
        ) from error
    except NotImplementedError:
        terminal.warn(f"the file system of {folder} has no locks: run one process there at a time")


def _owner(folder: Path) -> dict[str, Any]:
    """Read who wrote last without closing; nothing if it cannot be known."""
    try:
        return read_json(folder / OWNER)
    except RunError:
        return {}


def _named(owner: dict[str, Any]) -> str:
    """Name a process in a message; empty for none."""
    if not owner:
        return ""
    return f"process {owner.get('process')} on {owner.get('host')} (since {owner.get('since')})"
