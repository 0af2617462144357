# SPDX-License-Identifier: Apache-2.0
"""Lengths → which example lies in which row of which step, for a whole run.

Choices:

- A step has ``batch_size`` examples, never more. An epoch whose size is not a multiple spreads the
  shortage evenly (17 examples, 16 a step: 9 and 8), so that none has a small rest.
- All steps hold nearly the same number of tokens (``alignax.data.deal``), so that one static row
  length, chosen from the data, fits them all with little padding.
- Which examples a step holds is a pure function of lengths, ``batch_size``, seed and epoch: not of
  what was read before, nor of rows, micro-batches, packing or the length of the run.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from alignax.data.deal import Row, deal, spread
from alignax.errors import DataError
from alignax.shapes import ROW_UNIT, TILE

ANSWER_UNIT = 64
"""Answer slots of a row are a multiple of this."""

TILE_UNIT = 8
"""Attention tiles of a row are a multiple of this."""


class PackShape(NamedTuple):
    """Static sizes of a batch; letters as in ``alignax.shapes``."""

    g: int
    b: int
    t: int
    a: int
    p: int
    s: int
    m: int


@dataclass(frozen=True)
class Plan:
    """The layout of a run.

    Attributes:
        shape: Static sizes of every step's batch.
        steps: Steps of the run.
        steps_per_epoch: Steps that see every example once.
        layouts: Epoch → step → micro-batch → row → example indices.
        tokens: Distinct tokens of one epoch.
    """

    shape: PackShape
    steps: int
    steps_per_epoch: int
    layouts: Sequence[Sequence[Sequence[Sequence[Row]]]]
    tokens: int

    def step(self, index: int) -> Sequence[Sequence[Row]]:
        """Rows of a step: micro-batch → row → example indices."""
        epoch, place = divmod(index, self.steps_per_epoch)
        return self.layouts[epoch][place]

    def epoch_of(self, index: int) -> int:
        """Epoch (from 0) that a step belongs to."""
        return index // self.steps_per_epoch

    @cached_property
    def fill(self) -> float:
        """Share of the batches' tokens that are not padding, over an epoch."""
        g, b, t = self.shape[:3]
        return self.tokens / (self.steps_per_epoch * g * b * t)


def plan_epochs(
    lengths: np.ndarray,
    *,
    batch_size: int,
    epochs: float | None = None,
    steps: int | None = None,
    seed: int | None = 0,
    microbatches: int | None = None,
    microbatch_tokens: int = 2560,
    rows: int = 1,
    packing: bool = True,
) -> Plan:
    """Lay out a training run.

    Args:
        lengths: [n, 1 + s] tokens of each prompt and of its answers.
        batch_size: Examples a step.
        epochs: Passes over the examples (or give ``steps``).
        steps: Steps of the run.
        seed: Seed of the order; None keeps the order of the dealing.
        microbatches: Micro-batches a step; None: as few as ``microbatch_tokens`` allows, or up to
            half as many again where that leaves less padding.
        microbatch_tokens: Most tokens of a micro-batch on one device. Only an example that is
            longer by itself, or a given number of micro-batches, goes beyond it.
        rows: Rows of a micro-batch, one or more for each device that splits the batch.
        packing: False puts every example into a row of its own.

    Raises:
        DataError: There are no examples.
    """
    count = len(lengths)
    if not count:
        raise DataError("there are no rows to train on")
    per_epoch = math.ceil(count / batch_size)
    total = steps if steps is not None else math.ceil((epochs or 1.0) * per_epoch)
    sizes = lengths.sum(1)
    dealt = [
        deal(sizes, per_epoch, None if seed is None else (seed, epoch))
        for epoch in range(math.ceil(total / per_epoch))
    ]
    each = min(batch_size, count)
    if packing:
        layouts, g, t = _packed(dealt, sizes, each, microbatches, microbatch_tokens, rows)
    else:
        micro, rows = _single_rows(each, int(sizes.max()), microbatches, microbatch_tokens, rows)
        layouts, g, t = _layout(dealt, sizes, micro, rows)
    shape = _shape(layouts, lengths, g, rows, t)
    return Plan(shape, total, per_epoch, layouts, int(sizes.sum()))


def scoring_plan(
    lengths: np.ndarray,
    *,
    microbatch_tokens: int = 2560,
    rows: int = 1,
    at_least: PackShape | None = None,
) -> Plan:
    """Lay out all examples once, in no particular order, for scoring and evaluation.

    Args:
        lengths: [n, 1 + s] tokens of each prompt and of its answers.
        microbatch_tokens: Most tokens of a row, unless an example is longer.
        rows: Rows of a batch, one or more for each device that splits the batch.
        at_least: Shape of another plan: no size is smaller, so that both can share a program.

    Raises:
        DataError: There are no examples.
    """
    if not len(lengths):
        raise DataError("there are no rows to score")
    sizes = lengths.sum(1)
    longest = int(sizes.max())
    limit = row_limit(longest, microbatch_tokens)
    wanted = math.ceil(sizes.sum() / (limit * rows * 0.98))
    layouts, g, t = _layout([deal(sizes, wanted, None)], sizes, 1, rows)
    while t > limit:
        wanted += math.ceil(wanted / 50)
        layouts, g, t = _layout([deal(sizes, wanted, None)], sizes, 1, rows)
    shape = _shape(layouts, lengths, g, rows, t)
    if at_least is not None:
        shape = PackShape(*map(max, shape, at_least))
    return Plan(shape, len(layouts[0]), len(layouts[0]), layouts, int(sizes.sum()))


