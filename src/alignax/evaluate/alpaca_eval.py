# SPDX-License-Identifier: Apache-2.0
"""Rows of an AlpacaEval ``annotations.json`` → the official head-to-head statistics.

A preference is 1 (the baseline's answer is better) … 2 (the model's is); 0 or 1.5 is a draw, null
an annotation that failed. Weighted annotators write any number between. Dubois et al. 2024,
"Length-Controlled AlpacaEval".
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from alignax.errors import DataError

PROMPTS = 805
"""Prompts of the official set."""


@dataclass(frozen=True)
class Annotations:
    """One model against one baseline, each prompt once.

    Attributes:
        instructions: Prompts, in file order.
        preferences: [n] 1 … 2, NaN where the annotation failed; draws are 1.5.
        lengths: [n, 2] characters of the baseline's and the model's answer; NaN if not in the file.
        distinct_outputs: Different answers of the model.
        invalid: Numbers that are no preference; left out, as the official tool does.
        notes: What was unusual in the file, one sentence each.
    """

    model: str
    baseline: str
    annotator: str
    instructions: tuple[str, ...]
    preferences: np.ndarray
    lengths: np.ndarray
    distinct_outputs: int
    invalid: int = 0
    notes: tuple[str, ...] = ()


def read_annotations(
    rows: Iterable[tuple[str, Any]],
    *,
    source: str,
    model: str | None = None,
    annotator: str | None = None,
) -> Annotations:
    """Check the rows of a file and turn them into numbers.

    Args:
        rows: (place, row) pairs.
        source: Name of the file, for errors.
        model: Which model, if the file holds several.
        annotator: Which annotator, if the file holds several.

    Raises:
        DataError: Rows of another kind, several models or annotators, one prompt with two
            different annotations, no rows.
    """
    checked = _checked(rows, source)
    if annotator is not None:
        checked = [(p, r) for p, r in checked if r.get("annotator") == annotator] or _absent(
            checked, "annotator", annotator, source
        )
    chosen, model, baseline, flipped = _one_pair(checked, model, source)
    annotators = Counter(str(row.get("annotator", "unknown")) for _, row in chosen)
    if len(annotators) > 1:
        raise DataError(
            f"{source} holds verdicts of several annotators: {', '.join(sorted(annotators))}",
            hint="choose one with --annotator",
        )
    kept, repeated = _once_each(chosen, flipped, source)
    values = np.array([_value(row, flipped[place]) for place, row in kept])
    out = (values < 1) | (values > 2)
    answers = [_answers(row, flipped[place]) for place, row in kept]
    return Annotations(
        model=model,
        baseline=baseline,
        annotator=next(iter(annotators)),
        instructions=tuple(row["instruction"] for _, row in kept),
        preferences=np.where(out, math.nan, values),
        lengths=np.array([[_length(text) for text in pair] for pair in answers]),
        distinct_outputs=len({pair[1] for pair in answers if isinstance(pair[1], str)}),
        invalid=int(out.sum()),
        notes=tuple(_notes(kept, values, out, repeated, sum(flipped.values()))),
    )


def _notes(
    rows: Sequence[tuple[str, Any]],
    values: np.ndarray,
    out: np.ndarray,
    repeated: int,
    turned: int,
) -> list[str]:
    """Say what was unusual in the rows."""
    found = []
    if turned:
        found.append(f"{turned} rows have the model first; turned round")
    if repeated:
        found.append(f"{repeated} rows repeat another row and were counted once")
    if out.any():
        first = int(np.argmax(out))
        found.append(
            f"{int(out.sum())} preferences are not between 1 and 2 and were left out "
            f"(first: {values[first]:g} at {rows[first][0]})"
        )
    return found


def head_to_head(preferences: np.ndarray) -> dict[str, float]:
    """Compute the official statistics, in per cent where they are rates.

    The win rate is the mean of (preference - 1) over the verdicts that there are; its standard
    error is the sample's standard deviation over √n. The discrete win rate counts a win as 1 and a
    draw as a half. Without verdicts all rates are NaN, as is the error of a single one.
    """
    wins = preferences[~np.isnan(preferences)] - 1
    n = len(wins)
    won, lost, drawn = (int(part.sum()) for part in (wins > 0.5, wins < 0.5, wins == 0.5))
    return {
        "win_rate": 100 * float(wins.mean()) if n else math.nan,
        "standard_error": 100 * float(wins.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan,
        "n_wins": won,
        "n_wins_base": lost,
        "n_draws": drawn,
        "n_total": n,
        "discrete_win_rate": 100 * (won + drawn / 2) / n if n else math.nan,
    }


def longer_wins(annotations: Annotations) -> float:
    """Share of decided verdicts that went to the longer answer; NaN if none is of two lengths."""
    gap = annotations.lengths[:, 1] - annotations.lengths[:, 0]
    lean = annotations.preferences - 1.5
    decided = (np.nan_to_num(gap) != 0) & (np.nan_to_num(lean) != 0)
    return float((gap * lean > 0)[decided].mean()) if decided.any() else math.nan


def _checked(rows: Iterable[tuple[str, Any]], source: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Refuse rows that are no annotations, all at once."""
    checked, problems = [], []
    for place, row in rows:
        problem = _problem(row)
        if problem:
            problems.append(f"{place}: {problem}")
        checked.append((place, row))
    if problems:
        raise DataError(
            f"{source} is not an annotations file: {len(problems)} of {len(checked)} rows are "
            "of another form",
            problems=problems,
            hint="each row needs `instruction` (text) and `preference` (1 … 2, 0 or null), as in "
            "results/MODEL/ANNOTATOR/annotations.json of AlpacaEval",
        )
    if not checked:
        raise DataError(f"{source} holds no rows", hint="check --annotations")
    return checked


