# SPDX-License-Identifier: Apache-2.0
"""Look at rows before training on them, here or elsewhere; no model is needed.

alignax data check FILE [--json OUT] [--html PAGE]   audit: rows by reason, statistics, advice
alignax data check FILE --model FOLDER               the same, and what the model's tokens add
alignax data show FILE --model FOLDER                first rows as coloured tokens
alignax data filter FILE --output KEPT.jsonl --data.filters exact_duplicate=drop,score_tie=drop
alignax data stats FILE [--json OUT]                 lengths, separators, languages, diversity
alignax data split FILE --output FOLDER              train and held-out rows, by first user turn
alignax data convert FILE --to trl --output OUT      rows in another tool's form
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from alignax.cli.options import Parser, add_settings, require, settings_of
from alignax.cli.score import ROW_SETTINGS
from alignax.errors import UsageError
from alignax.files import write_text
from alignax.recipe import Recipe

READING = (
    "data.path", "data.format", "data.columns", "data.pairing", "data.split", "data.max_rows",
    "data.filters", "data.eval_path", "data.cache",
)  # fmt: skip
"""Settings of verbs that need no model."""

VERBS = {
    "check": "Audit rows: what is wrong with which, statistics, and what would hurt training.",
    "show": "Print the first rows as (id, piece, branch, in-loss).",
    "filter": "Write the rows that stay; the others go to dropped.jsonl with their reasons.",
    "stats": "Print lengths, trivial separators, languages and diversity.",
    "split": "Write training and held-out rows; a first user turn is never on both sides.",
    "convert": "Write rows in the form of TRL, LLaMA-Factory, alignax, or as rated answers.",
}


def add_arguments(parser: Parser) -> None:
    """Add the sub-verbs and their flags."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="|".join(VERBS))
    for name, about in VERBS.items():
        sub = verbs.add_parser(name, help=about, description=about)
        sub.add_argument("files", nargs="*", metavar="FILE", help="rows, as --data")
        _ADDERS[name](sub)
        sub.set_defaults(parser=sub)


def _add_kind(parser: Parser, default: str) -> None:
    parser.add_argument(
        "--kind", choices=("auto", "pair", "sft"), default=default,
        help="how the rows will be used; auto: as pairs if they are pairs",
    )  # fmt: skip


def add_audit_flags(parser: Parser) -> None:
    """Add what every verb that audits takes."""
    _add_kind(parser, "auto")
    parser.add_argument(
        "--against", action="append", default=[], metavar="FILE",
        help="prompts of an evaluation (AlpacaEval, MT-Bench, any rows); may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--workers", type=int, default=0, metavar="N", help="processes (default: processors)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of all that is drawn")


def _add_check(parser: Parser) -> None:
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="OUT", help="write JSON to OUT (default: stdout)"
    )
    parser.add_argument("--html", metavar="PAGE", help="write a self-contained page")
    add_audit_flags(parser)
    more = [s for s in ROW_SETTINGS if s not in READING]
    add_settings(parser, "model.path", *READING, *more, "data.max_bad_share")


def _add_show(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    _add_kind(parser, "pair")
    parser.add_argument("--limit", type=int, default=3, metavar="N", help="rows to print")
    add_settings(parser, "model.path", *ROW_SETTINGS, "data.max_bad_share")


def _add_stats(parser: Parser) -> None:
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="OUT", help="write JSON to OUT (default: stdout)"
    )
    add_audit_flags(parser)
    add_settings(parser, *READING)


def _add_writing(parser: Parser, what: str) -> None:
    parser.add_argument("--output", required=True, metavar="PATH", help=what)
    parser.add_argument("--force", action="store_true", help="replace existing output")
    add_audit_flags(parser)
    add_settings(parser, *READING)


def _add_filter(parser: Parser) -> None:
    parser.add_argument(
        "--suspicious", type=float, metavar="SHARE",
        help="drop the rows whose labels look most like flips: as the filter suspicious_share",
    )  # fmt: skip
    _add_writing(parser, "file for the rows that stay")


def _add_split(parser: Parser) -> None:
    parser.add_argument(
        "--fraction", type=float, default=0.1, metavar="X", help="share held out (default: 0.1)"
    )
    _add_writing(parser, "folder for train.jsonl and eval.jsonl")


def _add_convert(parser: Parser) -> None:
    parser.add_argument(
        "--to", choices=("alignax", "trl", "llamafactory", "kto"), default="alignax",
        help="form of the rows",
    )  # fmt: skip
    parser.add_argument(
        "--mask", action="store_true", help="replace e-mail addresses and telephone numbers"
    )
    _add_writing(parser, "file for the converted rows")


_ADDERS = {
    "check": _add_check, "show": _add_show, "filter": _add_filter, "stats": _add_stats,
    "split": _add_split, "convert": _add_convert,
}  # fmt: skip


def main(arguments: argparse.Namespace) -> int:
    """Run a sub-verb."""
    if getattr(arguments, "workers", 0) < 0:
        raise UsageError(f"--workers must be at least 0, got {arguments.workers}")
    recipe = _recipe(arguments)
    return _MAINS[arguments.verb](arguments, recipe)


