# SPDX-License-Identifier: Apache-2.0
"""Encoded examples → a folder with flat ids and one column a property, and back.

``ids.bin`` holds the int32 ids of all prompts and answers one after another (of an answer's token
that is not scored, the bitwise complement), ``table.npz`` the columns; both are written once and
never changed.
"""

import hashlib
import json
import math
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from alignax.records import EncodedExample, Example, PreferencePair, Text

IDS, COLUMNS = "ids.bin", "table.npz"


class TableWriter:
    """Writes ids as they come and keeps the columns until the end."""

    def __init__(self, folder: Path, answers: int):
        """Open the file of ids.

        Args:
            folder: Where to write; it exists.
            answers: Answers of one example.
        """
        self._folder = folder
        self._answers = answers
        self._columns: dict[str, list[Any]] = {}
        self._file = (folder / IDS).open("wb")

    def __enter__(self) -> "TableWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the file of ids, whatever happened."""
        self._file.close()

    def add(self, index: int, example: Example, encoded: EncodedExample, *, plain: bool) -> None:
        """Append the example that was row ``index`` of its source."""
        self._file.write(encoded.prompt.astype("<i4").tobytes())
        for answer, marks in zip(
            encoded.answers, encoded.scored or (True,) * self._answers, strict=True
        ):
            self._file.write(np.where(marks, answer, ~answer).astype("<i4").tobytes())
        values = {
            "row_ids": encoded.row_id,
            "prompt_hashes": text_hash(example.prompt),
            "lengths": [len(encoded.prompt), *map(len, encoded.answers)],
            "complete": encoded.complete,
            "answer_cut": encoded.answer_cut[: self._answers],
            "prompt_cut": encoded.prompt_cut,
            "merged": encoded.boundary_merged,
            "system_merged": encoded.system_merged,
            "source_index": index,
            "plain": plain,
            "scores": scores_of(example)[: self._answers],
        }
        for name, value in values.items():
            self._columns.setdefault(name, []).append(value)

    def finish(self) -> dict[str, np.ndarray]:
        """Write the columns, also of a table without any row, and return them."""
        answers, columns = self._answers, self._columns
        lengths = np.array(columns.get("lengths", []), np.int32).reshape(-1, 1 + answers)
        sizes = lengths.sum(1)
        arrays = {
            "row_ids": np.array(columns.get("row_ids", []), "U16"),
            "prompt_hashes": np.array(columns.get("prompt_hashes", []), "U16"),
            "lengths": lengths,
            "offsets": (np.cumsum(sizes) - sizes).astype(np.int64),
            "complete": np.array(columns.get("complete", []), bool).reshape(-1, answers),
            "answer_cut": np.array(columns.get("answer_cut", []), np.int32).reshape(-1, answers),
            "prompt_cut": np.array(columns.get("prompt_cut", []), np.int32),
            "merged": np.array(columns.get("merged", []), bool),
            "system_merged": np.array(columns.get("system_merged", []), bool),
            "source_index": np.array(columns.get("source_index", []), np.int64),
            "plain": np.array(columns.get("plain", []), bool),
            "scores": np.array(columns.get("scores", []), np.float32).reshape(-1, answers),
        }
        np.savez(self._folder / COLUMNS, **arrays)
        return arrays


def read_table(folder: Path) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Open ids, memory-mapped, and columns."""
    with np.load(folder / COLUMNS, allow_pickle=False) as stored:
        columns = dict(stored)
    flat = folder / IDS
    ids = np.memmap(flat, "<i4", "r") if flat.stat().st_size else np.zeros(0, np.int32)
    return ids, columns


def scores_of(example: Example) -> tuple[float, float]:
    """Scores of chosen and rejected that came with a row; NaN where there is none."""
    if not isinstance(example, PreferencePair):
        return (math.nan, math.nan)
    given = (example.chosen_score, example.rejected_score)
    return tuple(math.nan if score is None else score for score in given)  # type: ignore[return-value]


def content_hash(value: Any) -> str:
    """Identify a value by its content: 16 hex digits, the same in any file and key order."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def text_hash(text: Text) -> str:
    """Hash a prompt or an answer."""
    return content_hash(text if isinstance(text, str) else [dict(m) for m in text])
