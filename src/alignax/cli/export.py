# SPDX-License-Identifier: Apache-2.0
"""Write a run's adapter and merged model, and check them against the trained weights.

  alignax export runs/first
  alignax export runs/first --checkpoint last --export.dtype float32
  alignax export runs/sweep --variant v3

Every training run exports its best checkpoint by itself; this verb does it anew, or from another
checkpoint. Nothing is called done before the written files were loaded and compared.
"""

import argparse

from alignax.cli.options import Parser, add_settings, settings_of
from alignax.cli.run_folder import RunFolder
from alignax.errors import UsageError
from alignax.files import read_json
from alignax.recipe import Recipe


def add_arguments(parser: Parser) -> None:
    """Add the flags of this verb."""
    parser.add_argument("run", metavar="RUN", help="run folder")
    parser.add_argument(
        "--checkpoint", default="best", metavar="best|last|N", help="which (default: best)"
    )
    parser.add_argument(
        "--variant", metavar="NAME", help="of a sweep: whose adapter (default: the recommended one)"
    )
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")
    add_settings(parser, "export.")


def main(arguments: argparse.Namespace) -> int:
    """Export a checkpoint of a run."""
    folder = RunFolder(arguments.run).require_run()
    flags = settings_of(arguments, method="dpo").export
    recipe = folder.recipe()
    given = {name: getattr(flags, name) for name in flags.model_fields_set}
    recipe = recipe.model_copy(update={"export": recipe.export.model_copy(update=given)})
    from alignax.cli import finish, terminal
    from alignax.report.sweep import is_sweep

    if is_sweep(folder.path):
        return export_of_sweep(arguments, folder, recipe, bool(given))
    if arguments.variant:
        raise UsageError(f"--variant has no effect: {folder.path} is not a sweep")
    checkpoints = finish.checkpoints_of(folder, recipe)
    steps = {"last": checkpoints.steps[-1] if checkpoints.steps else None}
    steps["best"] = checkpoints.best_step or steps["last"]
    step = steps.get(arguments.checkpoint)
    if arguments.checkpoint.isdigit():
        step = int(arguments.checkpoint)
    if step is None or step not in checkpoints.steps:
        raise UsageError(
            f"run {folder.path} has no checkpoint {arguments.checkpoint!r}",
            hint=f"it has {', '.join(map(str, checkpoints.steps)) or 'none'}; or best, or last",
        )
    written = finish.export_checkpoint(folder, recipe, checkpoints, step)
    if folder.summary_file.exists():
        finish.record_exports(folder, read_json(folder.summary_file), written)
    if arguments.json:
        terminal.write_result(written)
    else:
        for entry in written:
            terminal.say(f"{entry['kind']} of step {step}: {entry['path']}")
    return 0


def export_of_sweep(
    arguments: argparse.Namespace, folder: RunFolder, recipe: Recipe, settings_given: bool
) -> int:
    """Export a variant's adapter, as it was at the last step."""
    from alignax.cli import sweep_export, terminal

    if settings_given or arguments.checkpoint not in ("best", "last"):
        raise UsageError(
            "of a sweep only adapters are written, from its last step: export settings and "
            "--checkpoint have no effect",
            hint=f"`alignax dpo --recipe {folder.best_recipe_file}` trains one variant alone",
        )
    written = sweep_export.export_saved(folder, recipe, arguments.variant)
    if arguments.json:
        terminal.write_result(written)
    else:
        for entry in written:
            terminal.say(f"adapter of {entry['variant']}: {entry['path']}")
    return 0
