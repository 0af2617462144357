# SPDX-License-Identifier: Apache-2.0
"""Rows + encoder → encoded data set on disk, memory-mapped and cached by content.

The cache key covers the data bytes and everything that decides the ids; a manifest keeps the parts,
so that a miss can say which one changed. One process builds while others wait.
"""

import hashlib
import json
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from filelock import FileLock

from alignax.data.audit import Audit, DataReport
from alignax.data.encode import Encoder
from alignax.data.formats import FORMATS, detect, parse_row
from alignax.data.reshape import Shape
from alignax.data.sources import USUAL, Rows, open_rows
from alignax.data.table import TableWriter, content_hash, read_table
from alignax.errors import DataError
from alignax.reasons import REASONS
from alignax.records import Dropped, EncodedExample, Example

BATCH = 256
"""Rows that are tokenised together."""

DETECT_ROWS = 64

READING_VERSION = "5"
"""Raised whenever the example that some row becomes changes; part of every cache key."""

MANIFEST, REPORT = "manifest.json", "report.json"


class EncodedDataset:
    """Encoded examples with random access; ids stay on disk.

    Attributes:
        row_ids: Content hash of every row.
        prompt_hashes: Hash of every prompt.
        lengths: [n, 1 + s] tokens of prompt and answers.
        source_index: [n] place of every example among the rows that were read.
        scores: [n, s] scores that came with the answers; NaN where there was none.
        places: ``file:line`` of every example.
        content_hash: Hash of the data bytes.
        digest: Hash of everything that decides the ids of a row, its format included.
    """

    def __init__(
        self,
        ids: np.ndarray,
        table: dict[str, np.ndarray],
        places: list[str],
        *,
        digest: str,
        content_hash: str,
    ):
        """Wrap flat ids and per-example columns."""
        self._ids = ids
        self._table = table
        self.places = places
        self.digest = digest
        self.content_hash = content_hash
        self.row_ids: list[str] = table["row_ids"].tolist()
        self.prompt_hashes: list[str] = table["prompt_hashes"].tolist()
        self.lengths: np.ndarray = table["lengths"]
        self.source_index: np.ndarray = table["source_index"]
        self.scores: np.ndarray = table["scores"]

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
        marks = tuple(part >= 0 for part in parts[1:])
        return EncodedExample(
            row_id=self.row_ids[index],
            prompt=parts[0],
            answers=tuple(np.where(m, p, ~p) for m, p in zip(marks, parts[1:], strict=True)),
            scored=() if all(m.all() for m in marks) else marks,
            complete=tuple(self._table["complete"][index].tolist()),
            answer_cut=tuple(self._table["answer_cut"][index].tolist()),
            prompt_cut=int(self._table["prompt_cut"][index]),
            boundary_merged=bool(self._table["merged"][index]),
            system_merged=bool(self._table["system_merged"][index]),
        )

    def distinct_prompts(self, count: int) -> list[list[int]]:
        """Take the ids of the first prompts that differ, so many at most."""
        seen: dict[str, list[int]] = {}
        for index, prompt_hash in enumerate(self.prompt_hashes):
            if len(seen) == count:
                break
            if prompt_hash not in seen:
                seen[prompt_hash] = self[index].prompt.tolist()
        return list(seen.values())

    def select(self, indices: Sequence[int] | range | np.ndarray) -> "EncodedDataset":
        """Make a view of some examples, in the given order."""
        chosen = np.asarray(indices, np.int64)
        table = {name: column[chosen] for name, column in self._table.items()}
        places = [self.places[i] for i in chosen]
        return EncodedDataset(
            self._ids, table, places, digest=self.digest, content_hash=self.content_hash
        )


def build_dataset(
    paths: str | Sequence[str],
    *,
    format: str,  # noqa: A002  the recipe's name
    split: str,
    encoder: Encoder,
    kind: str,
    cache_dir: Path,
    max_rows: int | None = None,
    max_bad_share: float | None = 0.5,
    shape: Shape = USUAL,
    excluded: Mapping[int, str] = MappingProxyType({}),
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
        max_bad_share: Refuse when more than this share is dropped; None: never.
        shape: How rows are reshaped when they are read.
        excluded: Row number → the reason for which filters leave it out.
        progress: Called with (rows done, rows).

    Raises:
        DataError: Unreadable or unusable rows.
    """
    rows = open_rows(paths, split=split, cache_dir=cache_dir, shape=shape)
    count = min(len(rows), max_rows or len(rows))
    first = rows.batch(range(min(count, DETECT_ROWS)))
    name = detect(format, first, kind=kind, source=", ".join(rows.files))
    reading = {
        "format": name, "format detected": str(name != format), "kind": kind,
        "reading version": READING_VERSION, **encoder.parts,
    }  # fmt: skip
    parts = {"data": rows.content_hash, "rows used": str(count), **reading}
    if excluded:
        parts["filters"] = _hash({str(row): code for row, code in excluded.items()})
    target = cache_dir / "encoded" / _hash(parts)
    job = Job(rows, count, name, name != format, kind, encoder, excluded, progress)
    try:
        hit, changed = _ensure(target, parts, job)
    except OSError as error:
        raise DataError(
            f"cannot write the token cache {target}: {error.strerror or error}",
            hint="free some space, or name another folder with --data.cache",
        ) from error
    dataset, report = _load(target, rows, _hash(reading))
    report.source = list(rows.files)
    report.cache = {"hit": hit, "changed": changed}
    report.notices = [*encoder.notices, *_row_notices(report, encoder)]
    if max_bad_share is not None:
        report.require_usable(max_bad_share)
    return dataset, report


@dataclass(frozen=True)
class Job:
    """What is to be encoded, and how."""

    rows: Rows
    count: int
    format: str
    detected: bool
    kind: str
    encoder: Encoder
    excluded: Mapping[int, str]
    progress: Callable[[int, int], None]

    def is_plain(self, example: Example) -> bool:
        """Tell whether an example is used as plain text."""
        return isinstance(example.prompt, str) and self.encoder.options.render != "chat"


def _ensure(target: Path, parts: dict[str, str], job: Job) -> tuple[bool, list[str]]:
    """Build a cached set unless it is there; others that want the same one wait.

    Returns:
        Whether it was there, and the parts in which the nearest other set differs if not.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):
        if (target / MANIFEST).exists():
            return True, []
        changed = _what_changed(target.parent, parts)
        partial = target.with_name(f"{target.name}.partial")
        for leftover in (partial, target):
            shutil.rmtree(leftover, ignore_errors=True)
        partial.mkdir()
        try:
            _build(partial, job)
            _write_json(partial / MANIFEST, parts)
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return False, changed


