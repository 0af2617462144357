# SPDX-License-Identifier: Apache-2.0
"""Fine-tune a model on answers to imitate (SFT).

  alignax sft --model FOLDER --data answers.jsonl --output runs/sft
  alignax dpo --model FOLDER --adapter runs/sft --data pairs.jsonl --output runs/dpo

Rows may be prompt/response, message lists or preference pairs (their chosen answer is imitated).
DPO on top of the adapter compares with base + SFT adapter, as it should.
"""

import argparse

from alignax.cli.dpo import train
from alignax.cli.options import Parser, add_settings

SECTIONS = (
    "output", "model.", "data.", "lora.", "loss.type", "optimizer.", "train.", "mesh.", "sample.",
    "export.",
)  # fmt: skip


def add_arguments(parser: Parser) -> None:
    """Add the flags of this verb."""
    parser.add_argument("--recipe", metavar="FILE", help="YAML file with settings")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    add_settings(parser, *SECTIONS)


def main(arguments: argparse.Namespace) -> int:
    """Run SFT."""
    return train(arguments, method="sft")
