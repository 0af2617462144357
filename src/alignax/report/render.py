# SPDX-License-Identifier: Apache-2.0
"""``RunReport`` → one HTML page that needs no network, no script and no other file."""

import difflib
import re
from collections.abc import Mapping
from html import escape
from typing import Any

from alignax.records import RunReport
from alignax.report import tables
from alignax.report.charts import draw_all
from alignax.report.style import CSS

BADGES = {
    "better": "Learned",
    "unclear": "No clear effect",
    "worse": "Got worse",
    "unfinished": "Not conclusive",
}

FINISH = {"stop": "ended by itself", "length": "cut at the length limit", "missing": "not sampled"}


def render(report: RunReport) -> str:
    """Write the page; all text from the run is escaped."""
    sections = [
        _head(report),
        section("How training went", _charts(report)),
        section("Held-out evaluations", _evaluations(report)),
        section("Goals", tables.goals(report.gate) if report.gate else ""),
        section("The same prompts, before and after", _samples(report)),
        section("What the rows are like", _audit(report)),
        section("Exported", tables.exports(report.exports) if report.exports else ""),
        section("Where the time went", tables.profile(report.profile) if report.profile else ""),
        section("Events", tables.events(report.events) if report.events else ""),
        section("Settings", _settings(report)),
        section(
            "Fingerprints", tables.fingerprints(report.fingerprints) if report.fingerprints else ""
        ),
    ]
    footer = (
        "Written by alignax from the files of the run folder; <code>alignax report</code> writes "
        "it anew."
    )
    return page(report.title, "".join(sections), footer)


def page(title: str, content: str, footer: str) -> str:
    """Put content (HTML) into a page of its own."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n<main>\n"
        f"{content}"
        f"<footer>{footer}</footer>\n</main>\n</body>\n</html>\n"
    )


def section(title: str, content: str) -> str:
    """Wrap content under a heading; nothing for nothing."""
    return f"<section>\n<h2>{title}</h2>\n{content}\n</section>\n" if content else ""


def _head(report: RunReport) -> str:
    """Title, facts, verdict and cards."""
    facts = "".join(
        f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>"
        for label, value in report.facts.items()
    )
    advice = "".join(f"<li>{escape(tip)}</li>" for tip in report.advice)
    if advice:
        advice = f'<p class="label">Next</p><ul>{advice}</ul>'
    cards = "".join(map(_card, report.headline))
    first, _, rest = report.verdict.partition(". ")
    first += "." * bool(rest)
    return (
        f'<header>\n<h1>{escape(report.title)}</h1>\n<dl class="facts">{facts}</dl>\n</header>\n'
        f'<div class="panel verdict {escape(report.status)}">'
        f'<span class="badge">{escape(BADGES.get(report.status, report.status))}</span>'
        f"<p><strong>{escape(first)}</strong> {escape(rest)}</p>{advice}</div>\n"
        f'<div class="cards">{cards}</div>\n'
    )


def _card(card: Mapping[str, str]) -> str:
    """One number: after, before, interval, and what to compare it with."""
    interval = f"95 %: {escape(card['interval'])}" if card["interval"] else ""
    lines = "<br>".join(line for line in (interval, escape(card["note"])) if line)
    return (
        f'<div class="panel"><div class="label">{escape(card["label"])}</div>'
        f'<div class="value">{escape(card["after"])}</div>'
        f'<div class="from">before: {escape(card["before"])}</div>'
        f'<div class="soft">{lines}</div></div>'
    )


def _charts(report: RunReport) -> str:
    """Every chart with what it means and what would be bad."""
    panels = [
        f'<div class="panel"><h3>{escape(chart.title)}</h3>{svg}'
        f"<p>{escape(chart.meaning)} <b>Bad:</b> {escape(chart.trouble)}</p></div>"
        for chart, svg in draw_all(report)
    ]
    if not panels:
        return ""
    note = (
        '<p class="soft">Thin: every logged step. Thick: running mean. '
        "Dots: held-out rows, with 95 % intervals.</p>"
    )
    return f'{note}<div class="charts">{"".join(panels)}</div>'


def _evaluations(report: RunReport) -> str:
    """The table of evaluations, with the result's row marked."""
    return tables.evaluations(report) if report.evaluations else ""


def _samples(report: RunReport) -> str:
    """Each prompt with both answers beside each other, differing words marked."""
    blocks = []
    for sample in report.samples:
        before, after = _differences(str(sample["before"]), str(sample["after"]))
        same = sample["before"] == sample["after"]
        blocks.append(
            f'<div class="panel sample"><div class="prompt"><div class="label">Prompt</div>'
            f"<pre>{escape(str(sample['prompt']))}</pre></div>"
            f'<div class="pair"><div>{_answer_label("Before", sample["before_finish"])}'
            f"<pre>{before}</pre></div>"
            f"<div>{_answer_label('After', 'unchanged' if same else sample['after_finish'])}"
            f"<pre>{after}</pre></div></div></div>"
        )
    return "".join(blocks)


def _answer_label(name: str, finish: Any) -> str:
    """Name an answer and say why it ended."""
    reason = escape(FINISH.get(str(finish), str(finish)))
    return f'<div class="label">{name} <em>({reason})</em></div>'


def _differences(before: str, after: str) -> tuple[str, str]:
    """Escape both answers and mark the words of the second that the first lacks."""
    old, new = re.findall(r"\s+|\S+", before), re.findall(r"\s+|\S+", after)
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    pieces = []
    for kind, _, _, start, end in matcher.get_opcodes():
        words = escape("".join(new[start:end]))
        if words:
            pieces.append(words if kind == "equal" else f"<mark>{words}</mark>")
    shared = matcher.ratio() > 0.5
    return escape(before), "".join(pieces) if shared else escape(after)


def _audit(report: RunReport) -> str:
    """The data audit, with how rows were held out."""
    if not report.data_report:
        return ""
    split = report.data_report.get("split")
    note = ""
    if isinstance(split, Mapping):
        parts = ", ".join(f"{escape(str(k))} {tables.text(v)}" for k, v in split.items())
        note = f'<p class="soft">Held-out split: {parts}.</p>'
    return note + tables.data_audit(report.data_report)


def _settings(report: RunReport) -> str:
    """Changed settings in view, all of them on demand."""
    changed, everything = tables.settings(report.settings)
    return (
        '<p class="soft">What differs from the defaults.</p>'
        f"{changed}<details><summary>All settings</summary>{everything}</details>"
    )
