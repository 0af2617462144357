# SPDX-License-Identifier: Apache-2.0
"""Scores per model and category → a page with tables and a radar plot, in one file."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from alignax.records import Score
from alignax.report import tables
from alignax.report.render import page

SIZE, RADIUS, TOP = 420, 140, 10.0
RINGS = (2, 4, 6, 8, 10)
COLOURS = ("var(--first)", "var(--second)", "var(--good)", "var(--bad)", "var(--ink-soft)")
DASHES = ("", "6 3", "2 3")


def benchmark_page(title: str, scores: Mapping[str, Any]) -> str:
    """Write the page.

    Args:
        title: Heading.
        scores: By model: an object with ``turns``, ``average``, ``categories`` (``Score``s),
            ``unparsed`` and ``missing``.
    """
    names = list(dict.fromkeys(n for s in scores.values() for n in s.categories))
    values = {
        model: [s.categories[n].value if n in s.categories else math.nan for n in names]
        for model, s in scores.items()
    }
    turns = sorted({turn for s in scores.values() for turn in s.turns})
    head = ["model", *(f"turn {turn}" for turn in turns), "average", "no grade", "missing"]
    rows = [
        ("", [escape(model), *(_cell(s.turns[t]) for t in turns), _cell(s.average),
              str(s.unparsed), str(s.missing)])
        for model, s in scores.items()
    ]  # fmt: skip
    by_category = [
        ("", [escape(m), *(_cell(s.categories.get(n)) for n in names)]) for m, s in scores.items()
    ]
    content = (
        f"<h1>{escape(title)}</h1>\n<p class='soft'>Grades from 1 to 10, with 95 % intervals over "
        "answers. Judgements without a grade are left out of the means and counted.</p>"
        f'<div class="panel">{radar(names, values)}</div>'
        f"<h2>Turns</h2>{tables.table(head, rows, numeric=True)}"
        f"<h2>Categories, both turns</h2>"
        f"{tables.table(['model', *map(escape, names)], by_category, numeric=True)}"
    )
    return page(title, content, "Written by alignax from judgment files.")


def _cell(score: Score | None) -> str:
    return "-" if score is None else score.shown(2)


def radar(names: Sequence[str], values: Mapping[str, Sequence[float]]) -> str:
    """Draw one polygon a model over the categories, as inline SVG; gaps where a value is NaN."""
    lines = [
        f'<svg viewBox="0 0 {SIZE + 220} {SIZE}" role="img" aria-label="scores by category" '
        'font-size="12" fill="none" stroke-width="1">'
    ]
    for ring in RINGS:
        corners = [_point(place, ring, len(names)) for place in range(len(names))]
        lines.append(f'<polygon points="{_points(corners)}" stroke="var(--rule)"/>')
        x, y = _point(0, ring, len(names))
        lines.append(f'<text x="{x + 3:.1f}" y="{y:.1f}" fill="var(--ink-soft)">{ring}</text>')
    for place, name in enumerate(names):
        x, y = _point(place, TOP * 1.14, len(names))
        anchor = "middle" if abs(x - SIZE / 2) < 1 else "start" if x > SIZE / 2 else "end"
        lines.append(
            f'<text x="{x:.1f}" y="{y + 4:.1f}" text-anchor="{anchor}" fill="var(--ink)">'
            f"{escape(name)}</text>"
        )
    for number, (model, series) in enumerate(values.items()):
        colour = COLOURS[number % len(COLOURS)]
        dash = DASHES[number // len(COLOURS) % len(DASHES)]
        style = f'stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"'
        for start, run in _runs(series):
            corners = [_point(start + k, value, len(names)) for k, value in enumerate(run)]
            shape = "polygon" if len(run) == len(names) else "polyline"
            lines.append(f'<{shape} points="{_points(corners)}" {style}/>')
            lines += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" {style}/>' for x, y in corners]
        y = 24 + 18 * number
        lines.append(f'<line x1="{SIZE}" y1="{y}" x2="{SIZE + 24}" y2="{y}" {style}/>')
        lines.append(f'<text x="{SIZE + 30}" y="{y + 4}" fill="var(--ink)">{escape(model)}</text>')
    return "\n".join([*lines, "</svg>"])


def _point(place: int, value: float, count: int) -> tuple[float, float]:
    """Place a value on a spoke; the first points up."""
    angle = 2 * math.pi * place / count - math.pi / 2
    reach = RADIUS * value / TOP
    return SIZE / 2 + reach * math.cos(angle), SIZE / 2 + reach * math.sin(angle)


def _points(corners: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)


def _runs(series: Sequence[float]) -> list[tuple[int, list[float]]]:
    """Split a series where values are missing: (start, values) of each run."""
    runs: list[tuple[int, list[float]]] = []
    for place, value in enumerate(series):
        if math.isnan(value):
            continue
        if not runs or runs[-1][0] + len(runs[-1][1]) != place:
            runs.append((place, []))
        runs[-1][1].append(value)
    return runs