def _row_notices(report: DataReport, encoder: Encoder) -> list[str]:
    """Say what becomes of plain text where the model has a template, and of answers in turns."""
    notices = []
    if report.lengths.get("plain_text") and encoder.has_template:
        notices.append(
            f"{report.lengths['plain_text']} rows are plain text and are used verbatim: the "
            "model's chat template is not applied to them (--data.render chat makes turns of them)"
        )
    if report.several_turns["count"]:
        notices.append(
            f"{report.several_turns['count']} rows have answers of several turns: the assistant's "
            "turns are scored, the turns between them are not"
        )
    return notices


def _what_changed(folder: Path, parts: dict[str, str]) -> list[str]:
    """Name the parts in which the nearest cached set differs."""
    nearest: list[str] | None = None
    for manifest in folder.glob(f"*/{MANIFEST}"):
        other = json.loads(manifest.read_text(encoding="utf-8"))
        differ = [n for n in parts if other.get(n) != parts[n]]
        if nearest is None or len(differ) < len(nearest):
            nearest = differ
    return ["first build"] if nearest is None else nearest


def _build(folder: Path, job: Job) -> None:
    """Encode all rows into a folder, a batch at a time."""
    report = DataReport(
        list(job.rows.files), job.format, rows=job.count, encoding=job.encoder.parts
    )
    audit = Audit(FORMATS[job.format])
    with TableWriter(folder, 2 if job.kind == "pair" else 1) as writer:
        for done, encoded in _encoded_batches(job, report, audit):
            for index, example, ids in encoded:
                writer.add(index, example, ids, plain=job.is_plain(example))
                audit.see_encoded(ids, job.encoder.stop_ids)
            job.progress(done, job.count)
        table = writer.finish()
    report.dropped_rows = dict(sorted(report.dropped_rows.items()))
    report.kept = len(table["row_ids"])
    audit.finish(report, table["lengths"])
    report.lengths["plain_text"] = int(table["plain"].sum())
    dropped = {str(i): asdict(d) for i, d in report.dropped_rows.items()}
    _write_json(folder / REPORT, {**report.to_json(), "dropped_rows": dropped})


Parsed = list[tuple[int, Example]]


def _encoded_batches(
    job: Job, report: DataReport, audit: Audit
) -> Iterator[tuple[int, list[tuple[int, Example, EncodedExample]]]]:
    """Parse and encode all rows, a batch at a time; dropped ones go to the report.

    Yields:
        How many rows are done, and the kept ones of the batch with their index.
    """
    waiting: deque[tuple[int, Parsed]] = deque()

    def examples() -> Iterator[list[Example]]:
        for start in range(0, job.count, BATCH):
            indices = range(start, min(start + BATCH, job.count))
            parsed = _parse_batch(indices, job, report, audit)
            waiting.append((indices.stop, parsed))
            yield [example for _, example in parsed]

    for results in job.encoder.encode_batches(examples()):
        done, parsed = waiting.popleft()
        kept = []
        for (index, example), result in zip(parsed, results, strict=True):
            if isinstance(result, Dropped):
                report.dropped_rows[index] = result
                continue
            audit.see_example(example, plain=job.is_plain(example))
            kept.append((index, example, result))
        yield done, kept


def _parse_batch(indices: range, job: Job, report: DataReport, audit: Audit) -> Parsed:
    """Read some rows as examples."""
    parsed: Parsed = []
    for index, row in zip(indices, job.rows.batch(indices), strict=True):
        row_id, place = content_hash(row), job.rows.place(index)
        audit.see_row(row, row_id)
        example = parse_row(
            job.format, row, kind=job.kind, row_id=row_id, place=place, detected=job.detected
        )
        if index in job.excluded:
            reason = job.excluded[index]
            detail = f"left out by data.filters: rows that {REASONS[reason].meaning}"
            example = Dropped(row_id, reason, detail, place)
        if isinstance(example, Dropped):
            report.dropped_rows[index] = example
        else:
            parsed.append((index, example))
    return parsed


def _load(target: Path, rows: Rows, digest: str) -> tuple[EncodedDataset, DataReport]:
    """Open a cached set; places are those of the rows at hand, not of the files it was made of."""
    ids, table = read_table(target)
    values = json.loads((target / REPORT).read_text(encoding="utf-8"))
    dropped = {
        int(i): Dropped(d["row_id"], d["reason"], d["detail"], rows.place(int(i)))
        for i, d in values.pop("dropped_rows").items()
    }
    places = [rows.place(int(i)) for i in table["source_index"]]
    dataset = EncodedDataset(ids, table, places, digest=digest, content_hash=rows.content_hash)
    return dataset, DataReport(**values, dropped_rows=dropped)


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


def _hash(parts: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
