# SPDX-License-Identifier: Apache-2.0
"""Files of other tools (annotations, answers, judgments, tables) → rows with their places."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

from alignax.cli import terminal
from alignax.data.readers import SUFFIXES, Broken, read_files
from alignax.errors import DataError

BAD_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\(?!u[0-9a-fA-F]{4}|[\"\\/bfnrt])")
"""A backslash that begins no escape of JSON, as published annotations have some."""


def read_rows(path: str, *, flag: str) -> list[tuple[str, Any]]:
    """Read a JSON list, JSON lines or CSV as (place, row) pairs.

    A backslash that JSON does not know is read as the backslash that it is, and counted aloud.

    Raises:
        DataError: A missing or unreadable file, or any line that is not JSON.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise DataError(f"{path} does not exist", hint=f"check {flag}")
    if not file.name.lower().endswith(SUFFIXES):
        raise DataError(
            f"cannot tell the kind of {path} by its name", hint=f"known: {', '.join(SUFFIXES)}"
        )
    try:
        rows = [(f"{path}:{line}", row) for _, line, row in read_files([file])]
    except DataError as error:
        if "escape" in str(error):
            return _with_escapes(file, path)
        raise
    broken = [row for _, row in rows if isinstance(row, Broken)]
    if any("escape" in row.error for row in broken):
        return _with_escapes(file, path)
    if broken:
        raise DataError(
            f"{path}: {len(broken)} of {len(rows)} lines are not JSON",
            problems=[row.error for row in broken[:8]],
            hint="every line must be one JSON object",
        )
    return rows


def _with_escapes(file: Path, path: str) -> list[tuple[str, Any]]:
    """Read a JSON list or JSON lines again, with stray backslashes doubled."""
    opener = gzip.open if file.name.lower().endswith(".gz") else open
    with opener(file, "rt", encoding="utf-8-sig") as stream:
        text, count = BAD_ESCAPE.subn(r"\1\\\\", stream.read())  # type: ignore[arg-type]
    try:
        whole = json.loads(text)
        values = list(enumerate(whole if isinstance(whole, list) else [whole], 1))
    except json.JSONDecodeError as error:
        if error.msg != "Extra data":
            raise DataError(f"{path}: not JSON at line {error.lineno}: {error}") from error
        values = _lines(text, path)
    terminal.warn(f"{path} has {count} backslashes that JSON does not know; read as they stand")
    return [(f"{path}:{number}", row) for number, row in values]


def _lines(text: str, path: str) -> list[tuple[int, Any]]:
    """Parse one value a line."""
    values = []
    for number, line in enumerate(text.split("\n"), 1):
        try:
            if line.strip():
                values.append((number, json.loads(line)))
        except json.JSONDecodeError as error:
            raise DataError(f"{path}: not JSON at line {number}: {error}") from error
    return values
