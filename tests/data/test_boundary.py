# SPDX-License-Identifier: Apache-2.0
"""Boundary, stop token and budget on plain ids and lengths, with right answers by hand."""

import pytest

from alignax.data.boundary import close_answer, common_prefix, fit
from alignax.data.formats.turns import RowProblem

STOPS = (2, 3)


@pytest.mark.parametrize(
    ("sequences", "length"),
    [
        ([[4, 11, 5, 6], [4, 11, 5, 6, 9, 12], [4, 11, 5, 7, 9, 12]], 3),
        ([[1, 2], [1, 2, 3]], 2),
        ([[1], [2]], 0),
        ([[], [2]], 0),
        ([[7, 8]], 2),
    ],
)
def test_common_prefix(sequences, length):
    assert common_prefix(sequences) == length


@pytest.mark.parametrize(
    ("answer", "written", "closed"),
    [
        ([7, 8], 0, [7, 8, 2]),
        ([7, 8, 2], 0, [7, 8, 2]),
        ([7, 8, 3], 0, [7, 8, 3]),
        # The template's line break after the stop token is not part of the answer.
        ([7, 8, 3, 10], 1, [7, 8, 3]),
        # Turn end, line break, end of text: the first one is the answer's own.
        ([7, 8, 3, 10, 2], 2, [7, 8, 3]),
        # A template that left its stop token out of this row.
        ([7, 8], 1, [7, 8, 2]),
        ([7, 8, 3], 2, [7, 8, 3]),
    ],
)
def test_an_answer_ends_with_exactly_one_stop_token(answer, written, closed):
    assert close_answer(answer, STOPS, stop_id=2, written=written) == closed


@pytest.mark.parametrize(
    ("answer", "written", "reason"),
    [
        ([7, 2, 8], 0, "stop_token_inside"),
        ([7, 3, 8, 3, 10], 1, "stop_token_inside"),
        ([2], 0, "empty_answer"),
        ([], 0, "empty_answer"),
        ([3, 10], 1, "empty_answer"),
    ],
)
def test_answers_that_cannot_be_closed(answer, written, reason):
    with pytest.raises(RowProblem) as caught:
        close_answer(answer, STOPS, stop_id=2, written=written)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("prompt", "chosen", "rejected", "limit", "kept", "lost"),
    [
        (20, 40, 30, 50, (30, 30), (10, 0)),
        (20, 5000, 600, 2048, (2028, 600), (2972, 0)),
        (10, 20, 20, 50, (20, 20), (0, 0)),
    ],
)
def test_c8_each_answer_has_its_own_budget(prompt, chosen, rejected, limit, kept, lost):
    cut = fit(prompt, [[1] * chosen, [4] * rejected], limit)
    assert tuple(map(len, cut.answers)) == kept
    assert cut.lost == lost


@pytest.mark.parametrize("prompt", [50, 60])
def test_c8_no_room_for_an_answer(prompt):
    with pytest.raises(RowProblem) as caught:
        fit(prompt, [[1] * 10, [4] * 12], 50)
    assert caught.value.reason == "no_room"


def test_a_cut_that_leaves_no_difference_drops_the_pair():
    with pytest.raises(RowProblem) as caught:
        fit(3, [[1, 2, 3, 9], [1, 2, 3, 8, 9]], 6)
    assert caught.value.reason == "identical_after_cut"
