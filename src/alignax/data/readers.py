# SPDX-License-Identifier: Apache-2.0
"""JSON, JSON lines, CSV and Parquet files → rows with their line numbers.

A few lines that are not JSON are kept as broken rows, which are dropped and counted like any other
bad row; more than ``BROKEN_SHARE`` of them means that the file is not what it should be.
"""

import ast
import codecs
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

TURN_KEYS = ({"role", "content"}, {"from", "value"})
"""What a chat turn has at least, where it must be told from any other JSON."""

GZIP = b"\x1f\x8b"
FOREIGN = {
    b"\x28\xb5\x2f\xfd": "compressed by zstd", b"BZh": "compressed by bzip2",
    b"\xfd7zXZ": "compressed by xz", b"PK\x03\x04": "a ZIP archive", b"PAR1": "a Parquet file",
    b"version ": "a Git LFS pointer",
}  # fmt: skip
"""First bytes of files that may be taken for text by their names."""

FOREIGN_HINTS = {
    "a Parquet file": "let its name end in .parquet",
    "a Git LFS pointer": "fetch the file itself: git lfs pull",
}

BROKEN_SHARE = 0.02
CELL_LIMIT = 1 << 28
"""Characters of one CSV cell, at most."""


BAD_ESCAPE = re.compile(r'(?<!\\)((?:\\\\)*)\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
"""A backslash that begins no escape of JSON."""

DAMAGED = "\ue000\ufffd\ue000"
"""What stands for it while the other rows are read."""


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
    """Read JSON or CSV; the first bytes tell whether it is compressed, and how it is encoded."""
    reader = _read_csv if name.endswith(CSV_SUFFIXES) else _read_json
    try:
        with path.open("rb") as file:
            start = file.read(8)
        _refuse_foreign(path, start)
        opener = gzip.open if start.startswith(GZIP) else open
        with opener(path, "rb") as file:
            wide = file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        encoding = "utf-16" if wide else "utf-8-sig"
        with opener(path, "rt", encoding=encoding, newline="") as file:
            yield from reader(path, file)  # type: ignore[arg-type]
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8: {error.reason} (byte {error.object[error.start]:#04x})",
            hint="convert the file to UTF-8",
        ) from error
    except UnicodeError as error:
        raise DataError(
            f"{path} is not UTF-8: {error}", hint="convert the file to UTF-8"
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {path}: {error}") from error


def _refuse_foreign(path: Path, start: bytes) -> None:
    """Refuse a file that is no text, whatever its name says."""
    for mark, kind in FOREIGN.items():
        if start.startswith(mark):
            hint = FOREIGN_HINTS.get(kind, "unpack it, or compress it by gzip")
            raise DataError(f"{path} is {kind}, not JSON or CSV", hint=hint)


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
        parse_json(text)
    except ValueError:
        return False
    return True


def parse_json(text: str) -> Any:
    """Parse JSON; a key that is there twice with two values, and endless nesting, are errors too.

    Raises:
        ValueError: It is not JSON.
    """
    try:
        return json.loads(text, object_pairs_hook=_object)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = [name for name, value in pairs if found[name] != value]
        if twice:
            raise ValueError(f"the key {twice[0]!r} is there twice, with two values")
    return found


def _whole(path: Path, text: str) -> list[Any] | None:
    """Parse a file that is one JSON value; None if it is lines after all.

    Raises:
        DataError: A list that is broken, or an object without a list of rows.
    """
    try:
        value = parse_json(text)
    except json.JSONDecodeError as error:
        if text.lstrip().startswith("{") or error.msg == "Extra data":
            return None
        mended = _without_escapes(text) if "escape" in error.msg else None
        if mended is not None:
            return mended
        raise DataError(
            f"{path}: not JSON at line {error.lineno}: {error}",
            hint="the file must be a JSON list of objects, or one JSON object a line",
        ) from error
    except ValueError as error:
        if text.lstrip().startswith("{"):
            return None
        raise DataError(f"{path}: not JSON: {error}") from error
    if isinstance(value, list):
        return value
    wrapped = [key for key in WRAPPERS if isinstance(value.get(key), list)]
    if len(wrapped) > 1:
        raise DataError(
            f"{path} holds several lists of rows: {', '.join(wrapped)}", hint="keep one in a file"
        )
    if _is_columns(value):
        raise DataError(
            f"{path} holds columns ({', '.join(value)}), not rows",
            hint="write one JSON object a row (in pandas: orient='records')",
        )
    return value[wrapped[0]] if wrapped else [value]


def _without_escapes(text: str) -> list[Any] | None:
    """Parse a list some of whose rows have damaged escapes; those rows come as broken ones.

    Returns:
        None if something else is wrong, too, or more than ``BROKEN_SHARE`` of the rows are broken.
    """
    try:
        value = parse_json(BAD_ESCAPE.sub(lambda match: match[1] + DAMAGED, text))
    except ValueError:
        return None
    if not isinstance(value, list):
        return None
    rows: list[Any] = []
    broken = 0
    for row in value:
        said = json.dumps(row, ensure_ascii=False)
        if DAMAGED in said:
            row = Broken(said.replace(DAMAGED, "\\"))
            row.error = "not JSON: a damaged escape"
            broken += 1
        rows.append(row)
    return rows if broken <= BROKEN_SHARE * len(rows) else None


def _is_columns(value: dict[str, Any]) -> bool:
    """Tell whether an object is a whole table by columns: lists of texts, or by row number."""
    sides = [value.get(side) for side in ("chosen", "rejected", "prompt") if side in value]
    lists = all(isinstance(side, list) and all(isinstance(s, str) for s in side) for side in sides)
    tables = all(isinstance(side, dict) and "0" in side for side in sides)
    return bool(sides) and (lists or tables)


def _lines(path: Path, file: Iterable[str]) -> Iterator[tuple[int, Any]]:
    """Parse one JSON value a line; too many broken lines are an error that names them."""
    broken: list[str] = []
    count = 0
    for line, text in enumerate(file, 1):
        if not text.strip():
            continue
        count += 1
        try:
            yield line, parse_json(text)
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
        _check_header(path, reader)
        for row in reader:
            if None in row or None in row.values():
                raise DataError(
                    f"{path}: the row that ends at line {reader.line_num} has another number of "
                    f"cells than the header ({', '.join(reader.fieldnames or ())})",
                    hint='put cells that hold commas, quotes or line breaks into "quotes"',
                )
            yield reader.line_num, {name: spelled_turns(text) for name, text in row.items()}
    except csv.Error as error:
        raise DataError(f"{path}: not CSV at line {reader.reader.line_num}: {error}") from error


def _check_header(path: Path, reader: "csv.DictReader[str]") -> None:
    """Strip the names of a header; refuse what cannot be one.

    Raises:
        DataError: A name is there twice, or something other than commas parts the cells.
    """
    names = [name.strip() for name in reader.fieldnames or ()]
    reader.fieldnames = names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"{path}: the header has the column {twice[0]!r} more than once")
    parted = next((mark for mark in ("\t", ";", "|") if mark in "".join(names)), None)
    if len(names) == 1 and parted:
        raise DataError(
            f"{path}: the cells are parted by {parted!r}, not by commas (header: {names[0]!r})",
            hint="write the file with commas",
        )


def as_turns(value: Any) -> Any:
    """Read chat turns that are stored otherwise: as text, or as a list for each key."""
    if isinstance(value, str):
        return spelled_turns(value)
    if isinstance(value, dict) and any(keys <= value.keys() for keys in TURN_KEYS):
        parts = list(value.values())
        if all(isinstance(part, list) and len(part) == len(parts[0]) for part in parts):
            return [dict(zip(value, turn, strict=True)) for turn in zip(*parts, strict=True)]
    return value


def spelled_turns(text: str) -> Any:
    """Read a text that spells chat turns (as JSON or as Python wrote them); else leave it."""
    if not text.lstrip().startswith(("[{", "{")) or not re.search("role|from", text):
        return text
    for parse in (json.loads, ast.literal_eval):
        try:
            value = parse(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        turns = value if isinstance(value, list) else [value]
        if all(isinstance(t, dict) and any(keys <= t.keys() for keys in TURN_KEYS) for t in turns):
            return value
    return text


def _read_parquet(path: Path) -> Iterator[tuple[int, Any]]:
    """Read Parquet through ``datasets``."""
    import datasets
    from pyarrow import parquet

    try:
        if not parquet.read_metadata(path).num_rows:
            return
        table = datasets.load_dataset(
            "parquet", data_files=glob.escape(str(path)), split="train", streaming=True
        )
        yield from enumerate(table.decode(False), 1)  # type: ignore[union-attr]
    except Exception as error:  # the readers below raise kinds of their own
        raise DataError(f"cannot read {path} as Parquet: {error}") from error
