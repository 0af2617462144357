# SPDX-License-Identifier: Apache-2.0
"""The settings by which an answer's tokens are chosen."""

from collections.abc import Sequence
from dataclasses import dataclass

from alignax.errors import UsageError


@dataclass(frozen=True)
class Choice:
    """How one answer's tokens are chosen.

    Attributes:
        temperature: Divides the logits; 0 is greedy.
        top_k: Choose among the k likeliest tokens; None for all.
        top_p: Choose among the likeliest tokens whose probability reaches p (Holtzman 2020).
        min_p: Leave out tokens below this share of the likeliest one's probability (Nguyen 2024).
        penalty: Makes tokens that were read or written before less likely (Keskar 2019); 1: not.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    penalty: float = 1.0

    @property
    def limited(self) -> bool:
        """Whether some token may be left out."""
        return bool(self.top_k or self.min_p or (self.top_p is not None and self.top_p < 1))

    def problems(self) -> list[str]:
        """List the settings that are out of range."""
        found = []
        if not self.temperature >= 0:
            found.append(f"temperature must be at least 0, got {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            found.append(f"top_k must be at least 1, got {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            found.append(f"top_p must be above 0 and at most 1, got {self.top_p}")
        if self.min_p is not None and not 0 <= self.min_p <= 1:
            found.append(f"min_p must be from 0 to 1, got {self.min_p}")
        if not self.penalty > 0:
            found.append(f"repetition_penalty must be above 0, got {self.penalty}")
        if self.temperature == 0 and self.limited:
            found.append("top_k, top_p and min_p have no effect on greedy decoding (temperature 0)")
        return found


GREEDY = Choice()
"""Always the likeliest token."""


def check_choice(choice: Choice, max_new_tokens: int, stops: Sequence[str] = ()) -> None:
    """Refuse settings out of range, all at once.

    Raises:
        UsageError: A setting is out of range.
    """
    problems = choice.problems()
    if max_new_tokens < 1:
        problems.insert(0, f"max_new_tokens must be at least 1, got {max_new_tokens}")
    if "" in stops:
        problems.append("a stop text must not be empty")
    if problems:
        raise UsageError("sampling settings are not valid", problems=problems)
