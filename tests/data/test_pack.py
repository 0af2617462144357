# SPDX-License-Identifier: Apache-2.0
"""Packed rows are right token by token; tiles are the live ones and no others."""

import numpy as np
import pytest

from alignax.data.pack import pack
from alignax.data.plan import PackShape, row_tiles
from alignax.errors import DataError
from alignax.shapes import TILE
from tests.data.lengths import FakeRows, encoded


def first_row(batch):
    return {name: getattr(batch, name)[0, 0] for name in batch._fields}


def test_six_tokens():
    """Prompt 11 12, chosen 13 2, rejected 14 2: the prompt's last token predicts 13 and 14."""
    shape = PackShape(g=1, b=1, t=TILE, a=5, p=1, s=2, m=2)
    row = first_row(pack([encoded([11, 12], [13, 2], [14, 2])], [[[0]]], shape))
    pad = [0] * (TILE - 6)
    np.testing.assert_array_equal(row["ids"], [11, 12, 13, 2, 14, 2, *pad])
    np.testing.assert_array_equal(row["positions"], [0, 1, 2, 3, 2, 3, *pad])
    np.testing.assert_array_equal(row["segments"], [1, 1, 1, 1, 1, 1, *pad])
    np.testing.assert_array_equal(row["branches"], [0, 0, 1, 1, 2, 2, *pad])
    np.testing.assert_array_equal(row["answer_index"], [1, 2, 1, 4, 0])
    np.testing.assert_array_equal(row["answer_target"], [13, 2, 14, 2, 0])
    np.testing.assert_array_equal(row["answer_slot"], [0, 0, 1, 1, 2])
    np.testing.assert_array_equal(row["example"], [0])
    np.testing.assert_array_equal(row["tiles"], [[0, 0], [-1, -1]])
    assert row["answer_count"] == 4


def test_two_pairs_of_unequal_answers():
    rows = [encoded([5, 6, 7], [8, 2], [9]), encoded([3], [4], [1, 2])]
    shape = PackShape(g=1, b=1, t=TILE, a=8, p=3, s=2, m=2)
    row = first_row(pack(rows, [[[1, 0]]], shape))
    pad = [0] * (TILE - 10)
    np.testing.assert_array_equal(row["ids"], [3, 4, 1, 2, 5, 6, 7, 8, 2, 9, *pad])
    np.testing.assert_array_equal(row["positions"], [0, 1, 1, 2, 0, 1, 2, 3, 4, 3, *pad])
    np.testing.assert_array_equal(row["segments"], [1] * 4 + [2] * 6 + pad)
    np.testing.assert_array_equal(row["branches"], [0, 1, 2, 2, 0, 0, 0, 1, 1, 2, *pad])
    np.testing.assert_array_equal(row["answer_index"], [0, 0, 2, 6, 7, 6, 0, 0])
    np.testing.assert_array_equal(row["answer_target"], [4, 1, 2, 8, 2, 9, 0, 0])
    np.testing.assert_array_equal(row["answer_slot"], [0, 1, 1, 2, 2, 3, 6, 6])
    np.testing.assert_array_equal(row["example"], [1, 0, -1])
    assert row["answer_count"] == 6


def test_one_answer():
    shape = PackShape(g=1, b=1, t=TILE, a=4, p=2, s=1, m=1)
    row = first_row(pack([encoded([5], [6, 2]), encoded([7, 8], [2])], [[[0, 1]]], shape))
    np.testing.assert_array_equal(row["branches"][:7], [0, 1, 1, 0, 0, 1, 0])
    np.testing.assert_array_equal(row["answer_index"], [0, 1, 4, 0])
    np.testing.assert_array_equal(row["answer_target"], [6, 2, 2, 0])
    np.testing.assert_array_equal(row["answer_slot"], [0, 0, 1, 2])


def test_empty_rows_and_padding_are_inert():
    shape = PackShape(g=2, b=2, t=TILE, a=4, p=1, s=2, m=1)
    batch = pack([encoded([5], [6, 2], [2])], [[[], [0]], [[], []]], shape)
    for place in ((0, 0), (1, 0), (1, 1)):
        assert batch.answer_count[place] == 0
        assert not batch.segments[place].any()
        assert (batch.example[place] == -1).all()
        assert (batch.tiles[place] == -1).all()
        assert (batch.answer_slot[place] == 2).all()
    assert batch.answer_count[0, 1] == 3
    assert all(field.dtype == np.int32 for field in batch)


LENGTHS = [
    [[100, 60, 150], [20, 3, 4], [130, 140, 5], [1, 1, 1]],
    [[TILE, TILE, TILE], [TILE - 1, 1, TILE]],
    [[300, 1, 1], [1, 300, 1], [1, 1, 300]],
    [[3, 5], [200, 120], [60, 100]],
]


@pytest.mark.parametrize("lengths", LENGTHS)
def test_tiles_are_exactly_those_of_the_mask(lengths):
    """Oracle: every (query, key) of the dense mask, one by one."""
    lengths = np.array(lengths)
    total = int(lengths.sum())
    t = -(-total // TILE) * TILE
    shape = PackShape(1, 1, t, total, len(lengths), lengths.shape[1] - 1, 64)
    row = first_row(pack(FakeRows(lengths), [[list(range(len(lengths)))]], shape))
    segment, branch = row["segments"].tolist(), row["branches"].tolist()
    live = set()
    for query in range(t):
        for key in range(query + 1):
            same = segment[query] == segment[key] > 0
            if same and branch[key] in (0, branch[query]):
                live.add((query // TILE, key // TILE))
    assert [tuple(pair) for pair in row_tiles(lengths)] == sorted(live)
    np.testing.assert_array_equal(row["tiles"][: len(live)], sorted(live))
    assert (row["tiles"][len(live) :] == -1).all()


def test_example_longer_than_a_row_is_named():
    shape = PackShape(g=1, b=1, t=TILE, a=64, p=1, s=2, m=8)
    with pytest.raises(DataError, match="row1: 140 tokens") as caught:
        pack(FakeRows([[10, 5, 5], [100, 20, 20]]), [[[1]]], shape)
    assert "data.max_length" in str(caught.value)
