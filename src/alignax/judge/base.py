# SPDX-License-Identifier: Apache-2.0
"""The judge protocol: two answers in the order shown → how the judgement ended.

A judge sees an order, not a candidate. Asking both orders, and what that tells of the judge, is
the same for all judges and lives in ``judge.orders``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from alignax.records import Outcome


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt with two answers, in the order in which the judge sees them."""

    prompt: str
    first: str
    second: str
    reference: str = ""


@dataclass(frozen=True, slots=True)
class Opinion:
    """How one judgement ended, seen from the first answer, and what the judge wrote."""

    outcome: Outcome
    raw: str = ""


class Judge(Protocol):
    """Anything that can compare answers.

    Attributes:
        name: Identity for people: model and prompt, or the rules' file.
        fingerprint: Hash of everything that decides a verdict; unlike ones are not comparable.
        family: Model family of the judge, empty if it is no model.
        symmetric: Whether swapping the answers mirrors the opinion by construction, so that
            one order is enough.
    """

    name: str
    fingerprint: str
    family: str
    symmetric: bool

    def judge(
        self, questions: Sequence[Question], *, done: Callable[[int], None] = ...
    ) -> list[Opinion]:
        """Judge all questions; every one ends in an opinion, whatever happens to it."""
        ...
