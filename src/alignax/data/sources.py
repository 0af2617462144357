# SPDX-License-Identifier: Apache-2.0
"""Files, globs or a hub id → rows with random access, none of them held in memory.

Every row is kept as its exact JSON text in a memory-mapped Arrow file (written through
``datasets``). A typed table would fill the keys that other rows have with nulls and refuse columns
of mixed types, both of which preference data is full of.

A few lines that are not JSON are kept as broken rows, which are dropped and counted like any other
bad row; more than ``BROKEN_SHARE`` of them means that the file is not what it should be.
"""

import glob
import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from alignax.errors import DataError

JSON_SUFFIXES = (".json", ".jsonl", ".ndjson", ".json.gz", ".jsonl.gz", ".ndjson.gz")
TABLE_SUFFIXES = {".parquet": "parquet", ".csv": "csv"}
SUFFIXES = (*JSON_SUFFIXES, *TABLE_SUFFIXES)
BROKEN_SHARE = 0.02


class Broken(str):
    """A line that is not JSON; ``error`` says why."""

    error: str


class Rows:
    """Rows of one or several files, by index.

    Attributes:
        files: Names of the files (or the hub id), in reading order.
        content_hash: Hash of the data bytes, whatever the files are called.
    """

    def __init__(self, table: Any, files: Sequence[str], content_hash: str):
        """Wrap a table with the columns ``json``, ``error``, ``file`` and ``line``."""
        self._table = table
        self.files = tuple(files)
        self.content_hash = content_hash

    def __len__(self) -> int:
        """Number of rows."""
        return len(self._table)

    def __getitem__(self, index: int) -> Any:
        """Parse one row; a line that is not JSON comes as ``Broken`` text."""
        stored = self._table[index]
        if not stored["error"]:
            return json.loads(stored["json"])
        line = Broken(stored["json"])
        line.error = stored["error"]
        return line

    def place(self, index: int) -> str:
        """Say where a row came from: ``file:line``."""
        row = self._table[index]
        return f"{self.files[row['file']]}:{row['line']}"


def open_rows(paths: str | Sequence[str], *, split: str = "train", cache_dir: Path) -> Rows:
    """Open files, globs, folders or a hub id.

    Args:
        paths: What to read.
        split: Split of a hub data set.
        cache_dir: Where the memory-mapped copy is kept, by content.

    Raises:
        DataError: Missing or unreadable files, broken lines (with their numbers), no rows.
    """
    names = [paths] if isinstance(paths, str) else list(paths)
    files = [file for name in names for file in _expand(name)]
    if files:
        digest = _hash_files(files)
        records, shown = _read_files(files), [str(f) for f in files]
    else:
        table = _load_hub(names[0], split)
        digest = hashlib.sha256(f"{names[0]}:{split}:{table._fingerprint}".encode()).hexdigest()  # noqa: SLF001
        records, shown = ((0, i + 1, row) for i, row in enumerate(table)), [names[0]]
    target = cache_dir / "rows" / f"{digest[:24]}.arrow"
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):
        if not target.exists():
            _write_arrow(records, target)
    from datasets import Dataset

    rows = Rows(Dataset.from_file(str(target)), shown, digest[:16])
    if not len(rows):
        raise DataError(f"no rows in {', '.join(shown)}")
    return rows


def _expand(name: str) -> list[Path]:
    """Find the files behind one name; an empty list means a hub id."""
    path = Path(name).expanduser()
    if path.is_file():
        return [_known(path)]
    if path.is_dir():
        found = sorted(p for p in path.rglob("*") if p.name.endswith(SUFFIXES))
        if not found:
            raise DataError(f"folder {name} holds no data files ({', '.join(SUFFIXES)})")
        return found
    if glob.has_magic(name):
        found = sorted(Path(p) for p in glob.glob(str(path), recursive=True))
        if not found:
            raise DataError(f"no file matches {name}")
        return [_known(p) for p in found if p.is_file()]
    if name.count("/") != 1 or name.endswith(SUFFIXES) or name.startswith((".", "/", "~")):
        raise DataError(f"data file {name} does not exist", hint="check --data")
    return []


