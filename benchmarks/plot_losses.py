# SPDX-License-Identifier: Apache-2.0
"""Draw every pair loss and its slopes against the margin: docs/losses.svg.

    python benchmarks/plot_losses.py

Both answers have 20 tokens and 2 nats a token under the reference; the policy raises the chosen
and lowers the rejected one by half the margin each. Batch-level losses see 16 equal pairs.
"""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.ticker import MaxNLocator

from alignax.losses import LOSSES, build_loss
from alignax.records import PairLogps

FILE = Path(__file__).parents[1] / "docs" / "losses.svg"
TOKENS, REFERENCE, PAIRS = 20, -40.0, 16
COLUMNS = 6


def curves(name: str, margins: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Loss, push on the chosen answer (upwards) and on the rejected one (downwards)."""
    objective = build_loss(name, kind="pair")
    full = jnp.full(PAIRS, 1.0)

    def mean(chosen: jax.Array, rejected: jax.Array) -> jax.Array:
        pair = PairLogps(
            chosen * full, rejected * full, REFERENCE * full, REFERENCE * full,
            TOKENS * full, TOKENS * full, score_chosen=full, score_rejected=0.0 * full,
            squares_chosen=REFERENCE * full, squares_rejected=REFERENCE * full,
        )  # fmt: skip
        pair = PairLogps(*[jnp.broadcast_to(x, (PAIRS,)) for x in pair])
        value = objective(pair, jnp.ones(PAIRS, bool))
        return value.total / value.weight

    measure = jax.jit(jax.vmap(jax.value_and_grad(mean, (0, 1))))
    loss, (chosen, rejected) = measure(REFERENCE + margins / 2, REFERENCE - margins / 2)
    return np.asarray(loss), -np.asarray(chosen), np.asarray(rejected)


def main() -> None:
    """Draw one panel a loss."""
    mpl.rcParams.update(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "alignax",
            "font.size": 7,
            "font.sans-serif": ["DejaVu Sans"],
        }
    )
    names = [name for name, spec in LOSSES.items() if spec.kind == "pair"]
    rows = -(-len(names) // COLUMNS)
    figure, axes = plt.subplots(rows, COLUMNS, figsize=(2.1 * COLUMNS, 1.5 * rows))
    margins = np.linspace(-40, 40, 33)
    for axis, name in zip(axes.flat, names, strict=False):
        loss, chosen, rejected = curves(name, jnp.asarray(margins))
        axis.plot(margins, loss, color="black", linewidth=1.2)
        axis.set_title(name, fontsize=8)
        axis.axvline(0, color="0.85", linewidth=0.6, zorder=0)
        slopes = axis.twinx()
        slopes.plot(margins, chosen, color="tab:green", linewidth=1)
        slopes.plot(margins, rejected, color="tab:red", linewidth=1, linestyle="--")
        for each in (axis, slopes):
            each.tick_params(labelsize=5, length=2)
            each.yaxis.set_major_locator(MaxNLocator(3))
        axis.set_xticks([-40, 0, 40])
    for axis in axes.flat[len(names) :]:
        axis.axis("off")
    figure.suptitle(
        "loss (black, left) over the margin in nats; push up on chosen (green) and down on "
        "rejected (red, dashed), right",
        fontsize=8,
    )
    figure.tight_layout()
    figure.savefig(FILE, metadata={"Date": None})
    FILE.write_text(lean(FILE.read_text(encoding="utf-8")), encoding="utf-8")


def lean(svg: str) -> str:
    """Leave out what no screen shows: hundredths of points, names of groups, indentation."""
    svg = re.sub(r"(\d\.\d)\d+", r"\1", svg)
    svg = re.sub(r' transform="rotate\(-0 [^"]*"', "", svg)
    return re.sub(r"\n\s*", "\n", re.sub(r'<g id="[^"]*">', "<g>", svg))


if __name__ == "__main__":
    main()
