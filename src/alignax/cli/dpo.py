# SPDX-License-Identifier: Apache-2.0
"""Align a model with preference pairs by DPO.

  alignax dpo --model FOLDER --data pairs.jsonl --output runs/first
  alignax dpo --recipe recipe.yaml --loss.beta 0.05 --train.epochs 1

The rows may be HH-RLHF transcripts, UltraFeedback, TRL or ShareGPT rankings; `alignax data check`
says what is in them. A tenth of the prompts is held out and evaluated before, during and after.
Settings in a recipe file have the names of the flags; flags win over the file.
"""

import argparse
from collections.abc import Sequence

from alignax.cli.options import Parser, add_settings, require, settings_of

SECTIONS = (
    "output", "model.", "data.", "lora.", "loss.", "reference.", "optimizer.", "train.",
    "guards.", "mesh.", "sample.", "export.",
)  # fmt: skip


def add_arguments(parser: Parser, sections: Sequence[str] = SECTIONS) -> None:
    """Add the flags of a training verb: those that all share, and its own sections."""
    parser.add_argument("--recipe", metavar="FILE", help="YAML file with settings")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    add_settings(parser, *sections)


def main(arguments: argparse.Namespace) -> int:
    """Run DPO."""
    return train(arguments, method="dpo")


def train(arguments: argparse.Namespace, *, method: str) -> int:
    """Run one training method from the command line."""
    recipe = settings_of(arguments, method=method)
    require(recipe, "model.path", "data.path", "output")
    # Imported late: `--help` and usage errors should not wait for JAX.
    from alignax.cli import finish, terminal
    from alignax.cli.setup import prepare

    setup = prepare(recipe)
    summary = finish.execute(setup)
    if arguments.json:
        terminal.write_result(summary)
    else:
        finish.show_summary(setup.folder)
    return 0
