# SPDX-License-Identifier: Apache-2.0
"""An audit of rows → one self-contained page: what is wrong, how much, which rows, what to do."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from alignax.reasons import REASONS
from alignax.report.render import page
from alignax.report.tables import table, text

WIDTH, HEIGHT = 420, 120
"""Size of a histogram in its own units."""

CUT = 600
"""Characters of a row's texts that are shown."""


def render_data_page(
    audit: Mapping[str, Any],
    histograms: Mapping[str, tuple[Sequence[float], Sequence[int]]],
    worst: Mapping[str, Sequence[tuple[int, str, Sequence[str]]]],
) -> str:
    """Draw an audit.

    Args:
        audit: As `data check --json` writes it.
        histograms: Title → edges and counts.
        worst: Reason → some of its rows: number, place, texts.
    """
    sections = [
        _head(audit),
        _section("What would hurt", _advice(audit)),
        _section("Rows by reason", _reasons(audit)),
        _section("Distributions", _histograms(histograms)),
        _section("Figures", _figures(audit["statistics"])),
        _section("Rows to look at", _worst(worst)),
    ]
    footer = "Written by <code>alignax data check</code>; row numbers begin at 0."
    return page(f"Audit of {', '.join(audit['source'])}", "".join(sections), footer)


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>" if content else ""


def _head(audit: Mapping[str, Any]) -> str:
    """Title and the three figures that matter first."""
    facts = {
        "rows": audit["rows"], "kept": audit["kept"], "dropped": audit["rows"] - audit["kept"],
        "format": audit["format"], "used as": audit["kind"],
    }  # fmt: skip
    shown = "".join(f"<div><dt>{k}</dt><dd>{text(v)}</dd></div>" for k, v in facts.items())
    return f'<h1>Audit of {escape(", ".join(audit["source"]))}</h1><dl class="facts">{shown}</dl>'


def _advice(audit: Mapping[str, Any]) -> str:
    said = audit["advice"] or ["Nothing was found that would hurt."]
    state = "unclear" if audit["advice"] else "better"
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in said)
    return f'<div class="panel verdict {state}"><ul>{items}</ul></div>'


def _reasons(audit: Mapping[str, Any]) -> str:
    """Reason, rows, share, what is done, how many the filter took, first row numbers."""
    if not audit["reasons"]:
        return ""
    rows = []
    for code, found in sorted(audit["reasons"].items(), key=lambda item: -len(item[1])):
        meaning = REASONS[code].meaning if code in REASONS else ""
        shown = ", ".join(map(str, found[:8])) + (" …" if len(found) > 8 else "")
        rows.append(
            ("", [
                f"<code>{escape(code)}</code><br><span class=soft>{escape(meaning)}</span>",
                str(len(found)), f"{audit['shares'][code]:.2%}", audit["actions"][code],
                str(audit["effects"].get(code, 0)), shown,
            ])
        )  # fmt: skip
    return table(("reason", "rows", "share", "action", "dropped by it", "row numbers"), rows)


def _figures(numbers: Mapping[str, Any]) -> str:
    rows = [("", [escape(name.replace("_", " ")), text(value)]) for name, value in numbers.items()]
    return table(("what", "value"), rows)


def _histograms(histograms: Mapping[str, tuple[Sequence[float], Sequence[int]]]) -> str:
    parts = [_histogram(title, *found) for title, found in histograms.items() if sum(found[1])]
    return f'<div class="charts">{"".join(parts)}</div>' if parts else ""


def _histogram(title: str, edges: Sequence[float], counts: Sequence[int]) -> str:
    """Draw bars with the least and the greatest value below them."""
    most, width = max(counts), WIDTH / len(counts)
    bars = "".join(
        f'<rect x="{i * width:.1f}" y="{HEIGHT * (1 - count / most):.1f}" '
        f'width="{width - 1:.1f}" height="{HEIGHT * count / most:.1f}" fill="var(--first)">'
        f"<title>{edges[i]:g} to {edges[i + 1]:g}: {count} rows</title></rect>"
        for i, count in enumerate(counts)
    )
    return (
        f'<figure class="panel"><h3>{escape(title)}</h3><svg viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'role="img" aria-label="{escape(title)}">{bars}</svg>'
        f"<p>{edges[0]:g} to {edges[-1]:g}; tallest bar: {most} rows</p></figure>"
    )


def _worst(worst: Mapping[str, Sequence[tuple[int, str, Sequence[str]]]]) -> str:
    """Show rows by reason; invisible characters are spelt out."""
    parts = []
    for code, rows in worst.items():
        shown = "".join(
            f'<div class="panel"><p class="soft">row {number}, {escape(place)}</p>'
            + "".join(f"<p>{_visible(said)}</p>" for said in texts)
            + "</div>"
            for number, place, texts in rows
        )
        parts.append(f"<details><summary><code>{escape(code)}</code></summary>{shown}</details>")
    return "".join(parts)


def _visible(said: str) -> str:
    """Escape a text, cut it, and spell what cannot be seen."""
    cut = said[:CUT] + (" …" if len(said) > CUT else "")
    spelt = "".join(c if c.isprintable() or c == "\n" else f"⟨U+{ord(c):04X}⟩" for c in cut)
    return escape(spelt).replace("\n", "<br>")
