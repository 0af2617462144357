# SPDX-License-Identifier: Apache-2.0
"""Recipe → rows, what is wrong with which, and which stay; shared by `data` and training."""

import argparse
import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alignax.cli import terminal
from alignax.data.examine import examine
from alignax.data.filters import Verdicts, apply_filters
from alignax.data.formats import FORMATS, RATINGS, detect, parse_row
from alignax.data.overlap import EvalPrompts, prompts_of
from alignax.data.reshape import Shape
from alignax.data.sources import Rows, open_rows
from alignax.data.summary import reason_table, statistics, what_hurts
from alignax.data.survey import Plan, Survey, required_columns, store, survey
from alignax.data.table import content_hash
from alignax.errors import DataError
from alignax.files import cache_folder, read_json, to_json
from alignax.reasons import REASONS, Filters, parse_filters
from alignax.recipe import DataSection, Recipe
from alignax.records import Dropped, Example

FIRST = 64
"""Rows by which the format is found."""

LACKING = ("missing_field", "null_field")
"""Hard reasons that show only beside the file's other rows."""

SHOWN = 20
"""Row numbers listed for each reason in a run's report."""


def row_cache(data: DataSection) -> Path:
    """Folder of everything that is made of rows."""
    return Path(data.cache) if data.cache else cache_folder() / "tokens"


def shape_of(data: DataSection) -> Shape:
    """How rows are reshaped when they are read."""
    return Shape(data.columns, data.pairing)


@dataclass
class Audited:
    """Rows with what is wrong with them.

    Attributes:
        rows: The rows.
        count: How many of them are used, from the first on.
        plan: How they are read.
        found: What is wrong with which.
        filters: What is done about it.
        verdicts: Which rows are dropped.
        seconds: Time that the survey took.
    """

    rows: Rows
    count: int
    plan: Plan
    found: Survey
    filters: Filters
    verdicts: Verdicts
    seconds: float

    @property
    def excluded(self) -> dict[int, str]:
        """Row → reason, for the rows that training leaves out and that the encoder would take."""
        return {
            row: code
            for row, code in self.verdicts.dropped.items()
            if not REASONS[code].hard or code in LACKING
        }

    def example(self, row: int) -> Example | Dropped:
        """Parse one row, with its content hash as id."""
        value = self.rows[row]
        return parse_row(
            self.plan.format, value, kind=self.plan.kind, row_id=content_hash(value),
            place=self.rows.place(row), detected=self.plan.detected,
        )  # fmt: skip

    def said(self, row: int) -> tuple[str, ...]:
        """Prompt and answers of a row as texts; empty texts if it is unusable."""
        return examine(None, self.example(row), None).said or ("", "", "")

    def table(self) -> dict[str, Any]:
        """Rows by reason."""
        return {
            "source": list(self.rows.files), "format": self.plan.format, "kind": self.plan.kind,
            **reason_table(self.found, self.filters, self.verdicts),
        }  # fmt: skip

    def brief(self) -> dict[str, Any]:
        """Counts and first row numbers by reason, for a run's report."""
        table = self.table()
        reasons = {
            code: {"count": len(rows), "rows": rows[:SHOWN], "action": table["actions"][code]}
            for code, rows in table["reasons"].items()
        }
        return {"rows": table["rows"], "kept": table["kept"], "reasons": reasons}

    def full(self, seed: int = 0) -> dict[str, Any]:
        """All that `data check` writes: the table, statistics, and what would hurt."""
        table = self.table()
        kept = self.found.home / f"statistics-{seed}.json"
        if kept.exists():
            numbers = read_json(kept)
        else:
            numbers = statistics(self.found, self.said, pairs=self.plan.kind == "pair", seed=seed)
            store(kept, lambda file: file.write(to_json(numbers).encode()))
        advice = what_hurts(table, numbers)
        return {**table, "statistics": numbers, "advice": advice, "seconds": round(self.seconds, 2)}


