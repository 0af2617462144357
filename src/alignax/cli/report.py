# SPDX-License-Identifier: Apache-2.0
"""Write a run's report.html anew from the files in its folder.

alignax report runs/first
"""

import argparse
from dataclasses import asdict

from alignax.cli.options import Parser
from alignax.cli.run_folder import RunFolder
from alignax.files import write_text


def add_arguments(parser: Parser) -> None:
    """Add the flags of this verb."""
    parser.add_argument("run", metavar="RUN", help="run folder")
    parser.add_argument("--json", action="store_true", help="print what the report shows as JSON")


def main(arguments: argparse.Namespace) -> int:
    """Build and write the report."""
    from alignax.cli import terminal
    from alignax.report.build import build_report
    from alignax.report.render import render

    folder = RunFolder(arguments.run).require_run()
    report = build_report(folder.path)
    write_text(folder.report_file, render(report))
    if arguments.json:
        terminal.write_result(asdict(report))
    else:
        terminal.print_result(report.verdict)
        terminal.say(f"report: {folder.report_file}")
    return 0
