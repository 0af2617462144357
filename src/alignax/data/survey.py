# SPDX-License-Identifier: Apache-2.0
"""All rows → what is wrong with which, in bounded memory, by several processes, resumably.

A part of ``PART_ROWS`` rows becomes one file of columns: reasons as bits, hashes by which rows are
compared, signatures, lengths, scores. Parts are pure functions of their rows, so neither workers
nor a kill change anything; what is finished is kept. Then the columns of all parts are compared.
"""

import hashlib
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from alignax.data import near
from alignax.data.examine import Examined, examine
from alignax.data.formats import FORMATS, parse_row
from alignax.data.overlap import EvalPrompts
from alignax.data.sources import Rows, reopen
from alignax.data.table import content_hash
from alignax.data.texts import fingerprint, normalised
from alignax.reasons import REASONS
from alignax.records import Dropped

SURVEY_VERSION = "2"
"""Raised whenever the findings of some row change; names the folder of finished parts."""

PART_ROWS = 2048
BITS = {code: np.uint64(1 << bit) for bit, code in enumerate(REASONS)}
ALONE = 8 * PART_ROWS
"""Rows up to which no worker processes are started."""

REQUIRED_SHARE = 0.9
"""A column that so many of the first rows have is missing where it is not there."""

CORE = ("prompt", "question", "instruction", "query", "conversations", "messages", "response")
"""Columns without which a row of a file that has them elsewhere is damaged."""


@dataclass(frozen=True)
class Plan:
    """How rows are read and what is looked for.

    Attributes:
        format: Row format.
        detected: It was found, not named.
        kind: ``"pair"`` or ``"sft"``.
        required: Columns that every row must have.
        folder: Where relative image paths begin; None: they are not looked up.
        against: Prompts of an evaluation.
    """

    format: str
    detected: bool
    kind: str
    required: tuple[str, ...] = ()
    folder: Path | None = None
    against: EvalPrompts | None = None

    @property
    def digest(self) -> str:
        """Name everything that decides the findings."""
        asked = self.against.digest if self.against else ""
        parts = (SURVEY_VERSION, self.format, self.detected, self.kind, self.required,
                 str(self.folder), asked)  # fmt: skip
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


@dataclass
class Survey:
    """Columns of all rows.

    Attributes:
        flags: [n] reasons as bits of ``BITS``.
        lost: [n] rows that cannot be read as examples, whatever their reasons.
        exact: [n] hash of the row's example, or of the raw row if it is none.
        keys: [n, 3] hashes of the normalised prompt, chosen and rejected.
        sizes: [n, 3] characters of prompt, chosen, rejected.
        scores: [n, 2] scores of the sides; NaN for none.
        openings: [n, 2] hashes of how the answers begin.
        signed: [n, p] signatures of whole rows, memory-mapped.
        rejected: [n, p] signatures of rejected answers, memory-mapped.
        copies: Row → the earlier row that it nearly repeats.
        home: The folder in which finished parts are kept.
    """

    flags: np.ndarray
    lost: np.ndarray
    exact: np.ndarray
    keys: np.ndarray
    sizes: np.ndarray
    scores: np.ndarray
    openings: np.ndarray
    signed: np.ndarray
    rejected: np.ndarray
    copies: dict[int, int] = field(default_factory=dict)
    home: Path = Path()

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.flags)

    def mask(self, *codes: str) -> np.ndarray:
        """[n] rows that have any of some reasons."""
        bits = np.uint64(0)
        for code in codes:
            bits |= BITS[code]
        return (self.flags & bits) != 0

    def add(self, code: str, rows: np.ndarray) -> None:
        """Give a reason to rows (a mask or numbers)."""
        self.flags[rows] |= BITS[code]

    @property
    def usable(self) -> np.ndarray:
        """[n] rows of which an example can be made."""
        return ~self.lost & ~self.mask(*(code for code, reason in REASONS.items() if reason.hard))

    @property
    def distinct(self) -> np.ndarray:
        """Numbers of the usable rows that (nearly) repeat no earlier one."""
        return np.flatnonzero(self.usable & ~self.mask("exact_duplicate", "near_duplicate"))

    @property
    def margins(self) -> np.ndarray:
        """[n] score of chosen less that of rejected; NaN without both."""
        return self.scores[:, 0] - self.scores[:, 1]

    def reasons(self) -> dict[str, list[int]]:
        """Code → row numbers, for every reason that was found."""
        found = {code: np.flatnonzero(self.mask(code)).tolist() for code in REASONS}
        return {code: rows for code, rows in found.items() if rows}


