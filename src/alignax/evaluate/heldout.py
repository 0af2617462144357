# SPDX-License-Identifier: Apache-2.0
"""Held-out rows → loss, accuracy, margin, perplexity and KL, each with its interval.

Per-row scalars only leave the device, so evaluation needs no more memory than training.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from alignax.losses import Objective
from alignax.metrics.intervals import mean_interval, wilson
from alignax.records import PackedBatch, PairLogps
from alignax.train.forward import Network, Weights, answer_logps
from alignax.train.reference import scored
from alignax.train.step import answer_kl, pair_logps


class RowScores(NamedTuple):
    """[n, s] values of every answer: log-probs (nats), scored tokens and summed KL (nats)."""

    policy: np.ndarray
    reference: np.ndarray
    tokens: np.ndarray
    kl: np.ndarray


def build_eval_step(network: Network, *, reference_adapter: bool | None) -> Callable[..., Any]:
    """Compile ``(policy, reference, batch [g, …]) → (policy, reference, tokens, kl)``.

    Args:
        network: Static half of the model.
        reference_adapter: Whether the reference keeps its adapter; None: there is no live
            reference, and its log-probs and the KL come out as zeros.
    """
    # Nothing is differentiated, so there is nothing to recompute.
    network = replace(network, remat="none")

    def evaluate(policy: Weights, reference: Weights | None, batch: PackedBatch) -> Any:
        def one(micro: PackedBatch) -> Any:
            ours = answer_logps(network, policy, micro)
            if reference_adapter is None or reference is None:
                zeros = jax.numpy.zeros_like(ours.sums)
                return ours.sums, zeros, ours.tokens, zeros
            theirs = answer_logps(network, reference, micro, adapter=reference_adapter)
            kl = answer_kl(network, ours, theirs, micro)
            return ours.sums, theirs.sums, ours.tokens, kl

        return jax.lax.map(one, batch)

    return jax.jit(evaluate)


def score_heldout(
    step: Callable[..., Any],
    policy: Weights,
    reference: Weights | None,
    batches: Iterable[PackedBatch],
    count: int,
    answers: int,
    progress: Callable[[int], None] = lambda _: None,
) -> RowScores:
    """Evaluate every held-out row once, whatever its place in the batches."""
    scores = [np.full((count, answers), np.nan) for _ in range(4)]
    for examples, parts in scored(step, (policy, reference), batches):
        for target, part in zip(scores, parts, strict=True):
            target[examples] = part
        progress(len(examples))
    return RowScores(*scores)


def summarize_pairs(
    scores: RowScores, objective: Objective, *, has_kl: bool = True
) -> dict[str, float]:
    """Turn per-pair scores into held-out metrics.

    Accuracy counts a pair as right when the chosen answer's reward is strictly higher; ties are
    reported apart. Margin is the reward margin β·(Δchosen − Δrejected). Perplexity is of the
    chosen answers. ``kl/token`` is the exact KL(policy ‖ reference) over all scored tokens of
    both answers, teacher-forced.
    """
    policy, reference, tokens, kl = scores
    pair: PairLogps = jax.tree.map(
        np.asarray, pair_logps(policy[:, None], reference[:, None], tokens[:, None])
    )
    losses = np.array(objective.per_example(pair), np.float64)
    chosen = pair.policy_chosen - pair.reference_chosen
    rejected = pair.policy_rejected - pair.reference_rejected
    margins = objective.beta * (chosen - rejected)
    count = len(margins)
    loss, margin = mean_interval(losses), mean_interval(margins)
    accuracy = wilson(int((margins > 0).sum()), count)
    values = {
        "n": count,
        "loss": loss.value,
        "loss_low": loss.low,
        "loss_high": loss.high,
        "accuracy": accuracy.value,
        "accuracy_low": accuracy.low,
        "accuracy_high": accuracy.high,
        "ties": float((margins == 0).mean()),
        "margin": margin.value,
        "margin_low": margin.low,
        "margin_high": margin.high,
        "perplexity": math.exp(-pair.policy_chosen.sum() / pair.chosen_tokens.sum()),
        "chosen_logratio": float(chosen.sum() / pair.chosen_tokens.sum()),
        "rejected_logratio": float(rejected.sum() / pair.rejected_tokens.sum()),
    }
    if has_kl:
        values["kl/token"] = float(kl.sum() / tokens.sum())
    return {name: float(value) for name, value in values.items()}


def summarize_sft(scores: RowScores) -> dict[str, float]:
    """Held-out loss per token (with the interval over rows) and perplexity."""
    nll, tokens = -scores.policy[:, 0], scores.tokens[:, 0]
    loss = nll.sum() / tokens.sum()
    # A ratio's interval by linearisation: rows are the independent units, not tokens.
    spread = mean_interval((nll - loss * tokens) / tokens.mean())
    return {
        "n": float(len(nll)),
        "loss": float(loss),
        "loss_low": float(loss + spread.low),
        "loss_high": float(loss + spread.high),
        "perplexity": math.exp(loss),
    }
