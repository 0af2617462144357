# SPDX-License-Identifier: Apache-2.0
"""Files, globs, folders or a hub id → rows with random access, none of them held in memory.

Every row is kept as its exact JSON text in a memory-mapped Arrow file (written through
``datasets``). A typed table would fill the keys that other rows have with nulls and refuse columns
of mixed types, both of which preference data is full of.
"""

import glob
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from alignax.data.readers import SUFFIXES, Broken, read_files
from alignax.data.reshape import Shape
from alignax.errors import DataError

USUAL = Shape()
READER_VERSION = 4
"""Raised whenever the rows that some file becomes change."""

DESCRIPTIONS = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
"""Files that describe a data set and hold no rows."""


class Rows:
    """Rows of one or several files, by index.

    Attributes:
        files: Names of the files (or the hub id), in reading order.
        content_hash: Hash of the data bytes, whatever the files are called.
        stored: The memory-mapped copy, for other processes.
    """

    def __init__(
        self, table: Any, files: Sequence[str], content_hash: str, stored: Path | None = None
    ):
        """Wrap a table with the columns ``json``, ``error``, ``file`` and ``line``."""
        self._table = table
        self.stored = stored
        self.files = tuple(files)
        self.content_hash = content_hash
        self._file, self._line = (
            np.array(table.data.column(name).to_numpy()) for name in ("file", "line")
        )

    def __len__(self) -> int:
        """Number of rows."""
        return len(self._table)

    def __getitem__(self, index: int) -> Any:
        """Parse one row; a line that is not JSON comes as ``Broken`` text."""
        return self.batch(range(index, index + 1))[0]

    def batch(self, indices: range) -> list[Any]:
        """Parse neighbouring rows."""
        stored = self._table[indices.start : indices.stop]
        return [_parse(*pair) for pair in zip(stored["json"], stored["error"], strict=True)]

    def place(self, index: int) -> str:
        """Say where a row came from: ``file:line``."""
        return f"{self.files[self._file[index]]}:{self._line[index]}"


def _parse(text: str, error: str) -> Any:
    if not error:
        return json.loads(text)
    line = Broken(text)
    line.error = error
    return line


def open_rows(
    paths: str | Sequence[str], *, split: str = "train", cache_dir: Path, shape: Shape = USUAL
) -> Rows:
    """Open files, globs, folders or a hub id.

    Args:
        paths: What to read.
        split: Split of a hub data set.
        cache_dir: Where the memory-mapped copy is kept, by content.
        shape: How columns are renamed and ranked answers are paired.

    Raises:
        DataError: Missing or unreadable files, broken lines (with their numbers), no rows.
    """
    names = [paths] if isinstance(paths, str) else list(paths)
    expanded = {name: _expand(name, split) for name in names}
    files = [file for found in expanded.values() for file in found]
    if files:
        missing = [name for name, found in expanded.items() if not found]
        if missing:
            raise DataError(f"data file {missing[0]} does not exist", hint="check --data")
        digest = _hash_files(files)
        records, shown = read_files(files), [str(f) for f in files]
    else:
        table = _load_hub(names, split)
        digest = hashlib.sha256(f"{names[0]}:{split}:{table._fingerprint}".encode()).hexdigest()  # noqa: SLF001
        records, shown = ((0, i + 1, row) for i, row in enumerate(table)), [names[0]]
    if shape != USUAL:
        digest = hashlib.sha256(f"{digest}{shape.name}".encode()).hexdigest()
    target = cache_dir / "rows-v1" / f"{digest[:24]}-{READER_VERSION}.arrow"
    try:
        table = _stored(shape.apply(records), target)
    except OSError as error:
        raise DataError(
            f"cannot write the row cache {target}: {error}",
            hint="free some space, or name another folder with --data.cache",
        ) from error
    rows = Rows(table, shown, digest[:16], target)
    if not len(rows):
        raise DataError(f"no rows in {', '.join(shown)}")
    return rows


def reopen(stored: Path) -> Rows:
    """Open the memory-mapped copy that another process made."""
    from datasets import Dataset

    return Rows(Dataset.from_file(str(stored)), [], "", stored)


def _stored(records: Iterator[tuple[int, int, Any]], target: Path) -> Any:
    """Open the memory-mapped copy, after making it if need be."""
    from datasets import Dataset

    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):
        if not target.exists():
            _write_arrow(records, target)
        return Dataset.from_file(str(target))


def _expand(name: str, split: str) -> list[Path]:
    """Find the files behind one name; an empty list means a hub id."""
    path = Path(name).expanduser()
    if path.is_file():
        return [_known(path)]
    if path.is_dir():
        return _folder(path, split)
    if glob.has_magic(name):
        found = sorted(p for p in map(Path, glob.glob(str(path), recursive=True)) if p.is_file())
        if not found:
            raise DataError(f"no file matches {name}")
        return [p for p in found if _is_data(p)] or [_known(p) for p in found]
    if name.count("/") != 1 or name.endswith(SUFFIXES) or name.startswith((".", "/", "~")):
        raise DataError(f"data file {name} does not exist", hint="check --data")
    return []


def _folder(path: Path, split: str) -> list[Path]:
    """Take the files of one split, if the names tell splits; all data files otherwise."""
    found = sorted(p for p in path.rglob("*") if _is_data(p))
    if not found:
        raise DataError(f"folder {path} holds no data files ({', '.join(SUFFIXES)})")
    named = re.compile(rf"{re.escape(split)}[-.]")
    return [p for p in found if named.match(p.name)] or found


def _is_data(path: Path) -> bool:
    return path.name.lower().endswith(SUFFIXES) and path.name not in DESCRIPTIONS


def _known(path: Path) -> Path:
    """Refuse a file whose kind the name does not tell."""
    if not path.name.lower().endswith(SUFFIXES):
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


def _load_hub(names: Sequence[str], split: str) -> Any:
    """Load a data set from the hub."""
    import datasets

    if len(names) > 1:
        raise DataError(f"one hub data set at a time, got {', '.join(names)}")
    try:
        return datasets.load_dataset(names[0], split=split)
    except Exception as error:  # network, missing set, missing split: many kinds
        first = (str(error).splitlines() or [""])[0]
        raise DataError(
            f"{names[0]} is neither a file nor a data set that can be loaded from the hub "
            f"(split {split!r}): {type(error).__name__}: {first}",
            hint="check the path, or the network, the name and --data.split",
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
    """Keep values of tables that JSON does not know as text; bytes that are none as what they are.

    An object is no text, so a row that needs such a value is dropped instead of learnt.
    """
    if not isinstance(value, bytes):
        return str(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"bytes": len(value)}
