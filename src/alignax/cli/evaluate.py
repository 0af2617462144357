# SPDX-License-Identifier: Apache-2.0
"""Measure a model, or verdicts on its answers.

  alignax evaluate heldout      loss, accuracy, margin, perplexity and KL on held-out pairs
  alignax evaluate alpaca-eval  official statistics of an AlpacaEval annotations file
  alignax evaluate mt-bench     tables of MT-Bench judgment files
  alignax evaluate win-rate     two files of answers to the same prompts, by a judge

`alignax evaluate WHAT --help` explains each.
"""

import argparse

from alignax.cli import alpaca_eval, mt_bench, win_rate
from alignax.cli.options import Parser, add_settings, require, settings_of
from alignax.cli.score import ROW_SETTINGS

SHOWN = ("accuracy", "margin")

HELDOUT = """Measure a model on held-out rows.

  alignax evaluate heldout --model runs/first                      the run's own held-out rows
  alignax evaluate heldout --model runs/first --data other.jsonl   other rows
  alignax evaluate heldout --model FOLDER --adapter A --data D     adapter against its base
  alignax evaluate heldout --model TUNED --reference BASE --data D
  alignax evaluate heldout --model REWARD_MODEL --data D --by subset

Prints loss, accuracy, margin, perplexity of the chosen answers and KL a token, each against the
reference, with 95 % intervals. A reward model gives accuracy and calibration. `--by` breaks the
accuracy down: by a column of the rows (as RewardBench's subset), by file, or by which answer is
longer.
"""


def add_arguments(parser: Parser) -> None:
    """Add the sub-verbs and their flags."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="WHAT")
    about = "Loss, accuracy, margin, perplexity and KL on held-out pairs."
    sub = verbs.add_parser("heldout", help=about, description=HELDOUT)
    sub.add_argument("--json", action="store_true", help="print JSON")
    sub.add_argument("--reference", metavar="MODEL", help="reference; default: without adapter")
    sub.add_argument("--by", metavar="WHAT", help="length, source, or a column of the rows")
    add_settings(
        sub, "model.", *ROW_SETTINGS, "loss.",
        "train.microbatch_tokens", "mesh.",
    )  # fmt: skip
    sub.set_defaults(parser=sub, run=heldout)
    alpaca_eval.add_arguments(verbs)
    mt_bench.add_arguments(verbs)
    win_rate.add_arguments(verbs)


def main(arguments: argparse.Namespace) -> int:
    """Run the sub-verb."""
    return arguments.run(arguments)


def heldout(arguments: argparse.Namespace) -> int:
    """Evaluate held-out rows."""
    recipe = settings_of(arguments, method="dpo")
    require(recipe, "model.path")
    from alignax.cli import terminal
    from alignax.cli.measuring import evaluate_heldout

    measured = evaluate_heldout(recipe, arguments.reference, arguments.by)
    values = measured.values
    if arguments.json:
        more = {"by": arguments.by, "groups": measured.groups} if arguments.by else {}
        terminal.write_result(terminal.finite(values | more))
        return 0
    rows = [
        (name, terminal.with_interval(values, name))
        for name in (
            "loss", "accuracy", "ties", "margin", "perplexity", "kl/token", "chosen_logratio",
            "rejected_logratio", "brier", "calibration_error",
        )
        if name in values
    ]  # fmt: skip
    against = f" against {measured.reference}" if measured.reference else ""
    title = f"{int(values['n'])} held-out rows{against}, 95 % intervals"
    terminal.show_table(title, ("", "value"), rows)
    if measured.groups:
        groups = [
            (label, str(group["n"]), *(terminal.with_interval(group, name) for name in SHOWN))
            for label, group in measured.groups.items()
        ]
        terminal.show_table(f"by {arguments.by}", ("", "pairs", *SHOWN), groups)
    return 0
