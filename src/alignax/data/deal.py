# SPDX-License-Identifier: Apache-2.0
"""Sizes of examples → hands (steps of an epoch, rows of a step) that hold nearly equal sums.

Choices:

- Steps: sorted by size, one stratum of an epoch's steps at a time, each stratum's largest to the
  emptiest step. Every step thus sees every length, which also lowers the variance of its gradient;
  its examples are not independent draws.
- Rows: the largest example first, each into the emptiest row.
- Then the fullest and the emptiest hand swap examples for as long as that helps.
"""

from collections.abc import Sequence

import numpy as np

Row = list[int]
"""Indices of the examples in one row."""


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

    With ``move`` an example may also change hands without another in return, and where the
    emptiest hand has nothing to swap the next ones are tried.
    """
    for _ in range((16 if move else 4) * len(hands)):
        high = int(sums.argmax())
        partners = np.argsort(sums, kind="stable")[:-1] if move else [sums.argmin()]
        if not any(_swap(hands, sums, sizes, high, int(low), move=move) for low in partners):
            return


def _swap(
    hands: list[list[int]], sums: np.ndarray, sizes: np.ndarray, high: int, low: int, *, move: bool
) -> bool:
    """Do the swap that leaves two hands most alike, if there is one that helps."""
    gap = int(sums[high] - sums[low])
    given_back = np.append(sizes[hands[low]], 0) if move else sizes[hands[low]]
    gains = sizes[hands[high]][:, None] - given_back[None, :]
    i, j = np.unravel_index(np.abs(2 * gains - gap).argmin(), gains.shape)
    gain = int(gains[i, j])
    if not 0 < gain < gap:
        return False
    example = hands[high].pop(int(i))
    if j < len(hands[low]):
        hands[high].append(hands[low].pop(int(j)))
    hands[low].append(example)
    sums[high] -= gain
    sums[low] += gain
    return True


def spread(hand: Sequence[int], sizes: np.ndarray, rows: int) -> tuple[list[Row], int]:
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
