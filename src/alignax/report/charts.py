# SPDX-License-Identifier: Apache-2.0
"""Curves and evaluations → small inline SVG charts that follow the page's colours.

matplotlib draws with marker colours, which are then replaced by CSS variables: one drawing serves
light, dark and print.
"""

import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from alignax.metrics.drift import KL_BAND
from alignax.records import RunReport

PALETTE = {
    "#010101": "var(--ink-soft)",
    "#020202": "var(--rule)",
    "#030303": "var(--first)",
    "#040404": "var(--second)",
    "#050505": "var(--good)",
}
INK, RULE, FIRST, SECOND, GOOD = PALETTE

POINTS = 300
"""Points of a curve that are drawn; more would only make the page heavier."""

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.edgecolor": RULE,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "legend.frameon": False,
    "legend.fontsize": 8,
}


@dataclass(frozen=True)
class Chart:
    """What a chart shows.

    Attributes:
        title: Heading.
        lines: (metric, label) of each line; training and held-out values are both drawn.
        meaning: What it is.
        trouble: What would be bad.
        level: A horizontal line to compare with, and its label.
        band: A shaded range.
        smooth: Whether training values are noisy enough to need a running mean.
    """

    title: str
    lines: tuple[tuple[str, str], ...]
    meaning: str
    trouble: str
    level: tuple[float, str] | None = None
    band: tuple[float, float] | None = None
    smooth: bool = True


LN2 = math.log(2)

PAIR_CHARTS = (
    Chart(
        "Loss",
        (("loss", "loss"),),
        "How badly the model still ranks the pairs; ln\u00a02 is what a coin gets.",
        "held-out values that rise while training values fall: overfitting.",
        level=(LN2, "ln 2"),
    ),
    Chart(
        "Accuracy",
        (("accuracy", "accuracy"),),
        "Share of pairs whose chosen answer has the higher reward; ties count as wrong.",
        "held-out values near 0.5, or training far above held-out.",
        level=(0.5, "chance"),
    ),
    Chart(
        "Reward margin",
        (("margin", "margin"),),
        "Mean reward of chosen minus rejected, β included.",
        "a held-out interval that holds 0, or growth without end.",
        level=(0.0, ""),
    ),
    Chart(
        "Log-prob change per token",
        (("chosen_logratio", "chosen"), ("rejected_logratio", "rejected")),
        "How much likelier each side became against the reference, in nats.",
        "both sinking together: the margin then comes from displacement.",
        level=(0.0, ""),
    ),
    Chart(
        "KL to the reference per token",
        (("kl/token", "KL"),),
        "Exact distance from the reference on held-out answers; the usual band is shaded.",
        "a jump, or values above the band: abilities get lost. Below it: hardly trained.",
        band=KL_BAND,
    ),
    Chart(
        "Perplexity of chosen",
        (("perplexity", "perplexity"),),
        "How surprised the model is by the chosen held-out answers.",
        "a steady rise: fluency pays for the margin.",
    ),
)

ANSWER_CHARTS = (
    Chart(
        "Loss per token",
        (("loss", "loss"),),
        "Mean surprise per answer token, in nats.",
        "held-out values that rise while training values fall: overfitting.",
    ),
    Chart(
        "Perplexity",
        (("perplexity", "perplexity"),),
        "Exponential of the held-out loss: among how many tokens the model hesitates.",
        "a rise after a fall: the run is longer than useful.",
    ),
)

COMMON_CHARTS = (
    Chart(
        "Gradient norm",
        (("grad_norm", "norm"),),
        "Length of the gradient before clipping.",
        "spikes of several times the usual, or values near 0.",
    ),
    Chart(
        "Learning rate",
        (("learning_rate", "rate"),),
        "Warm-up, then the chosen schedule.",
        "steps without change at the end: they trained nothing.",
        smooth=False,
    ),
    Chart(
        "Speed",
        (("tokens_per_s", "tokens/s"),),
        "Distinct tokens trained a second.",
        "dips that recur: data loading or compilation.",
    ),
)


def draw_all(report: RunReport) -> list[tuple[Chart, str]]:
    """Draw every chart that the run has values for."""
    pairs = "margin" in report.curves or any("margin" in e for e in report.evaluations)
    charts = (PAIR_CHARTS if pairs else ANSWER_CHARTS) + COMMON_CHARTS
    marks = [event["step"] for event in report.events if event.get("kind") == "rollback"]
    drawn = []
    for chart in charts:
        names = [name for name, _ in chart.lines]
        held_out = [e for e in report.evaluations if any(name in e for name in names)]
        if held_out or any(report.curves.get(name) for name in names):
            drawn.append((chart, draw(chart, report.curves, held_out, marks)))
    return drawn


