# SPDX-License-Identifier: Apache-2.0
"""Train a reward model on preference pairs (Bradley-Terry).

  alignax reward --model FOLDER --data pairs.jsonl --output runs/reward
  alignax reward --model FOLDER --data scored.jsonl --loss.type bradley_terry_margin ...
  alignax evaluate win-rate --judge reward:runs/reward --outputs A.jsonl --baseline B.jsonl

A scalar head on the last token of each answer is trained together with a LoRA adapter (or all
weights); accuracy on held-out pairs comes with its interval and its calibration. The result is a
Hugging Face folder for sequence classification with one label.
"""

import argparse

from alignax.cli import dpo
from alignax.cli.options import Parser

SECTIONS = (
    "output", "model.", "data.", "lora.", "loss.type", "loss.centre_weight", "loss.score_scale",
    "optimizer.", "train.", "guards.finite.", "guards.loss.", "guards.gradient.",
    "guards.overfit.", "guards.max_rollbacks", "guards.rate_factor", "mesh.", "export.dtype",
)  # fmt: skip


def add_arguments(parser: Parser) -> None:
    """Add the flags of this verb."""
    dpo.add_arguments(parser, SECTIONS)


def main(arguments: argparse.Namespace) -> int:
    """Train a reward model."""
    return dpo.train(arguments, method="reward")
