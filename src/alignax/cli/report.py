# SPDX-License-Identifier: Apache-2.0
"""Write a run's report.html anew from the files in its folder.

alignax report runs/first
"""

import argparse
from dataclasses import asdict

from alignax.cli.options import Parser
from alignax.cli.run_folder import RunFolder
from alignax.files import read_json, write_text


def add_arguments(parser: Parser) -> None:
    """Add the flags of this verb."""
    parser.add_argument("run", metavar="RUN", help="run folder")
    parser.add_argument("--json", action="store_true", help="print what the report shows as JSON")


def main(arguments: argparse.Namespace) -> int:
    """Build and write the report."""
    from alignax.cli import terminal
    from alignax.report.build import build_report
    from alignax.report.render import render
    from alignax.report.sweep import is_sweep, render_sweep

    folder = RunFolder(arguments.run).require_run()
    if is_sweep(folder.path):
        page, shown = render_sweep(folder.path), read_json(folder.sweep_file)
        verdict = shown["reason"]
    else:
        report = build_report(folder.path)
        page, shown, verdict = render(report), asdict(report), report.verdict
    write_text(folder.report_file, page)
    if arguments.json:
        terminal.write_result(shown)
    else:
        terminal.print_result(verdict)
        terminal.say(f"report: {folder.report_file}")
    return 0
