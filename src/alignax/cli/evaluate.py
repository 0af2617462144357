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

HELDOUT = """Measure a model on held-out rows.

  alignax evaluate heldout --model runs/first                      the run's own held-out rows
  alignax evaluate heldout --model runs/first --data other.jsonl   other rows
  alignax evaluate heldout --model FOLDER --adapter A --data D     adapter against its base
  alignax evaluate heldout --model TUNED --reference BASE --data D

Prints loss, accuracy, margin, perplexity of the chosen answers and KL a token, each against the
reference, with 95 % intervals.
"""


def add_arguments(parser: Parser) -> None:
    """Add the sub-verbs and their flags."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="WHAT")
    about = "Loss, accuracy, margin, perplexity and KL on held-out pairs."
    sub = verbs.add_parser("heldout", help=about, description=HELDOUT)
    sub.add_argument("--json", action="store_true", help="print JSON")
    sub.add_argument("--reference", metavar="MODEL", help="reference; default: without adapter")
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

    values, reference = evaluate_heldout(recipe, arguments.reference)
    if arguments.json:
        terminal.write_result(values)
        return 0
    rows = [
        (name, terminal.with_interval(values, name))
        for name in (
            "loss", "accuracy", "ties", "margin", "perplexity", "kl/token", "chosen_logratio",
            "rejected_logratio",
        )
        if name in values
    ]  # fmt: skip
    title = f"{int(values['n'])} held-out rows against {reference}, 95 % intervals"
    terminal.show_table(title, ("", "value"), rows)
    return 0
