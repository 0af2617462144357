# SPDX-License-Identifier: Apache-2.0
"""Parts of a report → HTML tables; every value is escaped here."""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from alignax.recipe import Recipe, flatten, known_keys
from alignax.records import RunReport

EVALUATION_COLUMNS = (
    ("loss", "loss", 4),
    ("accuracy", "accuracy", 3),
    ("margin", "margin", 4),
    ("perplexity", "perplexity", 3),
    ("kl/token", "KL/token", 4),
    ("chosen_logratio", "chosen Δ/token", 4),
    ("rejected_logratio", "rejected Δ/token", 4),
)


def text(value: Any) -> str:
    """Format and escape any JSON value for a cell."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, float):
        return escape(number(value))
    if isinstance(value, Mapping):
        return "<br>".join(f"{words(k)}: {text(v)}" for k, v in value.items()) or "–"
    if isinstance(value, list | tuple):
        shown = "<br>".join(text(item) for item in value[:5]) or "–"
        return shown + (f"<br>… and {len(value) - 5} more" if len(value) > 5 else "")
    return escape(str(value))


def words(name: Any) -> str:
    """Turn a field's name into words."""
    return escape(str(name).replace("_", " "))


def number(value: float, digits: int | None = None) -> str:
    """Format a number; what is not finite says so."""
    if not math.isfinite(value):
        return "not finite" if math.isnan(value) else ("∞" if value > 0 else "-∞")
    rounded = f"{value:.{digits}f}" if digits is not None else f"{value:.6g}"
    return rounded.removeprefix("-") if float(rounded) == 0 else rounded


def table(
    head: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]], *, numeric: bool = False
) -> str:
    """Build a table from escaped cells; each row is (class, cells)."""
    kind = ' class="number"' if numeric else ""
    columns = "".join(f"<th{kind if i else ''}>{cell}</th>" for i, cell in enumerate(head))
    body = []
    for name, (first, *rest) in rows:
        cells = "".join(f"<td{kind}>{cell}</td>" for cell in rest)
        mark = f' class="{name}"' if name else ""
        body.append(f'<tr{mark}><th scope="row">{first}</th>{cells}</tr>')
    return (
        f'<div class="panel table"><div class="scroll"><table><thead><tr>{columns}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div></div>"
    )


def evaluations(report: RunReport) -> str:
    """Show every held-out evaluation, the result's row marked."""
    used = [c for c in EVALUATION_COLUMNS if any(c[0] in e for e in report.evaluations)]
    rows = []
    for values in report.evaluations:
        cells = [str(values["step"])]
        for name, _, digits in used:
            if name == "accuracy" and values.get("ties") == 1:
                cells.append("all tied")
                continue
            cell = number(values[name], digits) if name in values else "–"
            low, high = values.get(f"{name}_low"), values.get(f"{name}_high")
            if low is not None and high is not None:
                cell += f"<small>{number(low, digits)} to {number(high, digits)}</small>"
            cells.append(cell)
        rows.append(("result" if values["step"] == report.best_step else "", cells))
    return table(["step", *(label for _, label, _ in used)], rows, numeric=True)


def profile(traced: Mapping[str, Any]) -> str:
    """Show what each kind of operation took of a traced step, and the slowest operations."""
    steps = traced["steps"]
    kinds = [
        ("", [text(k["kind"]), number(k["seconds"] / steps, 3), f"{100 * k['share']:.1f} %"])
        for k in traced["kinds"]
    ]
    slowest = [
        (
            "",
            [
                text(op["op"]),
                text(op["kind"]),
                number(op["seconds"] / steps, 3),
                text(op["origin"]),
            ],
        )
        for op in traced["slowest"]
    ]
    note = f'<p class="soft">{steps} steps of {number(traced["seconds_per_step"], 2)} s.</p>'
    return (
        note
        + table(["", "s a step", "share"], kinds, numeric=True)
        + table(["operation", "kind", "s a step", "origin"], slowest)
    )


