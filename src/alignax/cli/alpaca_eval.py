# SPDX-License-Identifier: Apache-2.0
"""Compute the official AlpacaEval statistics from an annotations file.

  alignax evaluate alpaca-eval --annotations results/MODEL/ANNOTATOR/annotations.json
  alignax evaluate alpaca-eval --annotations FILE --weights W.csv --difficulty D.csv --json

Prints win rate with its standard error, wins, draws, the discrete and the length-controlled win
rate, and beside them what they do not tell: coverage, how often the longer answer won, whether the
model answers everything alike. Published coefficients, difficulties and the prompt list are taken
from the flags, or from files of the official names beside or above the annotations. Without
published coefficients for the model they are fitted, which the result says.
"""

import argparse
import math
from pathlib import Path
from typing import Any

from alignax.cli.options import Parser

OFFICIAL_JUDGE = ("weighted_alpaca_eval_gpt4_turbo", "gpt4_1106_preview")
"""Annotator and baseline of the published coefficients."""

ABOUT = "Official AlpacaEval statistics of an annotations file."
CONSTANT = 0.5
"""Below this share of distinct answers a model counts as a constant answerer."""


def add_arguments(verbs: Any) -> None:
    """Add the sub-verb and its flags."""
    sub: Parser = verbs.add_parser("alpaca-eval", help=ABOUT, description=__doc__)
    sub.add_argument("--annotations", metavar="FILE", required=True, help="annotations.json[.gz]")
    sub.add_argument("--model", metavar="NAME", help="which model, if the file has several")
    sub.add_argument("--annotator", metavar="NAME", help="which annotator, if it has several")
    sub.add_argument("--weights", metavar="CSV", help="published length-control coefficients")
    sub.add_argument("--difficulty", metavar="CSV", help="published instruction difficulties")
    sub.add_argument("--prompts", metavar="FILE", help="the prompts, in their official order")
    sub.add_argument("--json", action="store_true", help="print JSON")
    sub.set_defaults(parser=sub, run=main)


def main(arguments: argparse.Namespace) -> int:
    """Print the statistics."""
    from alignax.cli import terminal
    from alignax.cli.documents import read_rows
    from alignax.cli.official import Official, find
    from alignax.evaluate.alpaca_eval import read_annotations

    path = arguments.annotations
    rows = read_rows(path, flag="--annotations")
    annotations = read_annotations(
        rows, source=path, model=arguments.model, annotator=arguments.annotator
    )
    given = Official(arguments.weights, arguments.difficulty, arguments.prompts)
    values = statistics(annotations, find(path, given=given), path)
    if arguments.json:
        terminal.write_result(terminal.finite(values))
        return 0
    title = f"{annotations.model} against {annotations.baseline}, by {annotations.annotator}"
    hidden = ("model", "baseline", "annotator", "warnings")
    shown = [(k, _shown(v)) for k, v in values.items() if k not in hidden]
    terminal.show_table(title, ("", "value"), shown)
    for warning in values["warnings"]:
        terminal.warn(warning)
    return 0


def statistics(annotations: Any, official: Any, path: str) -> dict[str, Any]:
    """Put together everything that is printed."""
    import numpy as np

    from alignax.cli.official import read_prompts
    from alignax.evaluate.alpaca_eval import PROMPTS, head_to_head, longer_wins

    values: dict[str, Any] = head_to_head(annotations.preferences)
    prompts = read_prompts(official.prompts) if official.prompts else None
    notes = list(annotations.notes)
    total = len(prompts) if prompts else max(PROMPTS, len(annotations.instructions))
    official_set = set(prompts or annotations.instructions)
    unknown = [text for text in annotations.instructions if text not in official_set]
    if unknown:
        notes.append(f"{len(unknown)} prompts are not in {official.prompts}: {unknown[0][:60]!r} …")
    rate, source = _length_controlled(annotations, official, prompts, path, notes)
    values |= {"length_controlled_winrate": rate, "length_controlled_by": source}
    known = int((~np.isnan(annotations.preferences)).sum())
    won = float(np.nansum(annotations.preferences - 1))
    lengths = annotations.lengths.mean(axis=0)
    values |= {
        "coverage": known / total,
        "n_missing": total - len(annotations.instructions) + len(unknown),
        "n_null": int(np.isnan(annotations.preferences).sum()) - annotations.invalid,
        "n_invalid": annotations.invalid,
        "win_rate_if_missing_lost": 100 * won / total,
        "win_rate_if_missing_won": 100 * (won + total - known) / total,
        "avg_length": float(lengths[1]),
        "avg_length_base": float(lengths[0]),
        "longer_wins": longer_wins(annotations),
        "distinct_outputs": annotations.distinct_outputs,
        "model": annotations.model,
        "baseline": annotations.baseline,
        "annotator": annotations.annotator,
        "warnings": notes + _warnings(annotations, known, total, rate, values["win_rate"]),
    }
    return values


