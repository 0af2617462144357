# SPDX-License-Identifier: Apache-2.0
"""An audit → the page that shows it: histograms, and the rows to look at first."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from alignax.cli.auditing import Audited
from alignax.files import write_text
from alignax.report.data_page import render_data_page

BINS = 40
ROWS = 3
"""Rows shown for each reason."""


def write_page(target: Path, audited: Audited, result: Mapping[str, Any]) -> None:
    """Write the page of an audit."""
    worst = {
        code: [(row, audited.rows.place(row), _texts(audited, row)) for row in rows[:ROWS]]
        for code, rows in result["reasons"].items()
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    write_text(target, render_data_page(result, _histograms(audited), worst))


def _texts(audited: Audited, row: int) -> list[str]:
    """What a row says, or the raw row where it is unusable."""
    said = [text for text in audited.said(row) if text]
    return said or [str(audited.rows[row])]


def _histograms(audited: Audited) -> dict[str, tuple[list[float], list[int]]]:
    """Lengths of each part, differences in length, score margins."""
    found = audited.found
    usable = found.usable
    sizes = found.sizes[usable]
    values = {"characters of the prompt": sizes[:, 0], "characters of chosen": sizes[:, 1]}
    if audited.plan.kind == "pair":
        values["characters of rejected"] = sizes[:, 2]
        values["chosen − rejected, characters"] = sizes[:, 1] - sizes[:, 2]
        margins = found.margins[usable]
        values["score margin"] = margins[~np.isnan(margins)]
    return {title: _histogram(column) for title, column in values.items() if len(column)}


def _histogram(values: np.ndarray) -> tuple[list[float], list[int]]:
    """Count values between their 0.5 % and 99.5 % quantiles; what lies beyond goes to the ends."""
    low, high = np.percentile(values, (0.5, 99.5))
    counts, edges = np.histogram(np.clip(values, low, high), BINS)
    return [round(float(edge), 3) for edge in edges], counts.tolist()