def required_columns(form: str, rows: Sequence[Any]) -> tuple[str, ...]:
    """Find the columns that nearly all of the first rows have and that the format reads."""
    objects = [row for row in rows if isinstance(row, dict)]
    reads = FORMATS[form].reads
    return tuple(
        name
        for name in CORE
        if reads(name) and objects
        and sum(row.get(name) is not None for row in objects) >= REQUIRED_SHARE * len(objects)
    )  # fmt: skip


_worker: dict[str, Any] = {}


def _start(stored: Path, plan: Plan) -> None:
    """Open the rows in a worker process."""
    _worker.update(rows=reopen(stored), plan=plan)


def _work(start: int, stop: int, target: Path) -> int:
    """Examine a part in a worker process."""
    write_part(_worker["rows"], _worker["plan"], range(start, stop), target)
    return stop - start


def survey(
    rows: Rows,
    plan: Plan,
    *,
    count: int,
    folder: Path,
    workers: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Survey:
    """Examine rows and compare them.

    Args:
        rows: The rows.
        plan: How they are read.
        count: How many of them, from the first on.
        folder: Where finished parts are kept.
        workers: Processes; 0: as many as there are processors, none for few rows.
        progress: Called with (rows done, rows).
    """
    home = folder / "survey" / f"{rows.content_hash}-{count}-{plan.digest}"
    home.mkdir(parents=True, exist_ok=True)
    ranges = [range(a, min(a + PART_ROWS, count)) for a in range(0, count, PART_ROWS)]
    targets = [home / f"part-{r.start:010d}.npz" for r in ranges]
    todo = [(r, t) for r, t in zip(ranges, targets, strict=True) if not t.exists()]
    done = count - sum(len(r) for r, _ in todo)
    for examined in _examine_all(rows, plan, todo, workers):
        done += examined
        progress(done, count)
    found = _collected(home, targets, count)
    found.home = home
    _compare(found, rows, plan)
    return found


def _examine_all(
    rows: Rows, plan: Plan, todo: Sequence[tuple[range, Path]], workers: int
) -> Iterator[int]:
    """Write the parts that are not there yet; yields the rows of each when it is done."""
    workers = workers or (os.cpu_count() or 1)
    if workers < 2 or len(todo) * PART_ROWS <= ALONE or rows.stored is None:
        for part, target in todo:
            write_part(rows, plan, part, target)
            yield len(part)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _start, (rows.stored, plan)) as pool:
        jobs = [pool.submit(_work, part.start, part.stop, target) for part, target in todo]
        for job in jobs:
            yield job.result()


def write_part(rows: Rows, plan: Plan, part: range, target: Path) -> None:
    """Examine neighbouring rows and write their columns, atomically."""
    examined = [_examined(row, plan) for row in rows.batch(part)]
    columns = _columns(examined)
    store(target, lambda file: np.savez(file, **columns))  # type: ignore[arg-type]


def store(target: Path, save: Callable[[Any], None]) -> None:
    """Write a file of arrays, whole or not at all; other processes may write the same one."""
    partial = target.with_suffix(f".{os.getpid()}.tmp")
    with partial.open("wb") as file:
        save(file)
    partial.replace(target)


def _examined(row: Any, plan: Plan) -> tuple[Examined, str, str]:
    """Examine a row; gives its exact identity and its images, too."""
    example = parse_row(
        plan.format, row, kind=plan.kind, row_id="", place="", detected=plan.detected
    )
    if isinstance(row, dict):
        example = _lacking(row, plan.required) or example
    seen = examine(row, example, plan.folder)
    if isinstance(example, Dropped):
        return seen, _identity(row), ""
    if plan.against is not None and plan.against.asks(seen.asked):
        seen.codes.add("prompt_in_eval")
    same = (example.prompt, *example.answers, example.system, example.tools, example.images)
    return seen, content_hash(_plain(same)), "\n".join(example.images)


def _identity(row: Any) -> str:
    return content_hash(row if not isinstance(row, str) else {"text": row})


def _plain(value: Any) -> Any:
    """Make JSON of turns."""
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return {k: _plain(v) for k, v in value.items()} if hasattr(value, "items") else value


def _lacking(row: dict[str, Any], required: Sequence[str]) -> Dropped | None:
    """Drop a row without a column that the file's other rows have."""
    for name in required:
        if row.get(name) is None:
            reason = "null_field" if name in row else "missing_field"
            return Dropped("", reason, f"{name} is {'null' if name in row else 'missing'}")
    return None


