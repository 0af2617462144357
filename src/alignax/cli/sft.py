# SPDX-License-Identifier: Apache-2.0
"""Fine-tune a model on answers to imitate (SFT).

  alignax sft --model FOLDER --data answers.jsonl --output runs/sft
  alignax dpo --model FOLDER --adapter runs/sft --data pairs.jsonl --output runs/dpo

Rows may be prompt/response, message lists or preference pairs (their chosen answer is imitated).
DPO on top of the adapter compares with base + SFT adapter, as it should.
"""

import argparse

from alignax.cli import dpo
from alignax.cli.options import Parser

SECTIONS = (
    "output", "model.", "data.", "lora.", "loss.type", "optimizer.", "train.", "guards.finite.",
    "guards.loss.", "guards.gradient.", "guards.overfit.", "guards.max_rollbacks",
    "guards.rate_factor", "mesh.", "sample.", "export.",
)  # fmt: skip


def add_arguments(parser: Parser) -> None:
    """Add the flags of this verb."""
    dpo.add_arguments(parser, SECTIONS)


def main(arguments: argparse.Namespace) -> int:
    """Run SFT."""
    return dpo.train(arguments, method="sft")