def _length_controlled(
    annotations: Any, official: Any, prompts: list[str] | None, path: str, notes: list[str]
) -> tuple[float, str]:
    """Compute the rate from published coefficients, or else from fitted ones."""
    from alignax.cli.official import read_difficulty, read_weights
    from alignax.evaluate import length_control as lc

    if annotations.model == annotations.baseline:
        return 50.0, "nothing: a model against itself"
    every = read_difficulty(official.difficulty) if official.difficulty else None
    order = {text: index for index, text in enumerate(prompts or ())}
    index = [order.get(text, -1) for text in annotations.instructions]
    whole = every is not None and len(index) == len(every) == len(order or index)
    if every is not None and prompts is not None and len(every) != len(prompts):
        notes.append(f"{official.difficulty} and {official.prompts} differ in length; both unused")
        every, whole = None, False
    aligned = every[index] if every is not None and order and min(index) >= 0 else None
    weights = None
    if official.weights and _applies(annotations, official.weights):
        names = [annotations.model, Path(path).resolve().parent.parent.name]
        weights = read_weights(official.weights, names)
    if weights is not None and every is not None:
        if aligned is None and not whole:
            notes.append("length control is averaged over all prompts, not over those in the file")
        used = every if aligned is None else aligned
        return lc.at_equal_length(weights, used), f"published coefficients ({official.weights})"
    wins = annotations.preferences - 1
    blind = aligned is None
    prior = lc.ALPACA_PRIOR_BLIND if blind else lc.ALPACA_PRIOR
    rate = lc.fitted(wins, annotations.lengths, aligned, prior=prior)
    if rate is None:
        notes.append(
            "length control cannot be fitted: no verdicts, or answers missing or all of the same "
            "difference in length"
        )
        return math.nan, "nothing: cannot be fitted"
    terms = "length only: prompts' difficulties unknown" if blind else "length and difficulty"
    notes.append(
        f"length-controlled win rate: fitted here ({terms}); no published coefficients for this "
        "model, annotator and baseline were given (--weights, --difficulty, --prompts)"
    )
    return rate, f"coefficients fitted here ({terms})"


def _applies(annotations: Any, weights: str) -> bool:
    """Tell whether a table belongs to this annotator and baseline, by the official names."""
    pair = (annotations.annotator, annotations.baseline)
    file = Path(weights)
    return pair == OFFICIAL_JUDGE or (pair[0] in file.parts and pair[1] in file.stem)


def _warnings(annotations: Any, known: int, total: int, controlled: float, raw: float) -> list[str]:
    """Say what a reader of the win rate should know."""
    found = []
    if known < total:
        found.append(f"verdicts for {known} of {total} prompts; see the bounds")
    rows = len(annotations.instructions)
    if annotations.distinct_outputs and annotations.distinct_outputs < CONSTANT * rows:
        found.append(
            f"only {annotations.distinct_outputs} distinct answers to {rows} prompts: a constant "
            "answerer, whose win rate says something about the judge and nothing about the model"
        )
    if abs(controlled - raw) > 10:
        found.append(f"length control moves the win rate from {raw:.1f} to {controlled:.1f}")
    return found


def _shown(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return "-" if math.isnan(value) else f"{value:.4f}"
