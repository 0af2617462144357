# SPDX-License-Identifier: Apache-2.0
"""Compiled programs: kept on disk between runs, checked when a command starts, counted in a run."""

import hashlib
import json
import os
import time
import zlib
from pathlib import Path

import jax

from alignax.cli import terminal

CHECKED = "checked.json"

MIN_COMPILE_SECONDS = 0.05
"""Programs that compile faster than this are not worth a file."""

WRITING_SECONDS = 60
"""A new entry that is younger may still be being written by another process."""


def use_compilation_cache(folder: Path) -> None:
    """Let JAX keep its programs in a folder, unless the user has named another one to JAX.

    Entries that were damaged since they were written are removed; a folder that cannot be written
    is a notice.
    """
    if jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        damaged = remove_damaged(folder)
    except OSError as error:
        terminal.warn(
            f"compiled programs are not kept for the next run: {folder}: "
            f"{error.strerror or error} ($ALIGNAX_CACHE places the cache)"
        )
        return
    if damaged:
        terminal.warn(
            f"{damaged} damaged entries of the program cache {folder} were removed; they are "
            "compiled again"
        )
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_COMPILE_SECONDS)


def remove_damaged(folder: Path) -> int:
    """Remove entries that cannot be what was once written; returns their number.

    JAX writes an entry in place and never again: a writer that was killed leaves a part of it,
    which would be read, and complained about, by every later run. A new entry must decompress to
    its end; one that was seen before must still have the same bytes.
    """
    known = _read_checked(folder / CHECKED)
    now, removed = {}, 0
    for file in sorted(folder.glob("*-cache")):
        stat, before = file.stat(), known.get(file.name)
        if before and before[:2] == [stat.st_size, stat.st_mtime_ns]:
            now[file.name] = before
            continue
        content = file.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        if before[2] == digest if before else _whole(content):
            now[file.name] = [stat.st_size, stat.st_mtime_ns, digest]
        elif before or time.time() - stat.st_mtime > WRITING_SECONDS:
            file.unlink(missing_ok=True)
            removed += 1
    if now != known:
        partial = folder / f".{CHECKED}.{os.getpid()}"
        partial.write_text(json.dumps(now), encoding="utf-8")
        partial.replace(folder / CHECKED)
    return removed


def _read_checked(file: Path) -> dict[str, list]:
    """Read what earlier commands saw of each entry; nothing if that is damaged itself."""
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _whole(content: bytes) -> bool:
    """Tell whether an entry is complete, as far as its compression tells."""
    if content[:4] == b"\x28\xb5\x2f\xfd":
        # A Zstandard frame, which JAX writes where it can: no decoder of it may be at hand.
        return True
    try:
        zlib.decompress(content)
    except zlib.error:
        return False
    return True
