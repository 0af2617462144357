# SPDX-License-Identifier: Apache-2.0
r"""Train many variants of a preference run at once over one base, and find the right one.

  alignax sweep recipe.yaml --output runs/beta --grid loss.beta=0.05,0.1,0.5
  alignax sweep --model FOLDER --data pairs.jsonl --output runs/grid \
      --grid loss.beta=0.05,0.1,0.5 --grid optimizer.learning_rate=1e-4,3e-4
  alignax sweep recipe.yaml --output runs/losses --grid loss.type=sigmoid,ipo,kto
  alignax sweep recipe.yaml --output runs/seeds --seeds 5

Every combination of the values is a variant, and equals the same run alone. Base weights, rows,
reference pass and evaluation are shared; adapters, optimizer states and settings are stacked, and
one compiled step updates them all. Variants may differ in any loss.… and optimizer.… setting, in
lora.rank, lora.alpha and, by --seeds, in the seed of adapter and dropout.

A variant that a guard objects to (KL, loss, a value that is not a number) is frozen, the others
go on. At the end: a table with intervals, the recommended variant by a stated rule, its
recipe.best.yaml for `alignax dpo --recipe`, its adapter, a report. The folder then stands for the
recommended variant wherever a run does (`alignax chat --model runs/beta`, `--adapter runs/beta`).
"""

import argparse

from alignax.cli.grid import expand, parse_grid
from alignax.cli.options import Parser, add_settings, given_settings, require
from alignax.errors import UsageError
from alignax.recipe import load_recipe

GUARDS = ("finite", "kl", "loss", "gradient", "displacement", "overfit")
SECTIONS = (
    "output", "model.", "data.", "lora.rank", "lora.alpha", "lora.rslora", "lora.dropout",
    "lora.targets", "loss.",
    "reference.", "optimizer.", "train.steps", "train.epochs", "train.batch_size",
    "train.accumulate", "train.microbatch_tokens", "train.packing", "train.eval_steps",
    "train.save_steps", "train.keep", "train.seed", "train.remat", "train.memory_",
    "train.log_steps", "train.resume", "mesh.", *(f"guards.{name}." for name in GUARDS),
)  # fmt: skip
"""Settings that have an effect here. A sweep answers no prompts, profiles nothing and goes back to
no earlier state."""


def add_arguments(parser: Parser) -> None:
    """Add the flags of this verb."""
    parser.add_argument("file", nargs="?", metavar="RECIPE", help="YAML file with settings")
    parser.add_argument("--recipe", metavar="FILE", help="the same as a flag")
    parser.add_argument(
        "--grid", action="append", default=[], metavar="KEY=V1,V2",
        help="values of one setting; may be repeated, all combinations are trained",
    )  # fmt: skip
    parser.add_argument(
        "--seeds", type=int, default=1, metavar="N",
        help="train every combination with N seeds of adapter and dropout; rows keep their order",
    )  # fmt: skip
    parser.add_argument(
        "--slice", type=int, metavar="N",
        help="variants that are computed together (default: one on a CPU, else what fits)",
    )  # fmt: skip
    parser.add_argument(
        "--export", choices=("best", "all"), default="best",
        help="whose adapters are written (default: best)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    add_settings(parser, *SECTIONS)


def main(arguments: argparse.Namespace) -> int:
    """Run a sweep."""
    if arguments.file and arguments.recipe:
        raise UsageError(f"two recipes: {arguments.file} and --recipe {arguments.recipe}")
    file = arguments.file or arguments.recipe
    given = given_settings(arguments)
    grid = parse_grid(arguments.grid)
    both = sorted(grid.keys() & given.keys())
    if both:
        raise UsageError(f"given as a flag and swept: {', '.join(both)}", hint="take one of them")
    if arguments.slice is not None and arguments.slice < 1:
        raise UsageError(f"--slice must be at least 1, got {arguments.slice}")
    variants = expand(
        lambda settings: load_recipe(file, {**given, **settings, "method": "dpo"}),
        grid,
        arguments.seeds,
    )
    require(variants[0].recipe, "model.path", "data.path", "output")
    # Imported late: `--help` and usage errors should not wait for JAX.
    from alignax.cli import sweep_results, terminal
    from alignax.cli.sweep_setup import prepare_sweep

    sweep = prepare_sweep(variants, arguments.slice)
    found = sweep_results.execute(sweep, arguments.export)
    if arguments.json:
        terminal.write_result(terminal.finite(found))
    else:
        sweep_results.show(found, sweep.setup.folder.path)
    return 0
