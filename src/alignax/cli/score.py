# SPDX-License-Identifier: Apache-2.0
"""Write the log-probs (or rewards) of given answers, one JSON line a row, in file order.

  alignax score --model FOLDER --data pairs.jsonl --output scores.jsonl
  alignax score --model FOLDER --adapter runs/first --data pairs.jsonl --output scores.jsonl

Each line has `id`, `place`, `boundary` (prompt ids counted) and, for chosen and rejected, the
summed log-prob in nats and the number of scored tokens; or `dropped` with the reason. A reward
model (`alignax reward`, or a folder for sequence classification with one label) gives
`chosen_reward` and `rejected_reward` instead.
"""

import argparse
from pathlib import Path
from typing import Any

from alignax.cli.options import Parser, add_settings, require, settings_of
from alignax.errors import RunError
from alignax.files import write_lines

ROW_SETTINGS = (
    "data.path", "data.format", "data.columns", "data.pairing", "data.split",
    "data.max_rows", "data.max_length", "data.overlong",
    "data.prompt_cut", "data.render", "data.chat_template", "data.stop_token", "data.add_bos",
    "data.strict_template", "data.system", "data.whitespace_pairs", "data.cache",
)  # fmt: skip


def add_arguments(parser: Parser) -> None:
    """Add the flags of this verb."""
    parser.add_argument("--json", action="store_true", help="print totals as JSON")
    parser.add_argument("--force", action="store_true", help="replace an existing output file")
    add_settings(parser, "output", "model.", *ROW_SETTINGS, "train.microbatch_tokens", "mesh.")


def main(arguments: argparse.Namespace) -> int:
    """Score rows."""
    recipe = settings_of(arguments, method="dpo")
    require(recipe, "model.path", "data.path", "output")
    target = Path(recipe.output)
    if target.exists() and not arguments.force:
        raise RunError(f"{target} exists; nothing was written", hint="--force replaces it")
    from alignax.cli import terminal
    from alignax.cli.scoring import score_file

    lines = score_file(recipe)
    write_lines(target, lines)
    totals: dict[str, Any] = {
        "rows": len(lines),
        "scored": sum("dropped" not in line for line in lines),
        "dropped": sum("dropped" in line for line in lines),
        "output": str(target),
    }
    if arguments.json:
        terminal.write_result(totals)
    else:
        terminal.say(
            f"{totals['scored']} of {totals['rows']} rows scored, {totals['dropped']} dropped: "
            f"{target}"
        )
    return 0
