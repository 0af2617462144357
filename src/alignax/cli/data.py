# SPDX-License-Identifier: Apache-2.0
"""Look at rows before training on them.

alignax data check --data pairs.jsonl --model FOLDER   audit: what is kept, cut, dropped and why
alignax data show  --data pairs.jsonl --model FOLDER   first rows as coloured tokens: prompt,
                                                       answers, what is scored, the stop token
"""

import argparse
from typing import Any

from alignax.cli.options import Parser, add_settings, require, settings_of
from alignax.cli.score import ROW_SETTINGS
from alignax.errors import UsageError


def add_arguments(parser: Parser) -> None:
    """Add the two sub-verbs and their flags."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="check|show")
    for name, about in (
        ("check", "Count what is kept, cut and dropped, by reason, and warn of traps."),
        ("show", "Print the first rows as (id, piece, branch, in-loss)."),
    ):
        sub = verbs.add_parser(name, help=about, description=about)
        sub.add_argument("--json", action="store_true", help="print JSON")
        sub.add_argument(
            "--kind", choices=("pair", "sft"), default="pair", help="how the rows will be used"
        )
        if name == "show":
            sub.add_argument("--limit", type=int, default=3, metavar="N", help="rows to print")
        add_settings(
            sub, "model.path", *(s for s in ROW_SETTINGS if s != "data.whitespace_pairs"),
            "data.whitespace_pairs", "data.max_bad_share",
        )  # fmt: skip
        sub.set_defaults(parser=sub)


def main(arguments: argparse.Namespace) -> int:
    """Audit or show rows."""
    recipe = settings_of(arguments, method="dpo" if arguments.kind == "pair" else "sft")
    require(recipe, "model.path", "data.path")
    if arguments.verb == "show" and arguments.limit < 1:
        raise UsageError(f"--limit must be at least 1, got {arguments.limit}")
    from alignax.cli import terminal
    from alignax.cli.from_run import with_run_settings
    from alignax.cli.loading import load_rows, tokenizer_encoder
    from alignax.data.inspect import explain, render_report, render_rows

    recipe = with_run_settings(recipe)
    tokenizer, encoder = tokenizer_encoder(recipe)
    rows, report = load_rows(recipe.data, encoder, kind=arguments.kind, strict=False)
    if arguments.verb == "check":
        if arguments.json:
            terminal.write_result(report.to_json())
        else:
            terminal.print_result(render_report(report))
        # The audit comes first: it is what shows why rows are unusable.
        report.require_usable(recipe.data.max_bad_share)
        return 0
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
