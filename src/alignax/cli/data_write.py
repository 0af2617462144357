# SPDX-License-Identifier: Apache-2.0
"""Rows → files of rows: filtered, split, converted. What is left out has a file of its own."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from alignax.cli import terminal
from alignax.cli.auditing import Audited, audit_named
from alignax.data.convert import FORMS, mask
from alignax.data.examine import examine
from alignax.data.overlap import EvalPrompts
from alignax.data.texts import fingerprint, normalised
from alignax.errors import DataError, RunError, UsageError
from alignax.files import write_lines
from alignax.reasons import REASONS
from alignax.recipe import Recipe
from alignax.records import Dropped


def _free(arguments: argparse.Namespace, *targets: Path) -> None:
    """Refuse to replace files unless told to."""
    there = [str(target) for target in targets if target.exists()]
    if there and not arguments.force:
        raise RunError(f"{there[0]} exists; nothing was written", hint="--force replaces it")


def _targets(arguments: argparse.Namespace) -> tuple[Path, Path]:
    """Files for the rows that stay and, beside it, for the others; both must be free."""
    target = Path(arguments.output)
    beside = target.with_name("dropped.jsonl")
    if beside == target:
        raise UsageError("--output must not be dropped.jsonl, which holds the dropped rows")
    _free(arguments, target, beside)
    return target, beside


def _dropped_rows(audited: Audited) -> Iterator[dict[str, Any]]:
    """Each dropped row with its number, place, reason and content."""
    for row, code in audited.verdicts.dropped.items():
        example = audited.example(row)
        exact = isinstance(example, Dropped) and example.reason == code
        detail = example.detail if exact else f"rows that {REASONS[code].meaning}"  # type: ignore[union-attr]
        place = audited.rows.place(row)
        yield {
            "row": row, "place": place, "reason": code, "detail": detail, "data": audited.rows[row],
        }  # fmt: skip


def filter_rows(arguments: argparse.Namespace, recipe: Recipe) -> int:
    """Write the rows that stay, and the others with their reasons."""
    if arguments.suspicious is not None:
        if not 0 < arguments.suspicious < 1:
            raise UsageError(f"--suspicious must lie between 0 and 1, got {arguments.suspicious}")
        filters = {**recipe.data.filters, "suspicious_share": arguments.suspicious}
        data = recipe.data.model_copy(update={"filters": filters})
        recipe = recipe.model_copy(update={"data": data})
    target, beside = _targets(arguments)
    audited = audit_named(arguments, recipe)
    kept = audited.verdicts.kept(audited.count)
    write_lines(target, (audited.rows[row] for row in kept.tolist()))
    lost = write_lines(beside, _dropped_rows(audited))
    terminal.say(f"{len(kept)} of {audited.count} rows stay: {target}; {lost} dropped: {beside}")
    for code, count in sorted(audited.verdicts.effects.items(), key=lambda item: -item[1]):
        terminal.say(f"  {code}: {count}")
    terminal.write_result(
        {"rows": audited.count, "kept": len(kept), "dropped": lost, "by": audited.verdicts.effects}
    )
    return 0


def split_rows(arguments: argparse.Namespace, recipe: Recipe) -> int:
    """Write training and held-out rows by the hash of the first user turn."""
    if not 0 < arguments.fraction < 1:
        raise UsageError(f"--fraction must lie between 0 and 1, got {arguments.fraction}")
    folder = Path(arguments.output)
    targets = {name: folder / f"{name}.jsonl" for name in ("train", "eval", "dropped")}
    _free(arguments, *targets.values())
    audited = audit_named(arguments, recipe)
    kept = audited.verdicts.kept(audited.count).tolist()
    sides: dict[str, list[int]] = {"train": [], "eval": []}
    asked = {row: first_turn(audited, row) for row in kept}
    for row in kept:
        sides["eval" if share(asked[row]) < arguments.fraction else "train"].append(row)
    for name, rows in sides.items():
        write_lines(targets[name], (audited.rows[row] for row in rows))
    write_lines(targets["dropped"], _dropped_rows(audited))
    held = EvalPrompts(asked[row] for row in sides["eval"])
    turns = {normalised(asked[row]) for row in sides["eval"]}
    same = sum(normalised(asked[row]) in turns for row in sides["train"])
    near = sum(held.asks(asked[row]) for row in sides["train"])
    terminal.say(
        f"{len(sides['train'])} training rows, {len(sides['eval'])} held out: {folder}; leakage: "
        f"{same} training rows have a held-out first turn, {near} hold half of one's 8-grams"
    )
    counts = {"train": len(sides["train"]), "eval": len(sides["eval"])}
    dropped = len(audited.verdicts.dropped)
    terminal.write_result({**counts, "dropped": dropped, "leaked": same, "similar": near})
    return 0


def first_turn(audited: Audited, row: int) -> str:
    """What a row's user asks first."""
    return examine(None, audited.example(row), None).asked


def share(turn: str) -> float:
    """A number from 0 to 1 that is the same for the same first turn, in any file."""
    return int.from_bytes(fingerprint(normalised(turn)), "big") / 2**64


def convert_rows(arguments: argparse.Namespace, recipe: Recipe) -> int:
    """Write rows in another form."""
    target, beside = _targets(arguments)
    audited = audit_named(arguments, recipe)
    made = write_lines(target, _converted(audited, arguments.to, masking=arguments.mask))
    lost = write_lines(beside, _dropped_rows(audited))
    terminal.say(f"{made} rows in form {arguments.to}: {target}; {lost} rows dropped: {beside}")
    terminal.write_result({"rows": audited.count, "written": made, "dropped": lost})
    return 0


def _converted(audited: Audited, form: str, *, masking: bool) -> Iterator[dict[str, Any]]:
    """Convert the rows that stay; a rated row keeps its rating."""
    for row in audited.verdicts.kept(audited.count).tolist():
        example = audited.example(row)
        if isinstance(example, Dropped):
            continue
        try:
            made = list(FORMS[form](example))
        except ValueError as error:
            raise DataError(f"{audited.rows.place(row)}: {error}") from error
        if audited.plan.kind == "kto":
            label = audited.rows[row].get("label", audited.rows[row].get("kto_tag"))
            made = [{**one, "label": label} for one in made]
        yield from (mask(one) if masking else one for one in made)


VERBS = {"filter": filter_rows, "split": split_rows, "convert": convert_rows}