def _columns(examined: Sequence[tuple[Examined, str, str]]) -> dict[str, np.ndarray]:
    """Make columns of examined rows."""
    count = len(examined)
    flags = np.zeros(count, np.uint64)
    sizes, scores = np.zeros((count, 3), np.int32), np.full((count, 2), np.nan, np.float32)
    keys, openings = np.zeros((count, 3), np.uint64), np.zeros((count, 2), np.uint64)
    parts: list[list[str]] = [[], [], []]
    for index, (seen, _, images) in enumerate(examined):
        for code in seen.codes:
            flags[index] |= BITS.get(code, BITS["wrong_type"])
        for place in range(3):
            text = seen.said[place] if place < len(seen.said) else ""
            parts[place].append(near.squeezed(text))
            sizes[index, place] = len(text)
            shown = normalised(text) + (images if place == 0 else "")
            keys[index, place] = _hash64(shown)
            if place:
                openings[index, place - 1] = _hash64(opening(text))
        scores[index] = [np.nan if s is None else s for s in seen.scores]
    signed = [near.signatures(texts) for texts in parts]
    return {
        "flags": flags, "lost": np.array([seen.lost for seen, *_ in examined], bool),
        "sizes": sizes, "scores": scores, "keys": keys, "openings": openings,
        "exact": np.array([int(exact, 16) for _, exact, _ in examined], np.uint64),
        "signed": near.combined(signed), "rejected": signed[2],
    }  # fmt: skip


def opening(text: str) -> str:
    """How an answer begins: its first line, up to 30 characters."""
    return text.strip()[:30].partition("\n")[0]


def _hash64(text: str) -> int:
    return int.from_bytes(fingerprint(text), "little")


def _collected(home: Path, targets: Sequence[Path], count: int) -> Survey:
    """Put the columns of all parts together; signatures go to memory-mapped files."""
    shape = (count, near.PERMUTATIONS)
    files = {name: home / f"{name}-{os.getpid()}.npy" for name in ("signed", "rejected")}
    maps = {
        name: np.lib.format.open_memmap(file, "w+", np.uint32, shape)
        for name, file in files.items()
    }
    for file in files.values():
        # The mapping lives on without the name; nothing is left behind, whatever happens.
        file.unlink()
    parts: dict[str, list[np.ndarray]] = {}
    at = 0
    for target in targets:
        with np.load(target, allow_pickle=False) as stored:
            for name in stored.files:
                if name in maps:
                    maps[name][at : at + len(stored[name])] = stored[name]
                else:
                    parts.setdefault(name, []).append(stored[name])
            at += len(stored["flags"])
        for mapped in maps.values():
            near.release(mapped)
    columns: dict[str, Any] = {name: np.concatenate(found) for name, found in parts.items()}
    return Survey(**columns, **maps)  # type: ignore[arg-type]


def _compare(found: Survey, rows: Rows, plan: Plan) -> None:
    """Compare every row with all earlier ones."""
    found.add("exact_duplicate", repeats(found.exact))
    usable = found.usable
    prompts, sides = found.keys[:, 0], found.keys[:, 1:]
    found.add("duplicate_prompt", repeats(prompts) & usable)
    if plan.kind == "pair":
        found.add("contradiction", _swapped(prompts, sides) & usable)
    skip = found.mask("exact_duplicate") | ~usable

    @lru_cache(4 * PART_ROWS)
    def parts(index: int) -> tuple[str, ...]:
        example = parse_row(plan.format, rows[index], kind=plan.kind, row_id="", place="")
        seen = examine(None, example, None)
        return tuple(near.squeezed(text) for text in seen.said)

    known = found.home / "copies.npy"
    if known.exists():
        found.copies = dict(np.load(known).tolist())
    else:
        copies = near.near_duplicates(found.signed, parts, skip)
        found.copies = {row: of for row, of in copies.items() if _same_images(rows, row, of)}
        table = np.array(sorted(found.copies.items()), np.int64).reshape(-1, 2)
        store(known, lambda file: np.save(file, table))
    found.add("near_duplicate", np.array(sorted(found.copies), np.int64))


def _same_images(rows: Rows, one: int, other: int) -> bool:
    """Images are part of a row's identity."""
    from alignax.data.images import references

    pair = (rows[one], rows[other])
    return len({references(row) for row in pair if isinstance(row, dict)}) < 2


def repeats(values: np.ndarray) -> np.ndarray:
    """[n] whether the same value occurs earlier."""
    first = np.unique(values, return_index=True)[1]
    again = np.ones(len(values), bool)
    again[first] = False
    return again


def _swapped(prompts: np.ndarray, sides: np.ndarray) -> np.ndarray:
    """[n] whether the same prompt and answers occur earlier with the labels swapped."""
    with np.errstate(over="ignore"):
        one = (prompts * np.uint64(3) ^ sides[:, 0]) * near.FACTOR ^ sides[:, 1]
        other = (prompts * np.uint64(3) ^ sides[:, 1]) * near.FACTOR ^ sides[:, 0]
    values, first = np.unique(one, return_index=True)
    place = np.minimum(np.searchsorted(values, other), len(values) - 1)
    return (values[place] == other) & (first[place] < np.arange(len(one))) & (one != other)
