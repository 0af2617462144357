# SPDX-License-Identifier: Apache-2.0
"""Held-out metrics before and after → a paragraph that says what they prove and what not."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from alignax.metrics.drift import KL_BAND, displaced, kl_band


@dataclass(frozen=True)
class Finding:
    """What a run measured.

    Attributes:
        method: ``"dpo"`` or ``"sft"``.
        finished: Whether the run wrote its summary.
        steps: Updates done.
        best_step: The step whose weights are the result.
        best_metric: What chose it.
        before: Held-out metrics before the first update.
        after: Held-out metrics of the result.
        last: Held-out metrics after the last update, if there were any.
    """

    method: str
    finished: bool
    steps: int
    best_step: int | None
    best_metric: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
    last: Mapping[str, Any] | None


@dataclass(frozen=True)
class Verdict:
    """The verdict: ``status`` is ``better``, ``unclear``, ``worse`` or ``unfinished``."""

    status: str
    text: str
    advice: tuple[str, ...]


def judge(finding: Finding) -> Verdict:
    """Put the findings into words."""
    opening = ""
    if not finding.finished:
        opening = f"This run has not finished: {finding.steps} steps are recorded so far. "
    if not finding.before or not finding.after:
        text = opening + (
            "There is no held-out evaluation to compare, so nothing can be said about what the "
            "model learned; training curves alone do not show it."
        )
        advice = (
            ()
            if not finding.finished
            else (
                "Set data.eval_fraction above 0 or give data.eval_path, so that rows are held out.",
            )
        )
        return Verdict("unfinished", text, advice)
    judged = _judge_pairs if "margin" in finding.after else _judge_answers
    status, sentences, advice = judged(finding, finding.before, finding.after)
    sentences += _about_best_step(finding)
    return Verdict(
        status if finding.finished else "unfinished", opening + " ".join(sentences), tuple(advice)
    )


def _span(values: Mapping[str, Any], name: str, scale: float = 1.0, digits: int = 3) -> str:
    """Format an interval as words."""
    low, high = values.get(f"{name}_low"), values.get(f"{name}_high")
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return "no interval"
    return f"95 % interval {low * scale:.{digits}f} to {high * scale:.{digits}f}"


def _change(before: Mapping[str, Any], after: Mapping[str, Any], name: str) -> int:
    """Return 1 or -1 for a rise or fall beyond both intervals, else 0."""
    old_low, old_high = (
        before.get(f"{name}_low", before[name]),
        before.get(f"{name}_high", before[name]),
    )
    if after.get(f"{name}_low", after[name]) > old_high:
        return 1
    return -1 if after.get(f"{name}_high", after[name]) < old_low else 0


def _judge_pairs(
    finding: Finding, before: Mapping[str, Any], after: Mapping[str, Any]
) -> tuple[str, list[str], list[str]]:
    """Judge a preference run."""
    change = _change(before, after, "margin")
    status = {1: "better", 0: "unclear", -1: "worse"}[change]
    opening = {
        "better": "The model learned the preference",
        "unclear": "No effect can be shown",
        "worse": "The model moved against the preference",
    }[status]
    relation = "clear of" if change else "not clear of"
    start = f"{before['margin'] or 0.0:.3f}"
    sentences = [
        (
            f"{opening}: on {int(after['n'])} held-out pairs the mean reward margin went from "
            f"{start} to {after['margin']:.3f} ({_span(after, 'margin')}, {relation} the starting "
            "value)."
        ),
        *_about_accuracy(before, after),
        _about_loss(before, after),
    ]
    advice: list[str] = []
    for part in (_about_kl, _about_displacement):
        words, tips = part(after, status)
        sentences += words
        advice += tips
    sentences.append(_about_certainty(after))
    if status == "unclear":
        advice.insert(0, "Hold out more pairs or train longer before comparing settings.")
    if status == "worse":
        advice.insert(0, "Check that chosen and rejected are not swapped: alignax data show.")
    if change == 1 and _change(before, after, "loss") == 1:
        advice.append(
            "The loss rose although the margin grew: a few pairs are ranked wrongly with great "
            "confidence. Fewer steps or a lower learning rate help."
        )
    return status, sentences, advice


def _about_accuracy(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Say how often the model ranks pairs as the data does."""
    rate = f"{100 * after['accuracy']:.1f} % of them"
    span = _span(after, "accuracy", 100, 1)
    start = f", from {100 * before['accuracy']:.1f} %"
    if before.get("ties") == 1:
        start = "; before training every pair was a tie, because the model was its own reference"
    words = [f"It now ranks {rate} as the data does ({span}{start})."]
    if after.get("accuracy_low", 1) <= 0.5 <= after.get("accuracy_high", 0):
        words.append("That is not distinguishable from guessing, which gets 50 %.")
    return words


