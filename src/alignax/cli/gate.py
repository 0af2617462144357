# SPDX-License-Identifier: Apache-2.0
"""Compare a finished run with the model that it started from, goal by goal.

  alignax gate runs/first
  alignax gate runs/first --judge reward:runs/reward --prompts prompts.jsonl --goal "win_rate>0.6"
  alignax gate runs/first --texts plain.txt --gsm8k test.jsonl --items 100

Held-out figures come from the run. Both models answer the prompts (the run's held-out ones unless a
file is named): refusals, answers that end by themselves, length, repetition, and with a judge the
win rate. `--texts` compares perplexity on plain text, `--gsm8k` the share of right answers. The
table goes to gate.json and into the report; the exit code is 4 unless every goal is reached.
"""

import argparse
from collections.abc import Sequence
from typing import Any

from alignax.cli.judges import add_judge_flags, build_judge
from alignax.cli.options import Parser
from alignax.cli.run_folder import RunFolder
from alignax.cli.win_rate import GOAL_MISSED
from alignax.errors import RunError, UsageError


def add_arguments(parser: Parser) -> None:
    """Add the flags of this verb."""
    parser.add_argument("run", metavar="RUN", help="run folder")
    parser.add_argument("--goal", action="append", default=[], metavar="GOAL",
                        help='"win_rate>0.6", "perplexity<=8", "kl/token=0.01..0.2"')  # fmt: skip
    parser.add_argument("--prompts", metavar="FILE", help="prompts that both models answer")
    parser.add_argument("--texts", metavar="FILE", help="plain texts, one a line or row")
    parser.add_argument("--gsm8k", metavar="FILE", help="rows with question and answer (#### N)")
    parser.add_argument("--items", type=int, default=32, metavar="N", help="items of each file")
    parser.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help="limit")
    parser.add_argument("--batch-size", type=int, default=8, metavar="N", help="prompts at once")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_judge_flags(parser, required=False)


def main(arguments: argparse.Namespace) -> int:
    """Measure, compare, and write the table."""
    from alignax.evaluate.gate import check_goals, parse_goal

    folder = RunFolder(arguments.run).require_run()
    if not folder.summary_file.exists():
        raise RunError(f"run {folder.path} is not finished: it has no summary.json")
    named = dict(parse_goal(goal) for goal in arguments.goal)
    for flag in ("items", "max_new_tokens", "batch_size"):
        if getattr(arguments, flag) < 1:
            raise UsageError(f"--{flag.replace('_', '-')} must be at least 1")
    judge = build_judge(arguments) if arguments.judge else None
    if "win_rate" in named and judge is None:
        raise UsageError("--goal win_rate needs a judge", hint="name one with --judge")
    from alignax.cli import finish, terminal
    from alignax.cli.gating import measure_run
    from alignax.files import write_json

    if folder.recipe().method == "reward":
        raise UsageError(
            f"{folder.path} is a reward model, which answers nothing",
            hint="`alignax evaluate heldout` measures it",
        )
    measures, about = measure_run(folder, arguments, judge)
    records, passed = check_goals(measures, named)
    result = {"passed": passed, **about, "goals": records}
    write_json(folder.path / "gate.json", terminal.finite(result))
    finish.write_report(folder)
    if arguments.json:
        terminal.write_result(terminal.finite(result))
    else:
        show(records, passed)
        terminal.say(f"report: {folder.report_file}")
    return 0 if passed else GOAL_MISSED


def show(records: Sequence[dict[str, Any]], passed: bool) -> None:
    """Print the table for a person."""
    from alignax.cli import terminal

    rows = []
    for record in records:
        if record["status"] == "not measured":
            continue
        doubt = "" if record["certain"] else " (not certain)"
        ends = {
            f"value_{end}": record[end] for end in ("low", "high") if record.get(end) is not None
        }
        value = {"value": record["value"]} | ends if record["value"] is not None else {}
        before = record["before"]
        start = "–" if before is None else f"{before:.3f}"
        shown = terminal.with_interval(value, "value")
        rows.append((record["name"], start, shown, record["goal"], record["status"] + doubt))
    terminal.show_table("goals", ("", "before", "after", "goal", ""), rows)
    absent = [record["name"] for record in records if record["status"] == "not measured"]
    if absent:
        terminal.say(f"not measured: {', '.join(absent)}")
    terminal.say("all goals are reached" if passed else "not all goals are reached: exit code 4")