def _recipe(arguments: argparse.Namespace) -> Recipe:
    """Settings, with the files that were named without a flag."""
    recipe = settings_of(arguments, method="sft" if arguments.kind == "sft" else "dpo")
    if arguments.files:
        if recipe.data.path:
            raise UsageError("name the rows once: as FILE or with --data")
        files = arguments.files if len(arguments.files) > 1 else arguments.files[0]
        data = recipe.data.model_copy(update={"path": files})
        recipe = recipe.model_copy(update={"data": data})
    require(recipe, "data.path")
    return recipe


def _check(arguments: argparse.Namespace, recipe: Recipe) -> int:
    """Audit rows."""
    from alignax.cli import terminal
    from alignax.cli.auditing import audit_named
    from alignax.data.inspect import render_audit, render_report

    audited = audit_named(arguments, recipe)
    result = audited.full(arguments.seed)
    report = None
    if recipe.model.path:
        report = _with_tokens(recipe, audited, result)
    if arguments.json:
        write_json(arguments.json, result)
    if arguments.html:
        from alignax.cli.data_page import write_page

        write_page(Path(arguments.html), audited, result)
    if arguments.json != "-":
        terminal.print_result(render_audit(result))
        if report is not None:
            terminal.print_result(render_report(report))
    # The audit comes first: it is what shows why rows are unusable.
    if report is not None:
        report.require_usable(recipe.data.max_bad_share)
    return 0


def _with_tokens(recipe: Recipe, audited: Any, result: dict[str, Any]) -> Any:
    """Encode the rows, too: adds reasons that only the tokenizer knows, and its report."""
    from alignax.cli.from_run import with_run_settings
    from alignax.cli.loading import load_rows, tokenizer_encoder

    recipe = with_run_settings(recipe)
    _, encoder = tokenizer_encoder(recipe)
    _, report = load_rows(
        recipe.data,
        encoder,
        kind="pair" if audited.plan.kind == "pair" else "sft",
        strict=False,
        excluded=audited.excluded,
    )
    lost: dict[str, set[int]] = {}
    for row, dropped in report.dropped_rows.items():
        lost.setdefault(dropped.reason, set()).add(row)
    for code, more in lost.items():
        result["reasons"][code] = sorted(more.union(result["reasons"].get(code, ())))
        result["actions"].setdefault(code, "drop")
    for code, rows in result["reasons"].items():
        result["shares"][code] = round(len(rows) / max(result["rows"], 1), 6)
    result["kept"] = report.kept
    values = report.to_json()
    result |= {name: value for name, value in values.items() if name not in result}
    return report


def write_json(target: str, value: Any) -> None:
    """Write JSON to a file, or to stdout (``-``)."""
    if target == "-":
        from alignax.cli import terminal

        terminal.write_result(value)
        return
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    write_text(Path(target), json.dumps(value, ensure_ascii=False, indent=1) + "\n")
    sys.stderr.write(f"written: {target}\n")


def _show(arguments: argparse.Namespace, recipe: Recipe) -> int:
    """Show rows as tokens."""
    require(recipe, "model.path")
    if arguments.limit < 1:
        raise UsageError(f"--limit must be at least 1, got {arguments.limit}")
    from alignax.cli import terminal
    from alignax.cli.auditing import audit_rows
    from alignax.cli.from_run import with_run_settings
    from alignax.cli.loading import load_rows, tokenizer_encoder
    from alignax.data.inspect import explain, render_rows

    recipe = with_run_settings(recipe)
    kind = arguments.kind
    if kind == "auto":
        kind = audit_rows(recipe.data, kind="auto").plan.kind.replace("kto", "sft")
    tokenizer, encoder = tokenizer_encoder(recipe)
    rows, report = load_rows(recipe.data, encoder, kind=kind, strict=False)
    if not len(rows):
        report.require_usable(recipe.data.max_bad_share)
    shown = [rows[index] for index in range(min(arguments.limit, len(rows)))]
    if arguments.json:
        result: list[dict[str, Any]] = [
            {"id": e.row_id, "tokens": [list(t) for t in explain(e, tokenizer)]} for e in shown
        ]
        terminal.write_result(result)
    else:
        for encoded in shown:
            terminal.print_result(render_rows(encoded, tokenizer))
    return 0


def _write(arguments: argparse.Namespace, recipe: Recipe) -> int:
    """Run a sub-verb that writes rows."""
    from alignax.cli import data_write

    return data_write.VERBS[arguments.verb](arguments, recipe)


def _stats(arguments: argparse.Namespace, recipe: Recipe) -> int:
    """Print statistics only."""
    from alignax.cli import terminal
    from alignax.cli.auditing import audit_named
    from alignax.data.inspect import render_statistics

    audited = audit_named(arguments, recipe)
    numbers = audited.full(arguments.seed)["statistics"]
    if arguments.json:
        write_json(arguments.json, numbers)
    if arguments.json != "-":
        terminal.print_result(render_statistics(numbers))
    return 0


_MAINS = {
    "check": _check, "show": _show, "stats": _stats,
    "filter": _write, "split": _write, "convert": _write,
}  # fmt: skip
