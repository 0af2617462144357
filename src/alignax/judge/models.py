# SPDX-License-Identifier: Apache-2.0
"""Judges that are models of our own: rewards of both answers, or the likeliest verdict label.

What loads and runs a model is handed in, so that judging knows no weights.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from alignax.judge.base import Opinion, Question
from alignax.judge.wording import CRITERIA, question_text
from alignax.records import Outcome

NOTHING: Callable[[int], None] = lambda _: None  # noqa: E731

LABELS: tuple[tuple[str, Outcome], ...] = (("A", "win"), ("B", "loss"), ("C", "tie"))
"""What a model may answer, and what that means for the answer shown first."""

ASKED = (
    f"{CRITERIA}Reply with one letter only: A if A is better, B if B is better, C if both are "
    "equally good."
)


class RewardJudge:
    """A reward model: the answer with the higher reward wins, whatever the order."""

    symmetric = True
    family = ""

    def __init__(
        self, score: Callable[[Sequence[Question]], list[Any]], *, name: str, identity: str
    ):
        """Take what scores.

        Args:
            score: Questions → for each the rewards of both answers, or a text that says why there
                are none.
            name: Name for people.
            identity: Hash of weights and encoding.
        """
        self._score = score
        self.name = name
        self.fingerprint = identity

    def judge(
        self, questions: Sequence[Question], *, done: Callable[[int], None] = NOTHING
    ) -> list[Opinion]:
        """Judge all questions; an answer that cannot be encoded is an error."""
        found = [self._opinion(result) for result in self._score(questions)]
        done(len(found))
        return found

    def _opinion(self, result: Any) -> Opinion:
        """Compare two rewards."""
        if isinstance(result, str):
            return Opinion("error", result)
        first, second = result
        outcome: Outcome = "win" if first > second else "loss" if first < second else "tie"
        if not np.isfinite([first, second]).all():
            outcome = "error"
        return Opinion(outcome, f"rewards {first:.4f} and {second:.4f}")


class LabelJudge:
    """A language model that is asked for one letter; the likeliest of the three is its verdict."""

    symmetric = False

    def __init__(
        self,
        score: Callable[[Sequence[tuple[str, str]], Sequence[str]], list[Any]],
        *,
        name: str,
        family: str,
        identity: str,
    ):
        """Take what scores.

        Args:
            score: ((system, user) texts, labels) → for each question the log-prob of every label
                as its answer, or a text that says why there is none.
            name: Name for people.
            family: Model family, for the warning of self-preference.
            identity: Hash of weights, encoding and prompt.
        """
        self._score = score
        self.name, self.family, self.fingerprint = name, family, identity

    def judge(
        self, questions: Sequence[Question], *, done: Callable[[int], None] = NOTHING
    ) -> list[Opinion]:
        """Judge all questions; one that does not fit into the model is an error."""
        asked = [(ASKED, question_text(question)) for question in questions]
        found = [self._opinion(result) for result in self._score(asked, [t for t, _ in LABELS])]
        done(len(found))
        return found

    def _opinion(self, result: Any) -> Opinion:
        """Take the likeliest label."""
        if isinstance(result, str):
            return Opinion("error", result)
        logps = np.asarray(result, np.float64)
        if not np.isfinite(logps).all():
            return Opinion("error", f"log-probs {logps.tolist()}")
        shares = np.exp(logps - logps.max())
        shares /= shares.sum()
        raw = ", ".join(f"{label} {p:.3f}" for (label, _), p in zip(LABELS, shares, strict=True))
        mass = float(np.exp(logps).sum())
        return Opinion(LABELS[int(logps.argmax())][1], f"{raw} (of {mass:.3f} in all)")