def _known(path: Path) -> Path:
    """Refuse a file whose kind the name does not tell."""
    if not path.name.endswith(SUFFIXES):
        raise DataError(
            f"cannot tell the kind of {path} by its name", hint=f"known: {', '.join(SUFFIXES)}"
        )
    return path


def _hash_files(files: Sequence[Path]) -> str:
    """Hash the bytes of all files; names and places do not matter, kinds do."""
    digest = hashlib.sha256()
    for path in files:
        digest.update("".join(path.suffixes[-2:]).encode())
        try:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}") from error
    return digest.hexdigest()


def _read_files(files: Sequence[Path]) -> Iterator[tuple[int, int, Any]]:
    """Yield (file number, line or row number, row)."""
    for number, path in enumerate(files):
        kind = TABLE_SUFFIXES.get(path.suffix)
        rows = _read_json(path) if kind is None else _read_table(path, kind)
        for line, row in rows:
            yield number, line, row


def _read_json(path: Path) -> Iterator[tuple[int, Any]]:
    """Read a JSON list, or one JSON value a line."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline=None) as file:
            head = file.read(64)
            file.seek(0)
            if head.lstrip().startswith("["):
                yield from enumerate(_whole(path, file.read()), 1)
                return
            yield from _lines(path, file)
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from error
    except (OSError, EOFError) as error:
        raise DataError(f"cannot read {path}: {error}") from error


def _whole(path: Path, text: str) -> list[Any]:
    """Parse a file that is one JSON list."""
    try:
        rows = json.loads(text)
    except ValueError as error:
        line = getattr(error, "lineno", 1)
        raise DataError(f"{path}: not JSON at line {line}: {error}") from error
    return rows


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
            broken.append(f"line {line}: {error}: {bad[:60]}…")
            yield line, bad
    if len(broken) > BROKEN_SHARE * count:
        raise DataError(
            f"{path}: not JSON at {broken[0].split(': ')[0]} ({len(broken)} of {count} lines)",
            problems=broken[:10],
            hint="every line must be one JSON object",
        )


def _read_table(path: Path, kind: str) -> Iterator[tuple[int, Any]]:
    """Read Parquet or CSV through ``datasets``."""
    import datasets

    try:
        table = datasets.load_dataset(kind, data_files=str(path), split="train", streaming=True)
        yield from enumerate(table, 1)
    except Exception as error:  # the readers below raise kinds of their own
        raise DataError(f"cannot read {path} as {kind}: {error}") from error


def _load_hub(name: str, split: str) -> Any:
    """Load a data set from the hub."""
    import datasets

    try:
        return datasets.load_dataset(name, split=split)
    except Exception as error:  # network, missing set, missing split: many kinds
        raise DataError(
            f"{name} is neither a file nor a data set that can be loaded from the hub "
            f"(split {split!r}): {type(error).__name__}: {str(error).splitlines()[0]}",
            hint="check the path, or the network and the name",
        ) from error


def _write_arrow(records: Iterator[tuple[int, int, Any]], target: Path) -> None:
    """Write rows as JSON text into an Arrow file, atomically."""
    from datasets import Features, Value
    from datasets.arrow_writer import ArrowWriter

    features = Features(
        {
            "json": Value("large_string"),
            "error": Value("string"),
            "file": Value("int32"),
            "line": Value("int64"),
        }
    )
    partial = target.with_suffix(".tmp")
    with ArrowWriter(features=features, path=str(partial)) as writer:
        for file, line, row in records:
            error = row.error if isinstance(row, Broken) else ""
            text = str(row) if error else json.dumps(row, ensure_ascii=True, default=_unusual)
            writer.write({"json": text, "error": error, "file": file, "line": line})
        writer.finalize()
    partial.replace(target)


def _unusual(value: Any) -> Any:
    """Keep values of tables that JSON does not know as text."""
    return f"<{len(value)} bytes>" if isinstance(value, bytes) else str(value)


def row_hash(row: Mapping[str, Any] | Any) -> str:
    """Identify a row by its content: 16 hex digits, the same in any file and key order."""
    text = json.dumps(row, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
