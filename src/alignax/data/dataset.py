# SPDX-License-Identifier: Apache-2.0
"""Rows + encoder → encoded data set on disk, memory-mapped and cached by content.

The cache key covers the data bytes and everything that decides the ids; a manifest keeps the parts,
so that a miss can say which one changed. One process builds while others wait.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from alignax.data.audit import Audit, DataReport
from alignax.data.encode import Encoder
from alignax.data.formats import FORMATS, detect, parse_row
from alignax.data.sources import Rows, open_rows, row_hash
from alignax.records import Dropped, EncodedExample, Example, Text

BATCH = 256
"""Rows that are tokenised together."""

DETECT_ROWS = 64


class EncodedDataset:
    """Encoded examples with random access; ids stay on disk.

    Attributes:
        row_ids: Content hash of every row.
        prompt_hashes: Hash of every prompt.
        lengths: [n, 1 + s] tokens of prompt and answers.
        source_index: [n] place of every example among the rows that were read.
        places: ``file:line`` of every example.
        digest: Digest of the encoding.
    """

    def __init__(
        self, ids: np.ndarray, table: dict[str, np.ndarray], places: list[str], digest: str
    ):
        """Wrap flat ids and per-example columns."""
        self._ids = ids
        self._table = table
        self.places = places
        self.digest = digest
        self.row_ids: list[str] = table["row_ids"].tolist()
        self.prompt_hashes: list[str] = table["prompt_hashes"].tolist()
        self.lengths: np.ndarray = table["lengths"]
        self.source_index: np.ndarray = table["source_index"]

    @property
    def branches(self) -> int:
        """Answers of one example."""
        return self.lengths.shape[1] - 1

    def __len__(self) -> int:
        """Number of examples."""
        return len(self.row_ids)

    def __getitem__(self, index: int) -> EncodedExample:
        """Read one example."""
        lengths = self.lengths[index]
        start = int(self._table["offsets"][index])
        ends = start + np.cumsum(lengths)
        parts = [np.array(self._ids[a:b]) for a, b in zip([start, *ends[:-1]], ends, strict=True)]
        return EncodedExample(
            row_id=self.row_ids[index],
            prompt=parts[0],
            answers=tuple(parts[1:]),
            complete=tuple(self._table["complete"][index].tolist()),
            answer_cut=tuple(self._table["answer_cut"][index].tolist()),
            prompt_cut=int(self._table["prompt_cut"][index]),
            boundary_merged=bool(self._table["merged"][index]),
        )

    def select(self, indices: Sequence[int] | range | np.ndarray) -> "EncodedDataset":
        """Make a view of some examples, in the given order."""
        chosen = np.asarray(indices, np.int64)
        table = {name: column[chosen] for name, column in self._table.items()}
        return EncodedDataset(self._ids, table, [self.places[i] for i in chosen], self.digest)


def build_dataset(
    paths: str | Sequence[str],
    *,
    format: str,  # noqa: A002  the recipe's name
    split: str,
    encoder: Encoder,
    kind: str,
    cache_dir: Path,
    max_rows: int | None = None,
    max_bad_share: float = 0.5,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[EncodedDataset, DataReport]:
    """Read, audit and encode rows, or find them in the cache.

    Args:
        paths: Files, globs or a hub id.
        format: Row format, or ``"auto"``.
        split: Split of a hub data set.
        encoder: Decides the ids.
        kind: ``"pair"`` or ``"sft"``.
        cache_dir: Where encoded sets are kept.
        max_rows: Use the first rows only.
        max_bad_share: Refuse when more than this share is dropped.
        progress: Called with (rows done, rows).

    Raises:
        DataError: Unreadable or unusable rows.
    """
    rows = open_rows(paths, split=split, cache_dir=cache_dir)
    count = min(len(rows), max_rows or len(rows))
    first = [rows[i] for i in range(min(count, DETECT_ROWS))]
    name = detect(format, first, kind=kind, source=", ".join(rows.files))
    parts = {
        "data": rows.content_hash, "format": name, "kind": kind, "rows used": str(count),
        **encoder.parts,
    }  # fmt: skip
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]
    target = cache_dir / "encoded" / key
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):
        hit = (target / "manifest.json").exists()
        changed = [] if hit else _what_changed(target.parent, parts)
        if not hit:
            report = DataReport(list(rows.files), name, rows=count, encoding=encoder.parts)
            _build(rows, count, name, kind, encoder, report, target, progress)
            _write_json(target / "manifest.json", parts)
    dataset, report = _load(target, rows, encoder.digest)
    report.source = list(rows.files)
    report.cache = {"hit": hit, "changed": changed}
    report.notices = [*encoder.notices, *_text_notice(report, encoder)]
    report.require_usable(max_bad_share)
    return dataset, report


def _text_notice(report: DataReport, encoder: Encoder) -> list[str]:
    """Say that plain text gets no chat template, if the model has one."""
    if not report.lengths.get("plain_text") or not encoder.has_template:
        return []
    return [
        f"{report.lengths['plain_text']} rows are plain text and are used verbatim: the model's "
        "chat template is not applied to them (--data.render chat makes turns of them)"
    ]


def _what_changed(folder: Path, parts: dict[str, str]) -> list[str]:
    """Name the parts in which the nearest cached set differs."""
    nearest: list[str] | None = None
    for manifest in folder.glob("*/manifest.json"):
        other = json.loads(manifest.read_text())
        differ = [n for n in parts if other.get(n) != parts[n]]
        if nearest is None or len(differ) < len(nearest):
            nearest = differ
    return ["first build"] if nearest is None else nearest


def _build(
    rows: Rows, count: int, name: str, kind: str, encoder: Encoder, report: DataReport,
    target: Path, progress: Callable[[int, int], None],
) -> None:  # fmt: skip
    """Encode all rows into a folder beside the target, then move it there."""
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    audit, columns = Audit(), FORMATS[name].columns
    kept: list[tuple[int, Example, EncodedExample]] = []
    table: dict[str, list[Any]] = {}
    with (partial / "ids.bin").open("wb") as file:
        for start in range(0, count, BATCH):
            kept = list(_encode_batch(rows, range(start, min(start + BATCH, count)), name, kind,
                                      encoder, report, audit, columns))  # fmt: skip
            for index, example, encoded in kept:
                for part in (encoded.prompt, *encoded.answers):
                    file.write(part.astype("<i4").tobytes())
                _add_row(table, index, example, encoded)
                audit.see_encoded(encoded, encoder.stop_ids)
            progress(min(start + BATCH, count), count)
    report.kept = len(table.get("row_ids", []))
    arrays = _columns(table, 2 if kind == "pair" else 1)
    audit.finish(report, arrays["lengths"])
    report.lengths["plain_text"] = int(sum(table.get("plain", [])))
    np.savez(partial / "table.npz", **arrays)
    dropped = {str(i): asdict(d) for i, d in report.dropped_rows.items()}
    _write_json(partial / "report.json", {**report.to_json(), "dropped_rows": dropped})
    partial.rename(target)


def _encode_batch(
    rows: Rows, indices: range, name: str, kind: str, encoder: Encoder, report: DataReport,
    audit: Audit, columns: Sequence[str],
) -> Iterator[tuple[int, Example, EncodedExample]]:  # fmt: skip
    """Parse and encode some rows; dropped ones go to the report."""
    parsed: list[tuple[int, Example]] = []
    for index in indices:
        row = rows[index]
        row_id = row_hash(row)
        audit.see_row(row, row_id, columns)
        example = parse_row(name, row, kind=kind, row_id=row_id, place=rows.place(index))
        if isinstance(example, Dropped):
            report.dropped_rows[index] = example
        else:
            parsed.append((index, example))
    encoded = encoder.encode_many([example for _, example in parsed])
    for (index, example), result in zip(parsed, encoded, strict=True):
        if isinstance(result, Dropped):
            report.dropped_rows[index] = result
            continue
        audit.see_example(example, text_hash(example.prompt), list(map(text_hash, example.answers)))
        yield index, example, result


def _add_row(
    table: dict[str, list[Any]], index: int, example: Example, encoded: EncodedExample
) -> None:
    """Append one example's columns."""
    answers = len(encoded.answers)
    values = {
        "row_ids": encoded.row_id,
        "prompt_hashes": text_hash(example.prompt),
        "lengths": [len(encoded.prompt), *map(len, encoded.answers)],
        "complete": encoded.complete,
        "answer_cut": encoded.answer_cut[:answers],
        "prompt_cut": encoded.prompt_cut,
        "merged": encoded.boundary_merged,
        "source_index": index,
        "plain": isinstance(example.prompt, str),
    }
    for name, value in values.items():
        table.setdefault(name, []).append(value)


