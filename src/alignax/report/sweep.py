# SPDX-License-Identifier: Apache-2.0
"""Files of a sweep's folder → one HTML page: what to take, the front, the curves, all variants."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import yaml

from alignax.errors import RunError
from alignax.files import read_json, read_lines
from alignax.report import tables
from alignax.report.render import page, section
from alignax.report.sweep_charts import curves, front

COLUMNS = (
    ("accuracy", "accuracy", 3), ("margin", "margin", 4), ("loss", "loss", 4),
    ("kl/token", "KL/token", 4), ("perplexity", "perplexity", 2),
    ("chosen_logratio", "chosen Δ/token", 4),
)  # fmt: skip

CURVES = (
    ("accuracy", "Held-out accuracy", "Share of pairs whose chosen answer has the higher reward."),
    ("kl/token", "KL to the reference, a token", "How far each variant went."),
    ("loss", "Held-out loss", "On one scale only for variants of one loss and one β."),
    ("margin", "Reward margin", "β included, so a higher β alone makes it larger."),
)


def is_sweep(folder: Path) -> bool:
    """Tell whether a run folder is that of a sweep, finished or not."""
    marks = folder / "fingerprints.json"
    return marks.exists() and "variants" in read_json(marks)


def render_sweep(folder: Path) -> str:
    """Write the page from the folder's files; all text from them is escaped.

    Raises:
        RunError: The sweep is not finished, or a file is damaged.
    """
    if not (folder / "sweep.json").exists():
        raise RunError(
            f"the sweep in {folder} is not finished; metrics.jsonl has its values so far",
            hint="repeat its command with --train.resume",
        )
    found = read_json(folder / "sweep.json")
    recipe = yaml.safe_load((folder / "recipe.yaml").read_text(encoding="utf-8"))
    lines = _evaluations(folder, [variant["name"] for variant in found["variants"]])
    events = read_lines(folder / "events.jsonl")
    marks = read_json(folder / "fingerprints.json")
    _, settings = tables.settings(recipe)
    parts = [
        _head(found, recipe),
        section("Accuracy against KL", _front(found, recipe)),
        section("All variants", _table(found)),
        section("Over seeds", _seeds(found["seeds"])),
        section("How they learned", _curves(found, lines)),
        section("Exported", tables.exports(found["exports"]) if found["exports"] else ""),
        section("Events", tables.events(events) if events else ""),
        section(
            "Settings",
            f"<details><summary>Those of v1, which the others share but for what the table names"
            f"</summary>{settings}</details>",
        ),
        section("Fingerprints", tables.fingerprints(marks)),
    ]
    return page(_title(found), "".join(parts), "Written by alignax from the files of the folder.")


def _evaluations(folder: Path, names: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Held-out values of every variant from ``metrics.jsonl``, in step order."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for record in read_lines(folder / "metrics.jsonl"):
        if record.get("kind") != "eval":
            continue
        for name in names:
            prefix = f"{name}/"
            own = {k.removeprefix(prefix): v for k, v in record.items() if k.startswith(prefix)}
            if own:
                found[name].append({"step": record["step"], **own})
    return found


def _title(found: Mapping[str, Any]) -> str:
    """Name the sweep."""
    model = str(found["model"]).rstrip("/").rpartition("/")[2]
    return f"Sweep of {len(found['variants'])} variants: {model}"


def _head(found: Mapping[str, Any], recipe: Mapping[str, Any]) -> str:
    """Title, facts, the recommended variant with its rule, and what else was seen."""
    rows = found["rows"]
    facts = {
        "Rows": ", ".join(f"{k} {v}" for k, v in rows.items()),
        "Steps": str(found["steps"]),
        "Shared": ", ".join(found["shared"]),
        "Computed together": str(found["together"]),
        "Time": f"{found['seconds']:.0f} s",
    }
    known = {"optimizer.learning_rate": "Learning rate", "loss.beta": "β", "lora.rank": "Rank"}
    for key, label in known.items():
        part, _, leaf = key.partition(".")
        if key not in found["variants"][0]["settings"] and recipe[part][leaf] is not None:
            facts[label] = str(recipe[part][leaf])
    listed = "".join(
        f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts.items()
    )
    notes = "".join(f"<li>{escape(note)}</li>" for note in found["notes"])
    status, badge = ("better", "Take this one") if found["recommended"] else ("worse", "None")
    return (
        f'<header>\n<h1>{escape(_title(found))}</h1>\n<dl class="facts">{listed}</dl>\n</header>\n'
        f'<div class="panel verdict {status}"><span class="badge">{badge}</span>'
        f"<p><strong>{escape(found['reason'])}</strong></p>"
        f"<p>Rule: {escape(found['rule'])}.</p><ul>{notes}</ul></div>\n"
    )


def _front(found: Mapping[str, Any], recipe: Mapping[str, Any]) -> str:
    """The front, and how to read it."""
    band = recipe["guards"]["kl"]
    svg = front(found["variants"], found["recommended"], band["top"], band["bottom"])
    return (
        f'<div class="panel">{svg}<p>Up is better, left is nearer to where training started; bars '
        "are 95 % intervals, the KL band is shaded, the dashed line is chance, hollow marks are "
        "frozen variants. <b>Bad:</b> intervals that all overlap: the held-out rows are too few to "
        "choose by.</p></div>"
    )


def _table(found: Mapping[str, Any]) -> str:
    """Every variant with its intervals; the recommended one is marked."""
    rows = []
    for one in found["variants"]:
        cells = [escape(one["name"]), escape(one["label"])]
        cells += [_cell(one["values"], name, digits) for name, _, digits in COLUMNS]
        frozen = one["frozen"]
        cells.append(escape(f"frozen: {frozen['why']}") if frozen else "trained to the end")
        rows.append(("result" if one["name"] == found["recommended"] else "", cells))
    head = ["", "settings", *(label for _, label, _ in COLUMNS), "how it ended"]
    return tables.table(head, rows, numeric=True)


def _seeds(rows: Sequence[Mapping[str, Any]]) -> str:
    """Means over seeds with the intervals of those means."""
    if not rows:
        return ""
    shown = COLUMNS[:5]
    body = []
    for row in rows:
        label = ", ".join(f"{k} {v}" for k, v in row["settings"].items()) or "the recipe"
        cells = [escape(label), str(row["seeds"])]
        body.append(("", cells + [_cell(row, name, digits) for name, _, digits in shown]))
    head = ["settings", "seeds", *(label for _, label, _ in shown)]
    return tables.table(head, body, numeric=True)


def _cell(values: Mapping[str, Any], name: str, digits: int) -> str:
    """A value with its interval, both escaped."""
    if values.get(name) is None:
        return "–"
    cell = tables.number(values[name], digits)
    low, high = values.get(f"{name}_low"), values.get(f"{name}_high")
    if low is not None and high is not None:
        cell += f"<small>{tables.number(low, digits)} to {tables.number(high, digits)}</small>"
    return cell


def _curves(found: Mapping[str, Any], lines: Mapping[str, Any]) -> str:
    """Learning curves on the held-out rows."""
    panels = [
        f'<div class="panel"><h3>{escape(title)}</h3>'
        f"{curves(found['variants'], lines, metric, title, found['recommended'])}"
        f"<p>{escape(meaning)}</p></div>"
        for metric, title, meaning in CURVES
    ]
    return f'<div class="charts">{"".join(panels)}</div>'
