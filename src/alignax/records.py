# SPDX-License-Identifier: Apache-2.0
"""The types that travel along the arrows: rows → examples → encoded → batch → log-probs → loss.

A stage names the type that it takes and the type that it gives; it never imports its neighbour.
Array shapes use the letters of ``alignax.shapes``.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

Message = Mapping[str, Any]
"""One chat turn: ``role``, ``content`` and any further field the template knows."""

Text = str | tuple[Message, ...]
"""Either plain text (rendered verbatim) or chat turns (rendered by the model's template)."""


@dataclass(frozen=True, slots=True)
class PreferencePair:
    """One prompt with a preferred and a dispreferred answer.

    ``prompt``, ``chosen`` and ``rejected`` are all plain text or all chat turns. ``system`` is what
    a row of plain text would say in a system turn; turns hold their own. ``images`` are references
    (paths, addresses, hashes of embedded ones), in order.
    """

    row_id: str
    prompt: Text
    chosen: Text
    rejected: Text
    tools: tuple[Mapping[str, Any], ...] = ()
    chosen_score: float | None = None
    rejected_score: float | None = None
    place: str = ""
    system: str = ""
    images: tuple[str, ...] = ()

    @property
    def answers(self) -> tuple[Text, Text]:
        """Chosen and rejected, in that order."""
        return (self.chosen, self.rejected)


@dataclass(frozen=True, slots=True)
class Conversation:
    """One prompt with one answer to imitate (SFT)."""

    row_id: str
    prompt: Text
    response: Text
    tools: tuple[Mapping[str, Any], ...] = ()
    place: str = ""
    system: str = ""
    images: tuple[str, ...] = ()

    @property
    def answers(self) -> tuple[Text]:
        """The answer, as a tuple of one."""
        return (self.response,)


Example = PreferencePair | Conversation


@dataclass(frozen=True, slots=True)
class Dropped:
    """A row that cannot be used, with the reason under which it is counted."""

    row_id: str
    reason: str
    detail: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True)
class EncodedExample:
    """Token ids of one example: the shared prompt and its answers (2 for a pair, 1 for SFT).

    Attributes:
        prompt: int32 ids of the shared prompt, at least one.
        answers: int32 ids of each answer, each at least one; a complete one ends with its only
            stop token.
        complete: Whether each answer ends with its stop token.
        answer_cut: Tokens cut from the right of each answer.
        prompt_cut: Tokens cut from the left of the prompt.
        boundary_merged: The boundary lies before the end of the prompt's own rendering.
        system_merged: The template takes no system turn; its text opens the first user turn.
        scored: Which tokens of each answer are scored: the assistant's turns, where an answer goes
            on for several turns. Empty: all of them.
    """

    row_id: str
    prompt: np.ndarray
    answers: tuple[np.ndarray, ...]
    complete: tuple[bool, ...]
    answer_cut: tuple[int, ...] = (0, 0)
    prompt_cut: int = 0
    boundary_merged: bool = False
    system_merged: bool = False
    scored: tuple[np.ndarray, ...] = ()

    def scored_places(self, answer: int) -> np.ndarray:
        """Places of an answer's scored tokens."""
        return (
            np.flatnonzero(self.scored[answer])
            if self.scored
            else np.arange(len(self.answers[answer]))
        )

    @property
    def token_count(self) -> int:
        """Distinct tokens: the prompt once, and each answer."""
        return len(self.prompt) + sum(map(len, self.answers))


class PackedBatch(NamedTuple):
    """Examples in shared-prefix rows, with static shapes (a pytree of int32 arrays).

    A row holds ``prompt answer_1 … answer_s`` of several examples one after another. The fields of
    a training step carry a leading micro-batch axis ``g``.

    Attributes:
        ids: [b, t] token ids, 0 in padding.
        positions: [b, t] rotary positions; every answer starts at its prompt's length.
        segments: [b, t] 1 + slot of the example in its row; 0 in padding.
        branches: [b, t] 0 for a prompt, 1 … s for its answers.
        tiles: [b, m, 2] attention tiles (query tile, key tile), sorted by query tile; -1 unused.
        answer_index: [b, a] place in the row of the token that predicts the answer token.
        answer_target: [b, a] the answer token.
        answer_slot: [b, a] p·s-th answer of the row that it belongs to (slot·s + branch - 1); the
            first value past the last slot marks unused places.
        answer_count: [b] used answer places of the row; used places come first.
        example: [b, p] index of the example in its data set; -1 for an unused slot.
    """

    ids: Any
    positions: Any
    segments: Any
    branches: Any
    tiles: Any
    answer_index: Any
    answer_target: Any
    answer_slot: Any
    answer_count: Any
    example: Any


