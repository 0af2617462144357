# SPDX-License-Identifier: Apache-2.0
r"""Let a judge compare two files of answers to the same prompts.

  alignax evaluate win-rate --outputs tuned.jsonl --baseline base.jsonl --judge rules:rules.json
  alignax evaluate win-rate --outputs tuned.jsonl --baseline base.jsonl --judge openai:MODEL \
      --base-url http://127.0.0.1:8000/v1 --verdicts verdicts.jsonl

Answer files are those of `alignax generate` (prompt, text), of AlpacaEval (instruction, output) or
alike. Every item is asked in both orders; disagreement is a tie; items without a verdict are
counted, never averaged. Beside the win rate stand its bounds, what the orders tell of the judge,
and whether a constant answer would win as well.
"""

import argparse
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from alignax.cli.judges import add_judge_flags, build_judge
from alignax.cli.options import Parser
from alignax.errors import RunError, UsageError
from alignax.records import Comparison, Verdict

ABOUT = "Win rate of one file of answers over another, by a judge."
GOAL_MISSED = 4


def add_arguments(verbs: Any) -> None:
    """Add the sub-verb and its flags."""
    sub: Parser = verbs.add_parser("win-rate", help=ABOUT, description=__doc__)
    sub.add_argument("--outputs", required=True, metavar="FILE", help="the candidate's answers")
    sub.add_argument("--baseline", required=True, metavar="FILE", help="answers to compare with")
    sub.add_argument("--names", metavar="A,B", help="models behind the files; default: file names")
    sub.add_argument("--common", action="store_true", help="compare only prompts in both files")
    sub.add_argument("--verdicts", metavar="FILE", help="write every verdict as a JSON line")
    sub.add_argument("--null-items", type=int, default=50, metavar="N",
                     help="items on which a constant answer is judged too")  # fmt: skip
    sub.add_argument("--goal", type=float, metavar="X", help="exit code 4 unless the rate is above")
    sub.add_argument("--force", action="store_true", help="replace an existing verdicts file")
    sub.add_argument("--json", action="store_true", help="print JSON")
    add_judge_flags(sub)
    sub.set_defaults(parser=sub, run=main)


def main(arguments: argparse.Namespace) -> int:
    """Judge and print."""
    from alignax.cli import terminal
    from alignax.cli.outputs import pair_up, read_outputs
    from alignax.evaluate.win_rate import summarize
    from alignax.files import write_lines
    from alignax.judge.orders import judge_both_orders, null_model, self_preference

    target = Path(arguments.verdicts) if arguments.verdicts else None
    if target is not None and target.exists() and not arguments.force:
        raise RunError(f"{target} exists; nothing was judged", hint="--force replaces it")
    names = _names(arguments)
    ours = read_outputs(arguments.outputs, flag="--outputs")
    theirs = read_outputs(arguments.baseline, flag="--baseline")
    items, lone = pair_up(ours, theirs, common=arguments.common)
    judge = build_judge(arguments)
    # Judged together, so that the estimate before the first call covers both.
    null = null_model(items[: max(arguments.null_items, 0)])
    asked = [*items, *null]
    with terminal.progress("judgements", len(asked) * (1 if judge.symmetric else 2)) as advance:
        verdicts = judge_both_orders(judge, asked, done=advance)
    verdicts, null_verdicts = verdicts[: len(items)], verdicts[len(items) :]
    if target is not None:
        write_lines(target, (asdict(verdict) for verdict in verdicts))
        terminal.say(f"verdicts: {target}")
    result = summarize(items, verdicts)
    notes = [
        f"{lone} prompts are in one file only and were not compared" if lone else "",
        self_preference(judge, *names),
        _about_null(null, null_verdicts),
    ]
    values = asdict(result) | {
        "candidate": names[0],
        "baseline": names[1],
        "judge_name": judge.name,
        "judge_fingerprint": judge.fingerprint,
        "prompts_fingerprint": _fingerprint(items),
        "warnings": [*result.warnings, *filter(None, notes)],
    }
    if arguments.json:
        terminal.write_result(terminal.finite(values))
    else:
        _show(values, result, len(items))
    reached = arguments.goal is None or result.rate.value > arguments.goal
    if not reached:
        terminal.say(f"goal not reached: {result.rate.value:.3f} is not above {arguments.goal}")
    return 0 if reached else GOAL_MISSED


def _names(arguments: argparse.Namespace) -> tuple[str, str]:
    """Name both sides."""
    if arguments.names is None:
        return Path(arguments.outputs).stem, Path(arguments.baseline).stem
    parts = [part.strip() for part in arguments.names.split(",")]
    if len(parts) != 2 or not all(parts):
        raise UsageError(f"--names must be two names, got {arguments.names!r}", hint="--names A,B")
    return parts[0], parts[1]


def _about_null(items: Sequence[Comparison], verdicts: Sequence[Verdict]) -> str:
    """Warn of a judge with which a constant answer wins."""
    from alignax.evaluate.win_rate import summarize

    rate = summarize(items, verdicts).rate
    if not rate.value >= 0.5:
        return ""
    return (
        f"a constant answer wins {rate.value:.0%} of {rate.n} items against the baseline: this "
        "judge cannot tell an answer from none"
    )


def _fingerprint(items: Sequence[Comparison]) -> str:
    """Hash the prompts, whatever their order."""
    text = json.dumps(sorted((item.item_id, item.prompt) for item in items))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _show(values: dict[str, Any], result: Any, count: int) -> None:
    """Print the table for a person."""
    from alignax.cli import terminal

    counts = ", ".join(f"{n} {outcome}" for outcome, n in sorted(result.counts.items()))
    low, high = result.bounds
    controlled = result.length_controlled
    rows = [
        ("win rate, ties half", result.rate.shown()),
        ("wins of won and lost (Wilson)", result.wilson.shown()),
        ("verdicts", counts),
        ("coverage", f"{result.coverage:.3f}; bounds {low:.3f} … {high:.3f}"),
        ("sign test", f"p = {result.p_value:.2g}"),
        ("at equal length", "-" if math.isnan(controlled) else f"{controlled:.3f}"),
        ("mean length", f"{result.lengths[0]:.0f} against {result.lengths[1]:.0f} characters"),
        ("longer answer wins", result.longer_wins.shown()),
        ("orders disagree", result.judge.flip_rate.shown()),
        ("ties", result.judge.tie_rate.shown()),
        ("answer shown first wins", result.judge.first_wins.shown()),
    ]
    title = (
        f"{values['candidate']} against {values['baseline']}, {count} items, {values['judge_name']}"
    )
    terminal.show_table(title, ("", "value"), rows)
    for warning in values["warnings"]:
        terminal.warn(warning)
