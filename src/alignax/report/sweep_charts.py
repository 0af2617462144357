# SPDX-License-Identifier: Apache-2.0
"""Variants of a sweep → the front of accuracy against KL, and their learning curves.

The recommended variant has the first colour, all others are grey with their names beside them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from alignax.report.charts import FIRST, GOOD, INK, SECOND, STYLE, element


def front(
    variants: Sequence[Mapping[str, Any]], best: str | None, top: float, bottom: float
) -> str:
    """Draw held-out accuracy with its interval against KL a token; frozen variants are hollow."""

    def paint(axes: Axes) -> None:
        axes.axvspan(bottom, top, color=GOOD, alpha=0.13, linewidth=0)
        axes.axhline(0.5, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        for variant in variants:
            values = variant["values"]
            if not values or values.get("kl/token") is None:
                continue
            at = values["kl/token"], values["accuracy"]
            spread = [[at[1] - values["accuracy_low"]], [values["accuracy_high"] - at[1]]]
            colour = _colour(variant, best)
            axes.errorbar(
                *at, yerr=spread, color=colour, fmt="o", markersize=4.5, elinewidth=1.2,
                capsize=2.5, markerfacecolor="none" if variant["frozen"] else colour,
                zorder=3 if variant["name"] == best else 2,
            )  # fmt: skip
            axes.annotate(variant["name"], at, (4, 3), textcoords="offset points", fontsize=7)
        axes.set_xlabel("KL to the reference, a token")
        axes.set_ylabel("held-out accuracy")

    return _draw("Accuracy against KL", paint, size=(4.6, 3.0))


def curves(
    variants: Sequence[Mapping[str, Any]],
    lines: Mapping[str, Sequence[Mapping[str, Any]]],
    metric: str,
    title: str,
    best: str | None,
) -> str:
    """Draw one held-out metric of every variant over the steps.

    Args:
        variants: As in ``sweep.json``.
        lines: Held-out evaluations of each, by name, with their ``step``.
        metric: Name of the value.
        title: Heading, for readers who do not see.
        best: The recommended variant.
    """

    def paint(axes: Axes) -> None:
        for variant in variants:
            # Before step 1 all pairs are ties, which count as wrong: no point of a curve.
            points = [
                (one["step"], one[metric])
                for one in lines.get(variant["name"], ())
                if _finite(one.get(metric)) and not (metric == "accuracy" and one["ties"] == 1)
            ]
            if not points:
                continue
            colour, mine = _colour(variant, best), variant["name"] == best
            axes.plot(
                *zip(*points, strict=True), "o-", color=colour, linewidth=1.6 if mine else 0.9,
                markersize=3, alpha=1.0 if mine else 0.7, zorder=3 if mine else 2,
            )  # fmt: skip
            axes.annotate(
                variant["name"], points[-1], (4, -2), textcoords="offset points", fontsize=7
            )
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        axes.set_xlabel("step", labelpad=1)

    return _draw(title, paint)


def _colour(variant: Mapping[str, Any], best: str | None) -> str:
    """The recommended variant, a frozen one, or any other."""
    if variant["name"] == best:
        return FIRST
    return SECOND if variant["frozen"] else INK


def _finite(value: Any) -> bool:
    """Whether there is a number to draw."""
    return isinstance(value, int | float) and math.isfinite(value)


def _draw(
    title: str, paint: Callable[[Axes], None], size: tuple[float, float] = (3.5, 2.15)
) -> str:
    """Let a function paint axes in the page's style."""
    with mpl.rc_context({**STYLE, "svg.hashsalt": title}):
        figure = Figure(figsize=size, layout="constrained")
        paint(figure.add_subplot())
        return element(figure, title)