class PairLogps(NamedTuple):
    """Summed log-probs (nats) and scored-token counts of pairs; a scalar or an array each.

    The fields with a default are 0 unless the loss asked for them.

    Attributes:
        kl_chosen: Mean over the chosen answer's tokens of KL(policy ‖ reference).
        policy_tail_chosen: The part of the log-prob that lies beyond the length of the pair's
            shorter answer; so ``policy_tail_rejected`` and the two of the reference.
        forward_kl_chosen: Σ over tokens of KL(reference ‖ policy); so ``forward_kl_rejected``.
        squares_chosen: Σ over tokens of log Σ_v p(v)² under the policy; so ``squares_rejected``.
        score_chosen: A score that came with the row; so ``score_rejected``.
        margin_mean: Running mean of the pairs' reward margins, the same in every slot.
        margin_spread: Their running standard deviation; 0 before the first step.
    """

    policy_chosen: Any
    policy_rejected: Any
    reference_chosen: Any
    reference_rejected: Any
    chosen_tokens: Any
    rejected_tokens: Any
    kl_chosen: Any = 0.0
    policy_tail_chosen: Any = 0.0
    policy_tail_rejected: Any = 0.0
    reference_tail_chosen: Any = 0.0
    reference_tail_rejected: Any = 0.0
    forward_kl_chosen: Any = 0.0
    forward_kl_rejected: Any = 0.0
    squares_chosen: Any = 0.0
    squares_rejected: Any = 0.0
    score_chosen: Any = 0.0
    score_rejected: Any = 0.0
    margin_mean: Any = 0.0
    margin_spread: Any = 0.0


class Weighted(NamedTuple):
    """A sum and its weight, which travel together and are divided once, at the log line."""

    total: Any
    weight: Any

    def __add__(self, other: "Weighted") -> "Weighted":  # type: ignore[override]
        """Combine two parts of one average."""
        return Weighted(self.total + other.total, self.weight + other.weight)

    @property
    def mean(self) -> float:
        """Total over weight; NaN when nothing was weighed."""
        return float(self.total) / float(self.weight) if float(self.weight) else float("nan")


class LossOutput(NamedTuple):
    """The loss as a sum with its weight, and metrics by name."""

    loss: Weighted
    metrics: dict[str, Weighted]


@dataclass(frozen=True, slots=True)
class Generation:
    """One generated answer.

    Attributes:
        text: Decoded answer without the stop token.
        ids: Generated ids, the stop token included when one came.
        logps: Log-prob (nats) of each generated id under the untempered model.
        finish_reason: ``"stop"`` (a stop id came) or ``"length"``.
    """

    prompt: str
    text: str
    ids: tuple[int, ...]
    logps: tuple[float, ...]
    finish_reason: str


@dataclass(frozen=True, slots=True)
class Score:
    """A measured value with its 95 % interval and the number of items behind it."""

    value: float
    low: float
    high: float
    n: int

    def shown(self, digits: int = 3) -> str:
        """Write the value with its interval; a dash for none."""
        if math.isnan(self.value):
            return "-"
        return f"{self.value:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two answers to one prompt, for a judge that is not told whose they are.

    Attributes:
        item_id: Stable name of the prompt; verdicts are joined by it.
        answer: Of the candidate, whose win rate is asked for.
        baseline: Of what the candidate is compared with.
        reference: A known good answer, or empty.
    """

    item_id: str
    prompt: str
    answer: str
    baseline: str
    reference: str = ""


Outcome = Literal["win", "loss", "tie", "unparsed", "refused", "error"]
"""What a judgement of the candidate ended in; the last three are no verdict, but are counted."""

WORTH: dict[Outcome, float] = {"win": 1.0, "tie": 0.5, "loss": 0.0}
"""What a verdict is worth to the candidate; outcomes that are none are absent."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the judgement of one comparison ended, seen from the candidate.

    Attributes:
        raw: What the judge wrote, or what went wrong.
        orders: Outcomes of the single judgements: candidate shown first, then second.
    """

    item_id: str
    outcome: Outcome
    raw: str = ""
    orders: tuple[Outcome, ...] = ()

    @property
    def decided(self) -> bool:
        """Whether there is a verdict: win, loss or tie."""
        return self.outcome in WORTH


@dataclass(frozen=True)
class RunReport:
    """All that the report shows; JSON-serialisable (``dataclasses.asdict``).

    Attributes:
        title: Shown at the top.
        verdict: One paragraph of plain words.
        status: What the verdict comes to: ``"better"``, ``"unclear"``, ``"worse"`` or
            ``"unfinished"``.
        best_step: The step whose weights are the result; None while that is open.
        advice: What to do or to look at next, one sentence each.
        facts: Label → value, for the line below the title.
        headline: One dict a card: ``label``, ``before``, ``after``, ``interval``, ``note``.
        curves: Metric name → list of (step, value).
        evaluations: One dict a held-out evaluation, in step order.
        samples: One dict a prompt: ``prompt``, ``before``, ``after``, and why each ended.
        data_report: As in ``data_report.json``.
        events: As in ``events.jsonl``.
        settings: The resolved recipe.
        fingerprints: As in ``fingerprints.json``.
        exports: What was written below ``export/``, with its checks.
        profile: As in ``profile.json``; empty if nothing was traced.
        gate: As in ``gate.json``; empty if no goals were checked.
    """

    title: str
    verdict: str
    status: str = "unfinished"
    best_step: int | None = None
    advice: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    headline: list[dict[str, str]] = field(default_factory=list)
    curves: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)
    data_report: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    fingerprints: dict[str, Any] = field(default_factory=dict)
    exports: list[dict[str, Any]] = field(default_factory=list)
    profile: dict[str, Any] = field(default_factory=dict)
    gate: dict[str, Any] = field(default_factory=dict)