def row_limit(longest: int, microbatch_tokens: int) -> int:
    """Longest row that may be laid out: whole units, and room for the longest example."""
    units = max(microbatch_tokens // ROW_UNIT, math.ceil(longest / ROW_UNIT))
    return units * ROW_UNIT


def _packed(
    dealt: Sequence[Sequence[Sequence[int]]],
    sizes: np.ndarray,
    examples: int,
    given: int | None,
    microbatch_tokens: int,
    rows: int,
) -> tuple[list[list[list[list[Row]]]], int, int]:
    """Try numbers of micro-batches whose rows keep to the limit; the fill decides between them."""
    if given is not None:
        return _layout(dealt, sizes, given, rows)
    limit = row_limit(int(sizes.max()), microbatch_tokens)
    fullest = max(int(sizes[hand].sum()) for epoch in dealt for hand in epoch)
    # With a row for every example the limit holds, so the search ends.
    for least in range(max(1, math.ceil(fullest / (rows * limit))), examples + 1):
        choices = range(least, least + max(1, least // 2) + 1)
        layouts = [_layout(dealt, sizes, g, rows) for g in choices]
        fitting = [layout for layout in layouts if layout[2] <= limit]
        if fitting:
            return min(fitting, key=lambda layout: (layout[1] * layout[2], layout[1]))
    raise AssertionError("a row of one example is longer than the longest example")


def _single_rows(
    examples: int, longest: int, given: int | None, microbatch_tokens: int, rows: int
) -> tuple[int, int]:
    """Micro-batches, and rows of each, when every example has a row of its own."""
    row_tokens = math.ceil(longest / ROW_UNIT) * ROW_UNIT
    fitting = max(1, microbatch_tokens // row_tokens)
    micro = given or math.ceil(examples / (rows * fitting))
    return micro, math.ceil(examples / (micro * rows)) * rows


def _layout(
    dealt: Sequence[Sequence[Sequence[int]]], sizes: np.ndarray, g: int, rows: int
) -> tuple[list[list[list[list[Row]]]], int, int]:
    """Spread each step over g · rows rows; returns layouts, g and the row length that fits all."""
    layouts: list[list[list[list[Row]]]] = []
    longest = 1
    for epoch in dealt:
        laid = []
        for hand in epoch:
            flat, load = spread(hand, sizes, g * rows)
            longest = max(longest, load)
            laid.append([flat[i * rows : (i + 1) * rows] for i in range(g)])
        layouts.append(laid)
    return layouts, g, math.ceil(longest / ROW_UNIT) * ROW_UNIT


def _shape(
    layouts: Sequence[Sequence[Sequence[Sequence[Row]]]],
    lengths: np.ndarray,
    g: int,
    rows: int,
    t: int,
) -> PackShape:
    """Find the static sizes that fit every row of every step."""
    answers = lengths[:, 1:].sum(1)
    used = [row for epoch in layouts for step in epoch for micro in step for row in micro if row]
    a = max(int(answers[row].sum()) for row in used)
    m = max(len(row_tiles(lengths[row])) for row in used)
    return PackShape(
        g=g,
        b=rows,
        t=t,
        a=math.ceil(a / ANSWER_UNIT) * ANSWER_UNIT,
        p=max(map(len, used)),
        s=lengths.shape[1] - 1,
        m=math.ceil(m / TILE_UNIT) * TILE_UNIT,
    )


def row_tiles(lengths: np.ndarray) -> np.ndarray:
    """List the live attention tiles of a row that holds examples of these lengths one by one.

    A tile pair is live iff some query token may attend to some key token: a prompt is seen by its
    whole example, an answer by itself. Returns [m, 2], sorted by query tile.

    Args:
        lengths: [examples, 1 + s] tokens of each prompt and of its answers.
    """
    count = math.ceil(int(lengths.sum()) / TILE)
    live = np.zeros((count, count), bool)
    start = 0
    for prompt, *answers in lengths.tolist():
        first, place = start // TILE, start + prompt
        end = place + sum(answers)
        live[first : (end - 1) // TILE + 1, first : (place - 1) // TILE + 1] = True
        for answer in answers:
            own = slice(place // TILE, (place + answer - 1) // TILE + 1)
            live[own, own] = True
            place += answer
        start = end
    return np.argwhere(np.tril(live)).astype(np.int32)
