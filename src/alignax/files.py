# SPDX-License-Identifier: Apache-2.0
"""JSON and text files that are written whole or not at all, and read with one kind of error."""

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from alignax.errors import RunError


def cache_folder() -> Path:
    """The user's cache folder for alignax (``$ALIGNAX_CACHE`` or ``$XDG_CACHE_HOME``)."""
    root = os.environ.get("ALIGNAX_CACHE")
    if root:
        return Path(root)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "alignax"


def to_json(value: Any) -> str:
    """Write JSON for a file that people read."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def write_text(path: Path, text: str) -> None:
    """Write a file atomically.

    Raises:
        RunError: The disk refused it; an earlier file is untouched.
    """
    _write_parts(path, (text,))


def _write_parts(path: Path, parts: Iterable[str]) -> None:
    """Write a file atomically, part by part; nothing is left of one that was not finished."""
    partial = path.with_name(f".{path.name}.tmp")
    try:
        # Half a surrogate pair, which JSON can spell, is spelled again.
        with partial.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            file.writelines(parts)
        partial.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise RunError(
            f"cannot write {path}: {error.strerror or error}", hint="free disk space and repeat"
        ) from error


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically."""
    write_text(path, to_json(value))


def write_lines(path: Path, records: Iterable[Any]) -> int:
    """Write JSON lines atomically, one record each; folders above are made.

    Returns:
        How many there were; they are taken one after another.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error
    count = 0

    def lines() -> Iterator[str]:
        nonlocal count
        for record in records:
            yield json.dumps(record, ensure_ascii=False) + "\n"
            count += 1

    _write_parts(path, lines())
    return count


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Raises:
        RunError: The file is missing, damaged, or holds something else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise RunError(f"cannot read {path}: it is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise RunError(f"{path} must hold a JSON object, got {type(value).__name__}")
    return value


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines; an absent file has none, and a last line that a kill cut is left out.

    Raises:
        RunError: Another line is not JSON.
    """
    if not path.exists():
        return []
    # Not splitlines(): a text may hold any of the other characters that end lines.
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    last = max((n for n, line in enumerate(lines, 1) if line.strip()), default=0)
    records = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            records.append(json.loads(line))
        except ValueError as error:
            if number < last:
                raise RunError(f"{path}:{number} is not JSON: {error}") from error
    return [record for record in records if isinstance(record, dict)]
