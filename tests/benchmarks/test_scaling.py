# SPDX-License-Identifier: Apache-2.0
"""What is worked out from measured settings."""

import pytest

from benchmarks.scaling import COLUMNS, HEADS, SERIES, complete, explain, tables


def test_explained_times_lie_on_a_line_in_the_tiles():
    points = [
        {"tiles_per_token": tiles, "us_per_token": 100 + 2000 * tiles}
        for tiles in (0.01, 0.02, 0.1)
    ]
    assert explain(points) == pytest.approx([120, 140, 300])
    bent = [*points[:2], {"tiles_per_token": 0.1, "us_per_token": 600}]
    assert explain(bent)[1] != pytest.approx(140, rel=0.05)


def test_every_series_has_a_table():
    values = dict.fromkeys(HEADS, 1.0) | {"built_gib": 0.25}
    series = {
        name: [values | {name: n} for n in range(len(settings))]
        for name, settings in SERIES.items()
    }
    full = complete(series)
    assert full["vocab"][0]["growth_gib"] == 0.75
    lines = tables(full)
    for name, (what, fields) in COLUMNS.items():
        start = next(i for i, line in enumerate(lines) if line.startswith(f"| {what} |"))
        rows = lines[start : start + 2 + len(SERIES[name])]
        assert {line.count("|") for line in rows} == {len(fields) + 2}