def _about_loss(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Say where the loss went."""
    verb = "fell" if after["loss"] < before["loss"] else "rose"
    return (
        f"The held-out loss {verb} from {before['loss']:.4f} to {after['loss']:.4f} "
        f"({_span(after, 'loss', 1, 4)})."
    )


def _about_kl(after: Mapping[str, Any], status: str) -> tuple[list[str], list[str]]:
    """Say how far the model went from its reference."""
    if "kl/token" not in after:
        return [], []
    value, (low, high) = after["kl/token"], KL_BAND
    band = kl_band(value)
    text = f"Its distance from the reference, KL {value:.4f} nats per token, is "
    words = {
        "below": f"below the usual {low} to {high}: the model has hardly moved.",
        "inside": f"within the usual {low} to {high}.",
        "above": f"above the usual {low} to {high}: it has moved far, and other abilities may "
        "have suffered.",
    }
    tips = {
        "below": ["There is room to move: a higher learning rate, more steps or a lower β."],
        "inside": [],
        "above": [
            (
                "Read the samples for repetition and lost facts; a lower learning rate, fewer "
                "steps or a higher β keep the model closer."
            )
        ],
    }
    return [text + words[band]], tips[band] if status != "worse" else []


def _about_displacement(after: Mapping[str, Any], status: str) -> tuple[list[str], list[str]]:
    """Say whether the chosen answers themselves became more likely."""
    chosen, rejected = after.get("chosen_logratio"), after.get("rejected_logratio")
    if chosen is None or rejected is None:
        return [], []
    numbers = f"(chosen {chosen:+.4f}, rejected {rejected:+.4f} nats per token)"
    if displaced(after["margin"], chosen):
        text = (
            f"Mind the displacement: the margin grew while the chosen answers became less likely "
            f"{numbers}; the rejected ones only sank faster."
        )
        return [text], [
            (
                "If the chosen answers should not sink, set loss.nll_weight (0.1 is a start) or "
                "lower the learning rate, and compare the samples."
            )
        ]
    if status == "better":
        return [f"The chosen answers themselves became more likely {numbers}."], []
    return [f"The log-probs changed little or in both directions {numbers}."], []


def _about_certainty(after: Mapping[str, Any]) -> str:
    """Say what the sample size cannot tell."""
    n = int(after["n"])
    half = 100 * (after.get("accuracy_high", 1) - after.get("accuracy_low", 0)) / 2
    return (
        f"With {n} pairs the accuracy is known to about ±{half:.0f} points, so smaller "
        "differences between runs mean nothing; and ranking given answers is not writing them, "
        "so read the samples too."
    )


def _judge_answers(
    finding: Finding, before: Mapping[str, Any], after: Mapping[str, Any]
) -> tuple[str, list[str], list[str]]:
    """Judge a supervised run."""
    change = _change(before, after, "loss")
    status = {-1: "better", 0: "unclear", 1: "worse"}[change]
    opening = {
        "better": "The model learned to write such answers",
        "unclear": "No certain effect",
        "worse": "The model got worse at writing such answers",
    }[status]
    sentences = [
        (
            f"{opening}: on {int(after['n'])} held-out rows the loss per token went from "
            f"{before['loss']:.4f} to {after['loss']:.4f} ({_span(after, 'loss', 1, 4)}; before: "
            f"{_span(before, 'loss', 1, 4)}), the perplexity from {before['perplexity']:.2f} to "
            f"{after['perplexity']:.2f}."
        )
    ]
    if status == "unclear":
        sentences.append(
            "The intervals of before and after overlap. They hold the spread between rows as "
            "well, so a real but small change can hide in them."
        )
    sentences.append("A lower loss says nothing about facts or manners; the samples do.")
    advice = {
        "better": [],
        "unclear": ["More steps or a higher learning rate make the effect larger."],
        "worse": ["A lower learning rate or fewer steps; check the rows with alignax data show."],
    }[status]
    return status, sentences, advice


def _about_best_step(finding: Finding) -> list[str]:
    """Say which weights are the result, and whether training went on too long."""
    if finding.best_step is None or finding.best_step == finding.steps:
        return []
    words = [
        (
            f"The result is the checkpoint of step {finding.best_step} of {finding.steps}, the "
            f"best by held-out {finding.best_metric}."
        )
    ]
    if finding.best_step == 0:
        words.append("That is the model as it was: no update improved it.")
    elif finding.last and finding.after and _change(finding.after, finding.last, "loss") == 1:
        words.append(
            f"After it the held-out loss rose again to {finding.last['loss']:.4f}: the run was "
            "longer than useful."
        )
    return words