def _problem(row: Any) -> str:
    """Say why a row is no annotation; empty if it is one."""
    if not isinstance(row, Mapping):
        return f"not an object but {type(row).__name__}"
    if not isinstance(row.get("instruction"), str):
        return "no text under `instruction`"
    if "preference" not in row:
        if "output" in row:
            return "no `preference`: this looks like model_outputs.json, before it was judged"
        return f"no `preference`, only {', '.join(map(str, row))}"
    value = row["preference"]
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        return f"preference is {value!r}, not a number or null"
    return ""


def _absent(rows: Sequence[tuple[str, Mapping[str, Any]]], key: str, name: str, source: str) -> Any:
    found = sorted({str(row.get(key)) for _, row in rows})
    raise DataError(f"{source} has no {key} {name!r}", hint=f"it has {', '.join(found)}")


def _one_pair(
    rows: Sequence[tuple[str, Mapping[str, Any]]], model: str | None, source: str
) -> tuple[list[tuple[str, Mapping[str, Any]]], str, str, dict[str, bool]]:
    """Choose one model and its baseline; tell which rows name them in the other order."""

    def sides(row: Mapping[str, Any]) -> tuple[str, str]:
        return str(row.get("generator_1", "baseline")), str(row.get("generator_2", "model"))

    pairs = Counter(sides(row) for _, row in rows)
    if model is not None:
        pairs = Counter({pair: n for pair, n in pairs.items() if model in pair})
        if not pairs:
            names = sorted({name for _, row in rows for name in sides(row)})
            raise DataError(f"{source} has no model {model!r}", hint=f"it has {', '.join(names)}")
    first, second = pairs.most_common(1)[0][0]
    others = set(pairs) - {(first, second), (second, first)}
    if others:
        shown = ", ".join(sorted(f"{b} against {a}" for a, b in pairs))
        raise DataError(
            f"{source} compares several pairs of models: {shown}",
            hint="choose one with --model, or split the file",
        )
    baseline, model = (second, first) if model == first != second else (first, second)
    chosen = [(p, r) for p, r in rows if sides(r) in pairs]
    return chosen, model, baseline, {p: sides(r) != (baseline, model) for p, r in chosen}


def _once_each(
    rows: Sequence[tuple[str, Mapping[str, Any]]], flipped: Mapping[str, bool], source: str
) -> tuple[list[tuple[str, Mapping[str, Any]]], int]:
    """Keep one row a prompt, with a verdict if any has one; refuse two that differ."""
    kept: dict[str, tuple[str, Mapping[str, Any]]] = {}
    clashes = []
    for place, row in rows:
        before = kept.setdefault(row["instruction"], (place, row))
        one = _value(before[1], flipped[before[0]])
        two = _value(row, flipped[place])
        if math.isnan(one):
            kept[row["instruction"]] = (place, row)
        elif not math.isnan(two) and one != two:
            text = row["instruction"][:60]
            clashes.append(f"{before[0]} says {one:g}, {place} says {two:g}: {text!r}")
    if clashes:
        raise DataError(
            f"{source} judges {len(clashes)} prompts twice, differently",
            problems=clashes,
            hint="keep one annotation a prompt",
        )
    return list(kept.values()), len(rows) - len(kept)


def _value(row: Mapping[str, Any], flipped: bool) -> float:
    """Read a preference: NaN for null, 1.5 for a draw, turned round if the model comes first."""
    value = math.nan if row["preference"] is None else float(row["preference"])
    value = 1.5 if value == 0 else value
    return 3 - value if flipped else value


def _answers(row: Mapping[str, Any], flipped: bool) -> tuple[Any, Any]:
    one, two = row.get("output_1"), row.get("output_2")
    return (two, one) if flipped else (one, two)


def _length(text: Any) -> float:
    return float(len(text)) if isinstance(text, str) else math.nan