def audit_named(arguments: argparse.Namespace, recipe: Recipe) -> Audited:
    """Audit the rows that a `data` verb names, under the flags that all of them share."""
    return audit_rows(
        recipe.data, kind=arguments.kind, against=arguments.against, workers=arguments.workers,
        seed=arguments.seed,
    )  # fmt: skip


def audit_rows(
    data: DataSection,
    *,
    kind: str,
    paths: Any = None,
    against: Sequence[str] = (),
    workers: int = 0,
    seed: int = 0,
) -> Audited:
    """Read rows, find what is wrong with them and apply the filters.

    Args:
        data: Settings; ``path`` unless ``paths`` are given.
        kind: ``"pair"``, ``"sft"``, or ``"auto"``: pairs where the rows are pairs.
        paths: Files, globs or a hub id.
        against: Files with prompts of an evaluation, ``data.eval_path`` besides.
        workers: Processes; 0: as many as there are processors.
        seed: Of everything that is drawn.
    """
    began = time.perf_counter()
    paths = paths if paths is not None else data.path
    rows = open_rows(paths, split=data.split, cache_dir=row_cache(data), shape=shape_of(data))
    count = min(len(rows), data.max_rows or len(rows))
    plan = make_plan(rows, count, data, kind=kind, against=_eval_prompts(data, against))
    found = survey(
        rows, plan, count=count, folder=row_cache(data), workers=workers,
        progress=terminal.counter("rows examined"),
    )  # fmt: skip
    filters = parse_filters(data.filters)
    audited = Audited(rows, count, plan, found, filters, Verdicts({}, {}), 0.0)
    said = functools.lru_cache(1 << 14)(audited.said)
    audited.verdicts = apply_filters(found, filters, said, seed=seed)
    audited.seconds = time.perf_counter() - began
    return audited


def make_plan(
    rows: Rows, count: int, data: DataSection, *, kind: str, against: EvalPrompts | None = None
) -> Plan:
    """Find the format, and the columns that every row should have."""
    first = rows.batch(range(min(count, FIRST)))
    source = ", ".join(rows.files)
    try:
        wanted = "pair" if kind == "auto" else kind
        name = detect(data.format, first, kind=wanted, source=source, images=True)
    except DataError:
        if kind != "auto":
            raise
        name = detect(data.format, first, kind="sft", source=source, images=True)
    actual = FORMATS[name].kind if kind == "auto" else kind
    if kind == "auto" and actual == "sft" and any(_is_rated(row) for row in first):
        actual = "kto"
    folder = Path(rows.files[0]).parent if Path(rows.files[0]).exists() else None
    required = required_columns(name, first)
    return Plan(name, name != data.format, actual, required, folder, against)


def _is_rated(row: Any) -> bool:
    """Tell whether a row calls its one answer bad or good."""
    return isinstance(row, dict) and any(isinstance(row.get(name), bool) for name in RATINGS)


def _eval_prompts(data: DataSection, against: Sequence[str]) -> EvalPrompts | None:
    """Index the prompts of all evaluations that were named."""
    held = data.eval_path if data.eval_path is not None else []
    files = [*against, *([held] if isinstance(held, str) else held)]
    if not files:
        return None
    sets = [open_rows(file, split=data.split, cache_dir=row_cache(data)) for file in files]
    prompts = EvalPrompts(prompt for rows in sets for prompt in _prompts(rows, data))
    if not prompts.count:
        raise DataError(f"no prompts in {', '.join(files)}")
    return prompts


def _prompts(rows: Rows, data: DataSection) -> Any:
    """First user turns of evaluation rows: of a known format, or of a column that asks."""
    values = rows.batch(range(len(rows)))
    try:
        plan = make_plan(rows, len(rows), data.model_copy(update={"format": "auto"}), kind="auto")
    except DataError:
        return prompts_of(values)
    examples = (
        parse_row(plan.format, value, kind=plan.kind, row_id="", place="") for value in values
    )
    return [examine(None, e, None).asked for e in examples if not isinstance(e, Dropped)]
