# SPDX-License-Identifier: Apache-2.0
"""JSON, JSON lines, CSV and Parquet files → rows with their line numbers.

A few lines that are not JSON are kept as broken rows, which are dropped and counted like any other
bad row; more than ``BROKEN_SHARE`` of them means that the file is not what it should be.
"""

import ast
import csv
import glob
import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from alignax.errors import DataError

JSON_SUFFIXES = (".json", ".jsonl", ".ndjson", ".json.gz", ".jsonl.gz", ".ndjson.gz")
CSV_SUFFIXES = (".csv", ".csv.gz")
SUFFIXES = (*JSON_SUFFIXES, *CSV_SUFFIXES, ".parquet")
WRAPPERS = ("data", "rows", "examples", "train", "test", "validation")
"""Keys under which a JSON object may hold the list of rows."""

BROKEN_SHARE = 0.02
CELL_LIMIT = 1 << 28
"""Characters of one CSV cell, at most."""


class Broken(str):
    """A line that is not JSON; ``error`` says why."""

    error: str


def read_files(files: Sequence[Path]) -> Iterator[tuple[int, int, Any]]:
    """Yield (file number, line or row number, row)."""
    for number, path in enumerate(files):
        name = path.name.lower()
        table = name.endswith(".parquet")
        for line, row in _read_parquet(path) if table else _read_text(path, name):
            yield number, line, row


def _read_text(path: Path, name: str) -> Iterator[tuple[int, Any]]:
    """Read JSON or CSV, compressed or not."""
    opener = gzip.open if name.endswith(".gz") else open
    reader = _read_csv if name.endswith(CSV_SUFFIXES) else _read_json
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
            yield from reader(path, file)  # type: ignore[arg-type]
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8: {error.reason} (byte {error.object[error.start]:#04x})",
            hint="convert the file to UTF-8",
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {path}: {error}") from error


def _read_json(path: Path, file: TextIO) -> Iterator[tuple[int, Any]]:
    """Read a JSON list, an object that holds one list, or one JSON value a line."""
    first = ""
    while not first.strip() and (line := file.readline()):
        first = line
    opening = first.strip()
    one_of_many = opening.endswith("}") and _is_json(opening) and file.read(1)
    file.seek(0)
    if opening.startswith("[") or (opening.startswith("{") and not one_of_many):
        rows = _whole(path, file.read())
        if rows is not None:
            yield from enumerate(rows, 1)
            return
        file.seek(0)
    yield from _lines(path, file)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _whole(path: Path, text: str) -> list[Any] | None:
    """Parse a file that is one JSON value; None if it is lines after all.

    Raises:
        DataError: A list that is broken, or an object without a list of rows.
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        if text.lstrip().startswith("{") or error.msg == "Extra data":
            return None
        raise DataError(f"{path}: not JSON at line {error.lineno}: {error}") from error
    if isinstance(value, list):
        return value
    wrapped = [value[key] for key in WRAPPERS if isinstance(value.get(key), list)]
    return wrapped[0] if len(wrapped) == 1 else [value]


def _lines(path: Path, file: Iterable[str]) -> Iterator[tuple[int, Any]]:
    """Parse one JSON value a line; too many broken lines are an error that names them."""
    broken: list[str] = []
    count = 0
    for line, text in enumerate(file, 1):
        if not text.strip():
            continue
        count += 1
        try:
            yield line, json.loads(text)
        except ValueError as error:
            bad = Broken(text.strip())
            bad.error = f"not JSON at line {line}: {error}"
            broken.append(f"line {line}: {error}: {bad[:60]!r}")
            yield line, bad
    if len(broken) > BROKEN_SHARE * count:
        raise DataError(
            f"{path}: not JSON at {broken[0].split(': ')[0]} ({len(broken)} of {count} lines)",
            problems=broken[:10],
            hint="every line must be one JSON object",
        )


def _read_csv(path: Path, file: TextIO) -> Iterator[tuple[int, Any]]:
    """Read CSV as the text that it is: ``NA`` and ``None`` are answers, not missing values."""
    csv.field_size_limit(CELL_LIMIT)
    reader = csv.DictReader(file, strict=True)
    try:
        for row in reader:
            if None in row or None in row.values():
                raise DataError(
                    f"{path}: the row that ends at line {reader.line_num} has another number of "
                    f"cells than the header ({', '.join(reader.fieldnames or ())})"
                )
            yield reader.line_num, {name: _cell(text) for name, text in row.items()}
    except csv.Error as error:
        raise DataError(f"{path}: not CSV at line {reader.line_num}: {error}") from error


def _cell(text: str) -> Any:
    """Read a cell that spells chat turns (as JSON or as Python wrote them); else the text."""
    if not text.lstrip().startswith(("[{", "{")) or not re.search("role|from", text):
        return text
    for parse in (json.loads, ast.literal_eval):
        try:
            value = parse(text)
        except (ValueError, SyntaxError):
            continue
        turns = value if isinstance(value, list) else [value]
        if all(isinstance(t, dict) and ("role" in t or "from" in t) for t in turns):
            return value
    return text


def _read_parquet(path: Path) -> Iterator[tuple[int, Any]]:
    """Read Parquet through ``datasets``."""
    import datasets

    try:
        table = datasets.load_dataset(
            "parquet", data_files=glob.escape(str(path)), split="train", streaming=True
        )
        yield from enumerate(table.decode(False), 1)  # type: ignore[union-attr]
    except Exception as error:  # the readers below raise kinds of their own
        raise DataError(f"cannot read {path} as Parquet: {error}") from error
