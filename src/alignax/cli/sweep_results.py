# SPDX-License-Identifier: Apache-2.0
"""Trained sweep → table, sweep.json, sweep.csv, recipe.best.yaml, adapters and report."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from alignax.cli import terminal
from alignax.cli.finish import Interrupted
from alignax.cli.run_lock import writing
from alignax.cli.sweep_export import Exporter, summary_of
from alignax.cli.sweep_setup import Sweep, about
from alignax.cli.sweeping import Trained, run
from alignax.errors import StoppedByGuard
from alignax.evaluate.variants import SHOWN, Advice, Outcome, recommend, seed_table
from alignax.files import write_json, write_text
from alignax.recipe import Recipe, dump_recipe
from alignax.report.sweep import render_sweep


def execute(sweep: Sweep, export: Literal["best", "all"]) -> dict[str, Any]:
    """Train all variants and write everything that a sweep leaves behind.

    Returns:
        What ``sweep.json`` holds.

    Raises:
        StoppedByGuard: Guards froze every variant; what there is was written before.
    """
    setup = sweep.setup
    for line in about(sweep):
        terminal.say(line)
    with writing(setup.folder.path):
        setup.folder.require_usable(resume=setup.recipe.train.resume)
        trained = run(sweep)
        if trained.result.signal_number is not None:
            raise Interrupted(setup.folder.path, trained.result.step, trained.result.signal_number)
        return write_results(sweep, trained, export)


def write_results(sweep: Sweep, trained: Trained, export: Literal["best", "all"]) -> dict[str, Any]:
    """Choose a variant, export, and write the files."""
    setup, outcomes = sweep.setup, outcomes_of(sweep, trained)
    band = setup.recipe.guards.kl
    advice = recommend(outcomes, trained.right, bottom=band.bottom, top=band.top)
    found = results(sweep, trained, outcomes, advice)
    folder = setup.folder.path
    best = next((v for v in sweep.variants if v.name == advice.name), None)
    targets = {v.name: v for v in sweep.variants} if export == "all" else {}
    if best is not None:
        targets["adapter"] = best
        recipe = best_recipe(best.recipe, folder)
        write_text(setup.folder.best_recipe_file, dump_recipe(recipe))
    exporter = Exporter(
        setup.policy, setup.network, setup.start, setup.encoder, setup.folder, found
    )
    found["exports"] = [
        exporter.write(variant, sweep.names.index(variant.name), trained.result.state, name)
        for name, variant in targets.items()
    ]
    write_text(folder / "sweep.csv", as_csv(outcomes))
    setup.compilations.close()
    found["compilations"] = setup.compilations.summary()
    write_json(setup.folder.sweep_file, terminal.finite(found))
    write_json(setup.folder.summary_file, summary_of(found))
    write_text(setup.folder.report_file, render_sweep(folder))
    if not trained.watch.running.any():
        raise StoppedByGuard(
            f"guards froze all {len(outcomes)} variants; {setup.folder.report_file} says why",
            problems=[f"{o.name} ({o.label}): {o.frozen['why']}" for o in outcomes if o.frozen],
            hint="lower the learning rates, or raise guards.kl.top",
        )
    return found


def outcomes_of(sweep: Sweep, trained: Trained) -> list[Outcome]:
    """Take every variant's last evaluation."""
    found = []
    for variant in sweep.variants:
        evaluations = trained.watch.evaluations[variant.name]
        step = max(evaluations, default=0)
        found.append(
            Outcome(
                variant.name, variant.label, variant.settings, step, evaluations.get(step, {}),
                trained.watch.frozen.get(variant.name),
            )
        )  # fmt: skip
    return found


def results(
    sweep: Sweep, trained: Trained, outcomes: Sequence[Outcome], advice: Advice
) -> dict[str, Any]:
    """Collect what ``sweep.json`` holds."""
    setup, result = sweep.setup, trained.result
    return {
        "method": "sweep",
        "model": setup.recipe.model.path,
        "rows": setup.reports["split"],
        "steps": result.step,
        "variants": [asdict(outcome) for outcome in outcomes],
        "recommended": advice.name,
        "rule": advice.rule,
        "reason": advice.reason,
        "notes": advice.notes,
        "seeds": seed_table(outcomes),
        "shared": ["base weights", "order of rows", "reference pass", "held-out rows"],
        "together": setup.at_once,
        "seconds": round(trained.seconds, 1),
        "step_seconds": round(result.seconds, 1),
    }


def best_recipe(recipe: Recipe, folder: Path) -> Recipe:
    """The variant as a single run, in a folder beside the sweep's."""
    beside = folder.with_name(f"{folder.name}-best")
    train = recipe.train.model_copy(update={"resume": False})
    return recipe.model_copy(update={"output": str(beside), "train": train})


def as_csv(outcomes: Sequence[Outcome]) -> str:
    """One line a variant: its settings, how it ended, and every held-out value."""
    settings, metrics = list(outcomes[0].settings), list(outcomes[0].values)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["variant", *settings, "step", "frozen", *metrics])
    for one in outcomes:
        frozen = one.frozen["why"] if one.frozen else ""
        writer.writerow(
            [one.name, *one.settings.values(), one.step, frozen]
            + [one.values.get(metric, "") for metric in metrics]
        )
    return text.getvalue()


def show(found: Mapping[str, Any], folder: Path) -> None:
    """Print the table to stdout, and what to make of it as talk."""
    heads = {"accuracy": 3, "margin": 3, "loss": 3, "kl/token": 4}
    rows = []
    for one in found["variants"]:
        values = one["values"]
        mark = "recommended" if one["name"] == found["recommended"] else ""
        if one["frozen"]:
            mark = f"frozen at step {one['frozen']['step']}: {one['frozen']['guard']}"
        cells = [terminal.with_interval(values, name, digits) for name, digits in heads.items()]
        rows.append((one["name"], one["label"], *cells, mark))
    count = int(found["variants"][0]["values"].get("n", 0))
    title = f"sweep: step {found['steps']}, {count} held-out rows, 95 % intervals"
    terminal.show_table(title, ("", "settings", *heads, ""), rows)
    for row in found["seeds"]:
        label = " ".join(f"{k.rpartition('.')[2]}={v}" for k, v in row["settings"].items())
        shown = "  ".join(f"{name} {terminal.with_interval(row, name)}" for name in SHOWN[:2])
        terminal.say(f"{row['seeds']} seeds of {label or 'the recipe'}:  {shown}")
    terminal.say(f"rule: {found['rule']}")
    terminal.say(f"recommended: {found['reason']}")
    for note in found["notes"]:
        terminal.say(f"- {note}")
    for entry in found["exports"]:
        terminal.say(f"adapter of {entry['variant']}: {entry['path']}")
    if found["recommended"]:
        best = folder / "recipe.best.yaml"
        terminal.say(f"as a single run: alignax dpo --recipe {best}")
    terminal.say(f"report: {folder / 'report.html'}")
