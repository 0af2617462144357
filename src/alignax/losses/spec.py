# SPDX-License-Identifier: Apache-2.0
"""A loss as data: what its function is, what it needs, and which settings it honours."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from alignax.losses.knobs import Knob


@dataclass(frozen=True, eq=False)
class LossSpec:
    """What a loss is and what it needs.

    Attributes:
        name: Its name in recipes.
        function: Pair losses: ``(PairLogps of scalars, *, beta, **knobs) → scalar``, without
            ``beta`` if ``default_beta`` is None. Batch-level pair losses:
            ``(PairLogps of [p] arrays, valid [p], *, beta, **knobs) → [p]``. SFT losses:
            ``(log-prob, tokens) → scalar``.
        kind: ``"pair"``, ``"sft"``, or ``"reward"``: pairs under a reward model, whose scalars
            stand for log-probs.
        needs_reference: Whether reference log-probs enter.
        length_normalised: Whether it reads log-probs per token instead of summed ones.
        default_beta: β when the recipe gives none; None if the loss has no β.
        knobs: Settings that it honours besides β, with their defaults; any other is refused.
        formula: One line for the run's header and report.
        paper: Where it comes from.
        paired: Whether the two answers of a pair are compared with each other; otherwise each
            counts as an answer with its own label.
        batch_level: Whether an example's loss depends on the other examples of the batch.
        columns: Further fields of ``PairLogps`` that it reads: ``"tail"``, ``"forward_kl"``,
            ``"squares"``, ``"score"``.
        remember: ``(memory, pair, valid, *, beta) → memory``: scalars by field of ``PairLogps``
            that are carried from step to step, zeros at first; None if there are none.
    """

    name: str
    function: Callable[..., Any]
    kind: Literal["pair", "sft", "reward"]
    needs_reference: bool
    length_normalised: bool
    default_beta: float | None
    knobs: Mapping[str, Knob]
    formula: str
    paper: str
    paired: bool = True
    batch_level: bool = False
    columns: tuple[str, ...] = ()
    remember: Callable[..., dict[str, Any]] | None = None

    @property
    def token_level(self) -> bool:
        """Whether sums over the answers do not suffice: token log-probs or whole distributions."""
        return bool(set(self.columns) - {"score"})
