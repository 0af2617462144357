# SPDX-License-Identifier: Apache-2.0
"""Lengths → which example lies in which row of which step, for a whole run.

Choices:

- A step has exactly ``batch_size`` examples. An epoch whose size is not a multiple spreads the
  shortage: some steps have one example fewer, none has a small rest.
- Examples are dealt so that all steps of an epoch hold nearly the same number of tokens: sorted by
  length, one stratum of an epoch's steps at a time, each stratum's longest to the emptiest step.
  Every step thus sees every length (which also lowers the variance of its gradient), and one
  static row length, chosen from the data, fits all steps with little padding.
- The plan is a pure function of lengths, settings, seed and epoch: step i can be laid out without
  laying out the steps before it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from alignax.errors import DataError
from alignax.shapes import TILE

ANSWER_UNIT = 64
"""Answer slots of a row are a multiple of this."""

TILE_UNIT = 8
"""Attention tiles of a row are a multiple of this."""

Row = list[int]
"""Indices of the examples in one row."""


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
    microbatch_tokens: int = 4096,
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
        microbatches: Micro-batches a step; None: as many as ``microbatch_tokens`` asks for.
        microbatch_tokens: Wanted tokens of a micro-batch on one device.
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
    if packing:
        candidates = _microbatch_choices(sizes, per_epoch, microbatches, microbatch_tokens, rows)
    else:
        micro = microbatches or 1
        each = math.ceil(min(batch_size, count) / (micro * rows)) * rows
        candidates, rows = [micro], each
    layouts, g, t = min(
        (_layout(dealt, sizes, g, rows) for g in candidates),
        key=lambda layout: (layout[1] * layout[2], layout[1]),
    )
    shape = _shape(layouts, lengths, g, rows, t)
    return Plan(shape, total, per_epoch, layouts, int(sizes.sum()))


def scoring_plan(lengths: np.ndarray, *, microbatch_tokens: int = 4096, rows: int = 1) -> Plan:
    """Lay out all examples once, in no particular order, for scoring and evaluation.

    Raises:
        DataError: There are no examples.
    """
    if not len(lengths):
        raise DataError("there are no rows to score")
    sizes = lengths.sum(1)
    longest = int(sizes.max())
    capacity = max(microbatch_tokens, longest) * rows
    wanted = max(1, math.ceil(sizes.sum() / (capacity * 0.98)))
    layouts, g, t = _layout([deal(sizes, wanted, None)], sizes, 1, rows)
    shape = _shape(layouts, lengths, g, rows, t)
    return Plan(shape, len(layouts[0]), len(layouts[0]), layouts, int(sizes.sum()))


def deal(sizes: np.ndarray, steps: int, seed: tuple[int, int] | None) -> list[list[int]]:
    """Deal examples to steps: equal counts (±1) and nearly equal sums of ``sizes``.

    Args:
        sizes: Tokens of each example.
        steps: Hands to deal to.
        seed: (seed, epoch) of the shuffle; None for none.
    """
    count = len(sizes)
    generator = np.random.default_rng(seed) if seed is not None else None
    order = np.arange(count) if generator is None else generator.permutation(count)
    # Stable sort of a shuffled order: examples of equal length come in random order.
    order = order[np.argsort(-sizes[order], kind="stable")]
    hands: list[list[int]] = [[] for _ in range(steps)]
    sums = np.zeros(steps, np.int64)
    for start in range(0, count, steps):
        stratum = order[start : start + steps]
        # The last stratum may be short: it holds the shortest examples, so little is uneven.
        ties = np.arange(steps) if generator is None else generator.permutation(steps)
        takers = ties[np.argsort(sums[ties], kind="stable")][: len(stratum)]
        for hand, example in zip(takers.tolist(), stratum.tolist(), strict=True):
            hands[hand].append(example)
        sums[takers] += sizes[stratum]
    _even_out(hands, sums, sizes, move=False)
    shuffle = range(steps) if generator is None else generator.permutation(steps).tolist()
    return [hands[i] for i in shuffle]


def _even_out(hands: list[list[int]], sums: np.ndarray, sizes: np.ndarray, *, move: bool) -> None:
    """Swap examples between the fullest and the emptiest hand while that helps, in place.

    With ``move`` an example may also change hands without another in return.
    """
    for _ in range(4 * len(hands)):
        high, low = int(sums.argmax()), int(sums.argmin())
        gap = int(sums[high] - sums[low])
        given_back = np.append(sizes[hands[low]], 0) if move else sizes[hands[low]]
        gains = sizes[hands[high]][:, None] - given_back[None, :]
        i, j = np.unravel_index(np.abs(2 * gains - gap).argmin(), gains.shape)
        gain = int(gains[i, j])
        if not 0 < gain < gap:
            return
        example = hands[high].pop(int(i))
        if j < len(hands[low]):
            hands[high].append(hands[low].pop(int(j)))
        hands[low].append(example)
        sums[high] -= gain
        sums[low] += gain


def _microbatch_choices(
    sizes: np.ndarray, per_epoch: int, given: int | None, microbatch_tokens: int, rows: int
) -> list[int]:
    """Numbers of micro-batches to try; the fill decides between them."""
    if given is not None:
        return [given]
    needed = max(1, round(sizes.sum() / per_epoch / (rows * microbatch_tokens)))
    return list(range(needed, needed + max(1, needed // 2) + 1))


def _layout(
    dealt: Sequence[Sequence[Sequence[int]]], sizes: np.ndarray, g: int, rows: int
) -> tuple[list[list[list[list[Row]]]], int, int]:
    """Spread each step over g · rows rows; returns layouts, g and the row length that fits all."""
    layouts: list[list[list[list[Row]]]] = []
    longest = 1
    for epoch in dealt:
        laid = []
        for hand in epoch:
            flat, load = _spread(hand, sizes, g * rows)
            longest = max(longest, load)
            laid.append([flat[i * rows : (i + 1) * rows] for i in range(g)])
        layouts.append(laid)
    return layouts, g, math.ceil(longest / TILE) * TILE


def _spread(hand: Sequence[int], sizes: np.ndarray, rows: int) -> tuple[list[Row], int]:
    """Put the longest example first, each into the emptiest row, then even out."""
    flat: list[Row] = [[] for _ in range(rows)]
    loads = np.zeros(rows, np.int64)
    for example in sorted(hand, key=lambda i: (-int(sizes[i]), i)):
        row = int(loads.argmin())
        flat[row].append(example)
        loads[row] += sizes[example]
    if rows > 1:
        _even_out(flat, loads, sizes, move=True)
    return flat, int(loads.max())


def _shape(
    layouts: Sequence[Sequence[Sequence[Sequence[Row]]]],
    lengths: np.ndarray,
    g: int,
    rows: int,
    t: int,
) -> PackShape:
    """Find the static sizes that fit every row of every step."""
    answers = lengths[:, 1:].sum(1)
    a = p = m = 1
    for epoch in layouts:
        for step in epoch:
            for micro in step:
                for row in micro:
                    a = max(a, int(answers[row].sum()) if row else 0)
                    p = max(p, len(row))
                    m = max(m, len(row_tiles(lengths[row])) if row else 0)
    return PackShape(
        g, rows, t, math.ceil(a / ANSWER_UNIT) * ANSWER_UNIT, p, lengths.shape[1] - 1,
        math.ceil(m / TILE_UNIT) * TILE_UNIT,
    )  # fmt: skip


def row_tiles(lengths: np.ndarray) -> np.ndarray:
    """List the live attention tiles of a row that holds examples of these lengths one by one.

    A tile pair is live iff some query token may attend to some key token: a prompt sees itself,
    an answer sees its prompt and itself. Returns [m, 2], sorted by query tile.

    Args:
        lengths: [examples, 1 + s] tokens of each prompt and of its answers.
    """
    pairs: set[tuple[int, int]] = set()
    start = 0
    for prompt, *answers in lengths.tolist():
        spans = [(start, start + prompt)]
        for answer in answers:
            spans.append((spans[-1][1], spans[-1][1] + answer))
        for number, (low, high) in enumerate(spans):
            if high == low:
                continue
            for seen_low, seen_high in {spans[0], spans[number]}:
                for query in range(low // TILE, (high - 1) // TILE + 1):
                    last = min((seen_high - 1) // TILE, query)
                    pairs.update((query, key) for key in range(seen_low // TILE, last + 1))
        start = spans[-1][1]
    return np.array(sorted(pairs), np.int32).reshape(-1, 2)
