# SPDX-License-Identifier: Apache-2.0
"""Token ids of a prompt and of prompt + answers → prompt, answers, and what was cut.

Pure functions on id lists. The prompt is the longest common prefix of all renderings, the same for
both sides of a pair; a complete answer ends with exactly one stop token, which is scored; a cut
answer has none.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from alignax.data.formats.turns import RowProblem

Ids = list[int]


@dataclass(frozen=True)
class Cut:
    """Answers that fit, with what it took.

    Attributes:
        answers: Ids of each answer, at least one each.
        lost: Tokens cut from the right of each.
    """

    answers: tuple[Ids, ...]
    lost: tuple[int, ...]


def common_prefix(sequences: Sequence[Ids]) -> int:
    """Length of the longest common prefix."""
    # What the first and the last in order share, all between them share.
    first, last = min(sequences), max(sequences)
    for index, (one, other) in enumerate(zip(first, last, strict=False)):
        if one != other:
            return index
    return len(first)


def close_answer(
    answer: Sequence[int], stop_ids: Collection[int], *, stop_id: int, written: int
) -> Ids:
    """Let an answer end with exactly one stop token.

    Args:
        answer: Ids after the boundary, with whatever the template wrote after the answer.
        stop_ids: Every id that ends an answer.
        stop_id: The id to append where none was written.
        written: Stop tokens that the template writes after an answer. The first of them is the
            answer's own; what follows it is not part of the answer.

    Raises:
        RowProblem: A stop token lies inside the answer, or the answer has nothing else.
    """
    closed = list(answer)
    places = [i for i, token in enumerate(closed) if token in stop_ids]
    if written and places:
        closed = closed[: places[max(len(places) - written, 0)] + 1]
    elif not places or places[-1] != len(closed) - 1:
        closed.append(stop_id)
    if any(token in stop_ids for token in closed[:-1]):
        raise RowProblem("stop_token_inside", "a stop token lies inside an answer")
    if len(closed) < 2:
        raise RowProblem("empty_answer", "an answer has no token besides its stop token")
    return closed


def close_turns(
    answer: Sequence[int],
    starts: Sequence[int],
    stop_ids: Collection[int],
    *,
    stop_id: int,
    written: int,
) -> tuple[Ids, list[bool]]:
    """Close an answer of one or several assistant turns, and tell which tokens are scored.

    Scored is what the assistant says, each turn with its stop token; what lies between (the other
    turns and all headers) is not.

    Args:
        answer: Ids after the boundary.
        starts: Where its assistant turns begin; the first is 0.
        stop_ids: As for ``close_answer``; so are ``stop_id`` and ``written``.
        stop_id: The id to append where none was written.
        written: Stop tokens that the template writes after an answer.

    Raises:
        RowProblem: As ``close_answer``, or the template ends an earlier turn with no stop token.
    """
    scored: list[bool] = []
    for begin, following in pairwise(starts):
        stops = [i for i in range(begin, following) if answer[i] in stop_ids]
        if not stops:
            raise RowProblem("several_turns", "an answer's earlier turn ends with no stop token")
        scored += [True] * (stops[0] + 1 - begin) + [False] * (following - stops[0] - 1)
    last = close_answer(answer[starts[-1] :], stop_ids, stop_id=stop_id, written=written)
    return [*answer[: starts[-1]], *last], scored + [True] * len(last)


def fit(prompt_length: int, answers: Sequence[Sequence[int]], max_length: int) -> Cut:
    """Cut each answer to what its own prompt leaves of ``max_length``.

    Raises:
        RowProblem: No room for an answer, or what is left of a pair does not differ.
    """
    budget = max_length - prompt_length
    if budget < 1:
        raise RowProblem(
            "no_room", f"the prompt has {prompt_length} tokens, data.max_length is {max_length}"
        )
    kept = tuple(list(answer[:budget]) for answer in answers)
    if len(kept) > 1 and kept[0] == kept[1]:
        raise RowProblem("identical_after_cut", f"the first {budget} answer tokens are the same")
    return Cut(kept, tuple(max(len(answer) - budget, 0) for answer in answers))