def data_audit(data_report: Mapping[str, Any]) -> str:
    """Show the audit of training and held-out rows beside each other."""
    parts = {k: v for k, v in data_report.items() if isinstance(v, Mapping) and k != "split"}
    keys = list(dict.fromkeys(key for part in parts.values() for key in part))
    rows = []
    for key in keys:
        cells = [
            dropped(part[key]) if key == "dropped" else text(part[key]) if key in part else "–"
            for part in parts.values()
        ]
        if any(cell != "–" for cell in cells):
            rows.append(("", [words(key), *cells]))
    return table(["", *(escape(name) for name in parts)], rows)


def dropped(reasons: Any) -> str:
    """Show each reason with its count and the first row ids."""
    if not isinstance(reasons, Mapping) or not reasons:
        return "none"
    lines = []
    for reason, entry in reasons.items():
        if isinstance(entry, Mapping):
            ids = [str(row) for row in list(entry.get("rows", []))[:3]]
            more = f' <span class="soft mono">{escape(", ".join(ids))}</span>' if ids else ""
            lines.append(f"{words(reason)}: {text(entry.get('count'))}{more}")
        else:
            lines.append(f"{words(reason)}: {text(entry)}")
    return "<br>".join(lines)


def settings(tree: Mapping[str, Any]) -> tuple[str, str]:
    """Show settings that differ from the defaults, and all of them."""
    fields = known_keys()
    defaults = flatten(Recipe.model_validate({}).model_dump(mode="json"))
    changed, everything = [], []
    for key, value in flatten(tree).items():
        default, known = defaults.get(key), key in fields
        meaning = escape(str(fields[key].description)) if known else ""
        differs = not known or value != default
        cells = [f"<code>{escape(key)}</code>", setting(value), setting(default), meaning]
        everything.append(("changed" if differs else "", cells))
        if differs:
            changed.append(("", cells))
    head = ["setting", "value", "default", "meaning"]
    return table(head, changed), table(head, everything)


def setting(value: Any) -> str:
    """Format one setting; an empty one is a dash."""
    if value in (None, ""):
        return "–"
    return text(", ".join(map(str, value)) if isinstance(value, list) else value)


def fingerprints(marks: Mapping[str, Any]) -> str:
    """Show hashes and versions; settings have their own table."""
    rows = [
        ("", [words(key), f'<span class="mono">{text(value)}</span>'])
        for key, value in marks.items()
        if key != "settings"
    ]
    return table(["", "value"], rows)


def events(records: Sequence[Mapping[str, Any]]) -> str:
    """Show what happened, in order."""
    rows = [
        (
            "",
            [
                text(record.get("step", "–")),
                words(record.get("kind", "")),
                text(record.get("message", "")),
            ],
        )
        for record in records
    ]
    return table(["step", "event", "what happened"], rows)


def goals(gate: Mapping[str, Any]) -> str:
    """Show every goal that was measured, and whether it is reached."""
    rows = []
    for goal in gate["goals"]:
        if goal["status"] == "not measured":
            continue
        value = text(goal["value"])
        if goal.get("low") is not None:
            value += f"<small>{text(goal['low'])} to {text(goal['high'])}</small>"
        status = text(goal["status"]) + ("" if goal["certain"] else " (not certain)")
        name = f"{words(goal['name'])}<small>{text(goal.get('about') or '')}</small>"
        rows.append(("", [name, text(goal["before"]), value, text(goal["goal"]), status]))
    judge = gate.get("judge")
    note = f"<p>Win rate by {text(judge)}.</p>" if judge else ""
    return table(["measure", "before", "after", "goal", ""], rows) + note


def exports(records: Sequence[Mapping[str, Any]]) -> str:
    """Show the exported forms with their checks."""
    rows = []
    for record in records:
        checks = {k: v for k, v in record.items() if k not in ("kind", "path")}
        cells = [text(record.get("kind")), f"<code>{text(record.get('path'))}</code>", text(checks)]
        rows.append(("", cells))
    return table(["form", "where", "checked against the trained model"], rows)