def _columns(table: dict[str, list[Any]], answers: int) -> dict[str, np.ndarray]:
    """Turn lists into columns; without any row, into empty columns of the right shape."""
    lengths = np.array(table.get("lengths", []), np.int32).reshape(-1, 1 + answers)
    sizes = lengths.sum(1)
    return {
        "row_ids": np.array(table.get("row_ids", []), "U16"),
        "prompt_hashes": np.array(table.get("prompt_hashes", []), "U16"),
        "lengths": lengths,
        "offsets": (np.cumsum(sizes) - sizes).astype(np.int64),
        "complete": np.array(table.get("complete", []), bool).reshape(-1, answers),
        "answer_cut": np.array(table.get("answer_cut", []), np.int32).reshape(-1, answers),
        "prompt_cut": np.array(table.get("prompt_cut", []), np.int32),
        "merged": np.array(table.get("merged", []), bool),
        "source_index": np.array(table.get("source_index", []), np.int64),
    }


def _load(target: Path, rows: Rows, digest: str) -> tuple[EncodedDataset, DataReport]:
    """Open a cached set."""
    with np.load(target / "table.npz", allow_pickle=False) as stored:
        table = dict(stored)
    flat = target / "ids.bin"
    ids = np.memmap(flat, "<i4", "r") if flat.stat().st_size else np.zeros(0, np.int32)
    places = [rows.place(int(i)) for i in table["source_index"]]
    values = json.loads((target / "report.json").read_text())
    dropped = {int(i): Dropped(**d) for i, d in values.pop("dropped_rows").items()}
    dropped = {i: Dropped(d.row_id, d.reason, d.detail, rows.place(i)) for i, d in dropped.items()}
    return EncodedDataset(ids, table, places, digest), DataReport(**values, dropped_rows=dropped)


def split_by_prompt(
    dataset: EncodedDataset, fraction: float, max_rows: int | None = None
) -> tuple[EncodedDataset, EncodedDataset]:
    """Hold out the prompts with the smallest hashes; a prompt is never on both sides.

    Args:
        dataset: What to split.
        fraction: Wanted share of rows to hold out.
        max_rows: Cap on the held-out rows.

    Returns:
        Training rows and held-out rows, each in the order of the data set.
    """
    wanted = round(fraction * len(dataset))
    if max_rows is not None:
        wanted = min(wanted, max_rows)
    groups: dict[str, list[int]] = {}
    for index, prompt_hash in enumerate(dataset.prompt_hashes):
        groups.setdefault(prompt_hash, []).append(index)
    held: list[int] = []
    for prompt_hash in sorted(groups):
        if len(held) + len(groups[prompt_hash]) <= wanted:
            held += groups[prompt_hash]
    held_set = set(held)
    train = [i for i in range(len(dataset)) if i not in held_set]
    return dataset.select(train), dataset.select(sorted(held))


def text_hash(text: Text) -> str:
    """Hash a prompt or an answer (16 hex digits)."""
    return row_hash(text if isinstance(text, str) else [dict(m) for m in text])


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False), encoding="utf-8")
