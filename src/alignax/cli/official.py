# SPDX-License-Identifier: Apache-2.0
"""AlpacaEval's own tables → prompts, difficulties and published coefficients, where at hand.

They are not packaged, because their licence is not ours. Whoever has a copy of AlpacaEval's results
has them near the annotations, so that is where they are looked for.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from alignax.cli.documents import read_rows
from alignax.errors import DataError
from alignax.evaluate.length_control import Coefficients

COLUMNS = (
    "np.tanh(std_delta_len)", "instruction_difficulty", "not_gamed_baseline.astype(float)",
)  # fmt: skip
NEAR = {
    "weights": ("length_controlled_v1_weights.csv", "baseline_*.csv"),
    "difficulty": ("instruction_difficulty*.csv",),
    "prompts": ("eval_set.json*", "alpaca_eval.json*"),
}
"""What the files are called."""

FOLDERS = (".", "leaderboards", "weights")
HEIGHT = 4
"""How many folders above the annotations are looked into."""


class Official(NamedTuple):
    """Paths of the tables; None for one that is not at hand."""

    weights: str | None
    difficulty: str | None
    prompts: str | None


def find(annotations: str, *, given: Official) -> Official:
    """Take the tables that are given; look for the others beside and above the annotations."""
    folder = Path(annotations).expanduser().resolve().parent
    above = [folder, *folder.parents][: HEIGHT + 1]
    found = {}
    for kind, patterns in NEAR.items():
        places = (
            file
            for base in above
            for part in FOLDERS
            for pattern in patterns
            for file in sorted((base / part).glob(pattern))
        )
        found[kind] = getattr(given, kind) or next(map(str, places), None)
    return Official(**found)


def read_weights(path: str, names: Sequence[str]) -> Coefficients | None:
    """Read the coefficients of the first of ``names`` that the table has."""
    rows = {}
    for place, row in read_rows(path, flag="--weights"):
        if not isinstance(row, dict) or not set(COLUMNS) <= set(row):
            raise DataError(
                f"{place}: not a table of coefficients", hint=f"it needs {', '.join(COLUMNS)}"
            )
        rows[next(iter(row.values()))] = row
    row = next((rows[name] for name in names if name in rows), None)
    return row and Coefficients(*(_number(row[name], path) for name in COLUMNS))


def read_difficulty(path: str) -> np.ndarray:
    """Read the difficulty of every prompt, by its index."""
    values: dict[int, float] = {}
    for place, row in read_rows(path, flag="--difficulty"):
        if not isinstance(row, dict) or "instruction_difficulty" not in row:
            raise DataError(f"{place}: no column `instruction_difficulty`", hint="--difficulty")
        index = next(iter(row.values()))
        values[int(_number(index, place))] = _number(row["instruction_difficulty"], place)
    if sorted(values) != list(range(len(values))):
        raise DataError(f"{path}: indices are not 0 … {len(values) - 1}", hint="--difficulty")
    return np.array([values[index] for index in range(len(values))])


def read_prompts(path: str) -> list[str]:
    """Read the prompts in their official order."""
    prompts = []
    for place, row in read_rows(path, flag="--prompts"):
        if not isinstance(row, dict) or not isinstance(row.get("instruction"), str):
            raise DataError(f"{place}: no text under `instruction`", hint="check --prompts")
        prompts.append((int(row.get("index", len(prompts))), row["instruction"]))
    return [text for _, text in sorted(prompts, key=lambda pair: pair[0])]


def _number(value: Any, place: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise DataError(f"{place}: {value!r} is not a number") from error
