# SPDX-License-Identifier: Apache-2.0
"""Encoded examples + a step's layout → ``PackedBatch`` of static shape.

A row holds ``prompt answer_1 … answer_s`` of its examples one after another. Masks come from
lengths; no id is ever compared with a padding id.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from alignax.data.plan import PackShape, Row, row_tiles
from alignax.errors import DataError
from alignax.records import EncodedExample, PackedBatch


class ExampleSource(Protocol):
    """What the packer needs of a data set."""

    def __getitem__(self, index: int, /) -> EncodedExample:
        """Return one example."""
        ...


def pack(dataset: ExampleSource, layout: Sequence[Sequence[Row]], shape: PackShape) -> PackedBatch:
    """Fill one step's batch ([g, b, …] int32 arrays).

    Raises:
        DataError: An example does not fit the shape.
    """
    g, b, t, a, p, s, m = shape
    batch = PackedBatch(
        ids=np.zeros((g, b, t), np.int32),
        positions=np.zeros((g, b, t), np.int32),
        segments=np.zeros((g, b, t), np.int32),
        branches=np.zeros((g, b, t), np.int32),
        tiles=np.full((g, b, m, 2), -1, np.int32),
        answer_index=np.zeros((g, b, a), np.int32),
        answer_target=np.zeros((g, b, a), np.int32),
        answer_slot=np.full((g, b, a), p * s, np.int32),
        answer_count=np.zeros((g, b), np.int32),
        example=np.full((g, b, p), -1, np.int32),
    )
    for micro, rows in enumerate(layout):
        for row, indices in enumerate(rows):
            view = PackedBatch(*(field[micro, row] for field in batch))
            used = _fill_row(view, [dataset[i] for i in indices], indices, s)
            batch.answer_count[micro, row] = used
    return batch


def _fill_row(
    row: PackedBatch, examples: Sequence[EncodedExample], indices: Sequence[int], answers: int
) -> int:
    """Fill one row's arrays in place; returns the number of answer tokens."""
    start = used = 0
    lengths = np.array([[len(e.prompt), *map(len, e.answers)] for e in examples], np.int64).reshape(
        -1, 1 + answers
    )
    total, scored = int(lengths.sum()), int(lengths[:, 1:].sum())
    if total > len(row.ids) or scored > len(row.answer_index):
        names = ", ".join(e.row_id for e in examples)
        raise DataError(
            f"{names}: {total} tokens ({scored} of answers) do not fit into a packed row of "
            f"{len(row.ids)} ({len(row.answer_index)})",
            hint="lower data.max_length, so that every example fits into a row",
        )
    for slot, (example, index) in enumerate(zip(examples, indices, strict=True)):
        row.example[slot] = index
        prompt = len(example.prompt)
        end = start + example.token_count
        row.segments[start:end] = slot + 1
        row.ids[start : start + prompt] = example.prompt
        row.positions[start : start + prompt] = np.arange(prompt)
        place = start + prompt
        for branch, answer in enumerate(example.answers, 1):
            size = len(answer)
            row.ids[place : place + size] = answer
            row.positions[place : place + size] = np.arange(prompt, prompt + size)
            row.branches[place : place + size] = branch
            scored = example.scored_places(branch - 1)
            end_used = used + len(scored)
            # The last prompt token predicts an answer's first token, whatever lies between.
            row.answer_index[used:end_used] = np.where(
                scored == 0, start + prompt - 1, place + scored - 1
            )
            row.answer_target[used:end_used] = answer[scored]
            row.answer_slot[used:end_used] = slot * answers + branch - 1
            place += size
            used = end_used
        start = end
    tiles = row_tiles(lengths)
    row.tiles[: len(tiles)] = tiles
    return used
