# SPDX-License-Identifier: Apache-2.0
"""How time, compile time and memory grow: four series of settings, a plot and tables.

    make bench-scaling                        about 15 minutes on a quiet machine
    make bench-scaling ARGS="--quick"         the two ends of every series, two layers

Each setting is measured once and kept in ``.cache/bench/scaling`` (``--fresh`` forgets). Results go
to ``benchmarks/results/scaling.json`` and ``scaling.svg`` and to ``docs/performance.md``.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402

from alignax.files import write_json  # noqa: E402
from benchmarks.cases import ROOT  # noqa: E402
from benchmarks.processes import machine  # noqa: E402
from benchmarks.results import show, splice  # noqa: E402

TOKENS = 8192
"""Tokens of a step in the series over length."""

SERIES: Mapping[str, Sequence[dict[str, Any]]] = {
    "pairs": [{"pairs": count} for count in (1, 2, 4, 8, 16, 32, 64)],
    "length": [
        {"length": length, "pairs": TOKENS // length} for length in (256, 512, 1024, 2048, 4096)
    ],
    "vocab": [
        {"vocab": vocab, "layers": 2, "steps": 1} for vocab in (49152, 98304, 196608, 262144)
    ],
    "layers": [{"layers": layers, "steps": 1} for layers in (2, 8, 16, 30)],
}
"""Name, which is also the setting that varies → settings in growing order."""

COLUMNS = {
    "pairs": ("pairs a step", ("pairs_per_s", "us_per_token")),
    "length": ("tokens a pair", ("us_per_token", "explained_us", "tiles_per_token", "growth_gib")),
    "vocab": ("vocabulary", ("growth_gib", "weights_gib", "peak_gib", "us_per_token")),
    "layers": ("layers", ("compile_s", "growth_gib", "weights_gib", "peak_gib")),
}
"""Series → what varies, and the fields of its table."""

HEADS = {
    "pairs_per_s": "pairs/s", "us_per_token": "µs a token", "explained_us": "explained µs",
    "tiles_per_token": "attention tiles a token", "growth_gib": "growth while training, GiB",
    "weights_gib": "weights, GiB", "peak_gib": "peak, GiB", "compile_s": "compile, s",
}  # fmt: skip

NOTES = {
    "pairs": "Pairs of HH-RLHF's lengths, 6 layers.",
    "length": f"{TOKENS} tokens a step in pairs of one length (half prompt, a quarter each "
    "answer), 6 layers. *Explained* is the best line through all lengths: a cost a token, and a "
    "cost a live attention tile. Where it agrees with what was measured, attention over what may "
    "attend is all that grows.",
    "vocab": "2 layers, 16 pairs. Growth is the peak while training less what was in use before, "
    "compiling included; the head's chunks are what depends on the vocabulary.",
    "layers": "16 pairs, 49,152 entries.",
}


def explain(points: Sequence[Mapping[str, Any]]) -> list[float]:
    """Fit time a token = a + b · live tiles a token, and return the fitted times."""
    tiles = np.array([point["tiles_per_token"] for point in points])
    times = np.array([point["us_per_token"] for point in points])
    if len(points) < 2:
        return times.tolist()
    basis = np.stack([np.ones_like(tiles), tiles], axis=1)
    return (basis @ np.linalg.lstsq(basis, times, rcond=None)[0]).tolist()


def complete(series: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """Add what follows from several measurements."""
    full = {
        name: [dict(p) | {"growth_gib": p["peak_gib"] - p["built_gib"]} for p in points]
        for name, points in series.items()
    }
    for point, fitted in zip(full["length"], explain(full["length"]), strict=True):
        point["explained_us"] = fitted
    return full


def tables(series: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Write the page's section."""
    lines = ["![Scaling](../benchmarks/results/scaling.svg)"]
    for name, (what, fields) in COLUMNS.items():
        lines += ["", NOTES[name], ""]
        lines += [f"| {what} | {' | '.join(HEADS[field] for field in fields)} |"]
        lines += ["|---" * (1 + len(fields)) + "|"]
        for point in series[name]:
            cells = [str(point[name]), *(show(point[field]) for field in fields)]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def plot(series: Mapping[str, Sequence[Mapping[str, Any]]], file: Path) -> None:
    """Draw a panel a question."""
    panels = (
        ("pairs", ("pairs_per_s",), True), ("length", ("us_per_token", "explained_us"), True),
        ("length", ("growth_gib",), True), ("vocab", ("growth_gib", "weights_gib"), False),
        ("layers", ("growth_gib", "weights_gib"), False), ("layers", ("compile_s",), False),
    )  # fmt: skip
    plt.rcParams["svg.hashsalt"] = "alignax"
    figure, axes = plt.subplots(2, 3, figsize=(10, 5.5), layout="constrained")
    for axis, (name, fields, logarithmic) in zip(axes.flat, panels, strict=True):
        x = [point[name] for point in series[name]]
        for field, style in zip(fields, ("o-", "x--"), strict=False):
            axis.plot(x, [point[field] for point in series[name]], style, label=HEADS[field])
        if logarithmic:
            axis.set_xscale("log", base=2)
        axis.set_xlabel(COLUMNS[name][0])
        axis.set_ylim(bottom=0)
        axis.legend(frameon=False, fontsize=8)
        axis.grid(alpha=0.3)
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


def point(setting: Mapping[str, Any], work: Path) -> dict[str, Any]:
    """Measure one setting, or find it."""
    digest = hashlib.sha256(json.dumps(setting, sort_keys=True).encode()).hexdigest()[:12]
    file = work / f"{digest}.json"
    if file.exists():
        return json.loads(file.read_text(encoding="utf-8"))
    hidden = ("JAX_COMPILATION_CACHE_DIR", "XLA_FLAGS")
    environment = {k: v for k, v in os.environ.items() if k not in hidden}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.point", json.dumps(setting)], cwd=ROOT, text=True,
        env=environment | {"JAX_PLATFORMS": "cpu"}, stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    result = json.loads(done.stdout) | {"load": os.getloadavg()[0]}
    write_json(file, result)
    return result


def main() -> None:
    """Measure what is missing and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--work", type=Path, default=ROOT / ".cache" / "bench" / "scaling")
    options = parser.parse_args()
    chosen = SERIES
    if options.quick:
        chosen = {
            name: [{"layers": 2, "steps": 1} | settings[i] for i in (0, -1)]
            for name, settings in SERIES.items()
        }
    if options.fresh:
        shutil.rmtree(options.work, ignore_errors=True)
    options.work.mkdir(parents=True, exist_ok=True)
    series = {}
    for name, settings in chosen.items():
        series[name] = []
        for setting in settings:
            print(f"{name}: {setting}", file=sys.stderr, flush=True)
            series[name].append(point(setting, options.work))
    full = complete(series)
    results = options.work / "quick" if options.quick else ROOT / "benchmarks" / "results"
    results.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"machine": machine(), "series": full}, indent=1)
    (results / "scaling.json").write_text(text + "\n", encoding="utf-8")
    plot(full, results / "scaling.svg")
    if not options.quick:
        page = ROOT / "docs" / "performance.md"
        spliced = splice(page.read_text(encoding="utf-8"), "scaling", tables(full))
        page.write_text(spliced, encoding="utf-8")


if __name__ == "__main__":
    main()