def draw(
    chart: Chart,
    curves: Mapping[str, Sequence[tuple[int, float]]],
    evaluations: Sequence[Mapping[str, Any]],
    rollbacks: Sequence[int] = (),
) -> str:
    """Draw one chart as an ``<svg>`` element; a line marks where a run went on after a rollback."""
    with mpl.rc_context({**STYLE, "svg.hashsalt": chart.title}):
        figure = Figure(figsize=(3.5, 2.15), layout="constrained")
        axes = figure.add_subplot()
        for (name, label), colour in zip(chart.lines, (FIRST, SECOND), strict=False):
            _training(axes, curves.get(name, ()), colour, label, chart)
            _held_out(axes, [e for e in evaluations if name in e], name, colour, label, chart)
        for step in rollbacks:
            axes.axvline(step, color=INK, linewidth=0.8, linestyle=(0, (1, 2)), label="_rollback")
        _frame(axes, chart)
        return element(figure, chart.title)


def element(figure: Figure, title: str) -> str:
    """Write a figure as an ``<svg>`` element of the page."""
    file = io.StringIO()
    FigureCanvasSVG(figure).print_svg(file, metadata={"Date": None, "Creator": None})
    return _inline(file.getvalue(), title)


def _training(
    axes: Axes, points: Sequence[tuple[int, float]], colour: str, label: str, chart: Chart
) -> None:
    """Draw training values: thin as they are, and their running mean."""
    finite = [(step, value) for step, value in points if math.isfinite(value)]
    if not finite:
        return
    steps, values = np.array(finite).T
    width = max(1, len(values) // 20) if chart.smooth else 1
    name = "training" if len(chart.lines) == 1 else f"{label}, training"
    if width > 1:
        kept = np.linspace(0, len(values) - 1, min(POINTS, len(values))).astype(int)
        axes.plot(steps[kept], values[kept], color=colour, linewidth=0.6, alpha=0.22)
        total = np.concatenate([[0.0], np.cumsum(values)])
        end = np.arange(1, len(values) + 1)
        start = np.maximum(end - width, 0)
        values = (total[end] - total[start]) / (end - start)
    kept = np.linspace(0, len(values) - 1, min(POINTS, len(values))).astype(int)
    axes.plot(steps[kept], values[kept], color=colour, linewidth=1.3, alpha=0.75, label=name)


def _held_out(
    axes: Axes,
    evaluations: Sequence[Mapping[str, Any]],
    name: str,
    colour: str,
    label: str,
    chart: Chart,
) -> None:
    """Draw held-out values with their intervals."""
    # The first accuracy of a run is 0 because all pairs are ties; a point there would mislead.
    kept = [
        e
        for e in evaluations
        if math.isfinite(e[name]) and not (name == "accuracy" and e.get("ties") == 1)
    ]
    if not kept:
        return
    steps = [e["step"] for e in kept]
    values = np.array([e[name] for e in kept])
    low = np.array([e.get(f"{name}_low", e[name]) for e in kept])
    high = np.array([e.get(f"{name}_high", e[name]) for e in kept])
    spread = np.nan_to_num([values - low, high - values], posinf=0.0, neginf=0.0)
    axes.errorbar(
        steps,
        values,
        yerr=np.maximum(spread, 0),
        color=colour,
        fmt="o-",
        linewidth=1.0,
        elinewidth=1.4,
        markersize=3.6,
        capsize=2.5,
        label="held out" if len(chart.lines) == 1 else f"{label}, held out",
    )


def _frame(axes: Axes, chart: Chart) -> None:
    """Add the band, the level, the axes and the legend."""
    if chart.band:
        low, high = chart.band
        axes.axhspan(low, high, color=GOOD, alpha=0.13, linewidth=0)
        reached = max((float(np.max(line.get_ydata())) for line in axes.lines), default=0.0)
        axes.set_ylim(-0.05 * low, max(2.0 * low, 1.2 * reached))
    if chart.level:
        value, label = chart.level
        axes.axhline(value, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        axes.annotate(
            label,
            (1, value),
            (0, 2),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            ha="right",
            fontsize=7,
        )
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.set_xlabel("step", labelpad=1)
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-3, 4))
    handles, labels = axes.get_legend_handles_labels()
    if len(handles) > 1:
        axes.figure.legend(handles, labels, loc="outside upper left", ncols=2, borderpad=0)


def _inline(svg: str, title: str) -> str:
    """Cut a standalone SVG down to an element that belongs to the page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    # Group ids repeat from chart to chart; the hashed ids of clip paths and markers do not.
    svg = re.sub(
        r' id="(?:figure|axes|patch|line2d|text|matplotlib|xtick|ytick|legend)[^"]*"', "", svg
    )
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", svg)
    svg = re.sub(
        r"<svg [^>]*viewBox=\"([^\"]+)\"[^>]*>",
        lambda found: (
            f'<svg viewBox="{found[1]}" role="img" aria-label="{title}" '
            'xmlns:xlink="http://www.w3.org/1999/xlink">'
        ),
        svg,
        count=1,
    )
    for colour, variable in PALETTE.items():
        svg = svg.replace(colour, variable)
    svg = re.sub(r' (?:d|x|y|width|height|transform)="[^"]*"', _round, svg)
    return re.sub(r"\n\s*", "\n", svg).strip()


def _round(attribute: re.Match[str]) -> str:
    """Round coordinates to hundredths of a point, which nobody can see."""
    return re.sub(r"\d+\.\d{3,}", lambda found: f"{float(found[0]):.2f}", attribute[0])
