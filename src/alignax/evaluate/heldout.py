# SPDX-License-Identifier: Apache-2.0
"""Held-out rows → loss, accuracy, margin, perplexity and KL, each with its interval.

Per-row scalars only leave the device, so evaluation needs no more memory than training.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from alignax.losses import Objective
from alignax.metrics.intervals import mean_interval, wilson
from alignax.records import PackedBatch, PairLogps
from alignax.train.columns import answer_columns, answer_kl, pair_logps
from alignax.train.forward import AnswerLogps, Network, Weights, answer_logps, with_adapter_scale
from alignax.train.reference import scored
from alignax.train.variants import over_variants


class RowScores(NamedTuple):
    """[n, s] values of every answer: log-probs (nats), scored tokens and summed KL (nats).

    ``columns`` holds what else the loss reads, by the names of ``train.columns``.
    """

    policy: Any
    reference: Any
    tokens: Any
    kl: Any
    columns: dict[str, Any]


def build_eval_step(
    network: Network, *, reference_adapter: bool | None, columns: tuple[str, ...] = ()
) -> Callable[..., Any]:
    """Compile ``(policy, reference, batch [g, …]) → RowScores``, [g, b, p, s] each.

    Args:
        network: Static half of the model.
        reference_adapter: Whether the reference keeps its adapter; None: there is no live
            reference, and its log-probs and the KL come out as zeros.
        columns: What else the loss reads (``Objective.columns``).
    """
    # Nothing is differentiated, so there is nothing to recompute.
    network = replace(network, remat="none")

    def evaluate(policy: Weights, reference: Weights | None, batch: PackedBatch) -> Any:
        def one(micro: PackedBatch) -> Any:
            theirs = None
            if reference_adapter is not None and reference is not None:
                theirs = answer_logps(network, reference, micro, adapter=reference_adapter)
            return _compare(network, policy, theirs, micro, columns)

        return jax.lax.map(one, batch)

    return jax.jit(evaluate)


def build_variants_eval_step(
    network: Network, *, reference_adapter: bool, columns: tuple[str, ...], at_once: int
) -> Callable[..., Any]:
    """Compile the same for the variants of a sweep, over one pass of the reference.

    Returns:
        ``((adapters, scales, frozen), reference, batch [g, …]) → RowScores``, [g, b, p, s, k] each;
        adapters and scales have the axis of variants in front.
    """
    network = replace(network, remat="none")

    def evaluate(policies: tuple[Any, Any, Any], reference: Weights, batch: PackedBatch) -> Any:
        adapters, scales, frozen = policies

        def one(micro: PackedBatch) -> Any:
            theirs = answer_logps(network, reference, micro, adapter=reference_adapter)

            def compare(variant: tuple[Any, Any]) -> RowScores:
                adapter, scale = variant
                mine = with_adapter_scale(network, scale).join(adapter, frozen)
                return _compare(network, mine, theirs, micro, columns)

            scores = over_variants(compare, (adapters, scales), at_once)
            return jax.tree.map(lambda x: jax.numpy.moveaxis(x, 0, -1), scores)

        return jax.lax.map(one, batch)

    return jax.jit(evaluate)


def _compare(
    network: Network,
    policy: Weights,
    theirs: AnswerLogps | None,
    micro: PackedBatch,
    columns: tuple[str, ...],
) -> RowScores:
    """Score a micro-batch under a policy, beside what the reference says."""
    ours = answer_logps(network, policy, micro)
    if theirs is None:
        zeros = jax.numpy.zeros_like(ours.sums)
        more = answer_columns(columns, network, ours, None, micro)
        return RowScores(ours.sums, zeros, ours.tokens, zeros, more)
    kl = answer_kl(network, ours, theirs, micro)
    more = answer_columns(columns, network, ours, theirs, micro, kl)
    return RowScores(ours.sums, theirs.sums, ours.tokens, kl, more)


def score_heldout(
    step: Callable[..., Any],
    policy: Any,
    reference: Weights | None,
    batches: Iterable[PackedBatch],
    count: int,
    progress: Callable[[int], None] = lambda _: None,
) -> RowScores:
    """Evaluate every held-out row once, whatever its place in the batches."""
    scores = None
    for examples, parts in scored(step, (policy, reference), batches):
        if scores is None:
            scores = jax.tree.map(lambda part: np.full((count, *part.shape[1:]), np.nan), parts)
        for target, part in zip(jax.tree.leaves(scores), jax.tree.leaves(parts), strict=True):
            target[examples] = part
        progress(len(examples))
    assert scores is not None
    return scores


def pairs_of(scores: RowScores, given: np.ndarray | None = None) -> PairLogps:
    """Turn the scores of rows (and those that came with them) into what a loss reads, on [n]."""
    columns = {name: values[:, None] for name, values in scores.columns.items()}
    if given is not None:
        columns["score"] = given[:, None]
    sides = (scores.policy[:, None], scores.reference[:, None], scores.tokens[:, None])
    return jax.tree.map(np.asarray, pair_logps(*sides, columns))


def summarize_pairs(
    scores: RowScores,
    objective: Objective,
    *,
    has_reference: bool = True,
    given: np.ndarray | None = None,
) -> dict[str, float]:
    """Turn per-pair scores into held-out metrics.

    Accuracy counts a pair as right when the chosen answer's reward is strictly higher; ties are
    reported apart. Margin is the margin of the loss's own rewards, mostly β·(Δchosen − Δrejected).
    Perplexity is of the chosen answers. A reward model has its calibration in that place.
    ``kl/token`` is the exact KL(policy ‖ reference) over all scored tokens of both answers,
    teacher-forced; ``kl/answer`` its mean over whole answers. A batch-level loss takes all
    rows as one batch.

    Args:
        scores: What the model says about the rows.
        objective: The loss, its schedules resolved.
        has_reference: Whether the scores hold a reference.
        given: [n, s] scores that came with the rows, for losses that read them.
    """
    pair = pairs_of(scores, given)
    losses = np.array(objective.per_example(pair), np.float64)
    chosen_reward, rejected_reward = objective.rewards(pair)
    margins = np.asarray(chosen_reward - rejected_reward, np.float64)
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
    }
    if objective.kind == "reward":
        values |= calibration(margins)
    else:
        nll = -pair.policy_chosen.sum() / pair.chosen_tokens.sum()
        values["perplexity"] = float(np.exp(nll))
    if has_reference:
        chosen = pair.policy_chosen - pair.reference_chosen
        rejected = pair.policy_rejected - pair.reference_rejected
        values["chosen_logratio"] = chosen.sum() / pair.chosen_tokens.sum()
        values["rejected_logratio"] = rejected.sum() / pair.rejected_tokens.sum()
        values["kl/token"] = scores.kl.sum() / scores.tokens.sum()
        values["kl/answer"] = scores.kl.mean()
    return {name: float(value) for name, value in values.items()}


BINS = 10
"""Stretches of stated confidence between a half and one."""


def calibration(margins: np.ndarray) -> dict[str, float]:
    """Compare a reward model's stated confidence σ(|margin|) with how often it is right.

    Returns:
        ``brier``: mean of (1 - σ(margin))². ``calibration_error``: expected calibration error over
        ``BINS`` equal stretches of confidence (Guo et al. 2017, eq. 3). For each stretch that holds
        pairs ``bin_I/n``, ``bin_I/confidence`` and ``bin_I/accuracy``.
    """
    stated = 1 / (1 + np.exp(-np.abs(margins)))
    right = margins > 0
    place = np.minimum(((stated - 0.5) * 2 * BINS).astype(int), BINS - 1)
    values, error = {}, 0.0
    for index in np.unique(place):
        chosen = place == index
        confidence, accuracy = stated[chosen].mean(), right[chosen].mean()
        error += abs(confidence - accuracy) * chosen.mean()
        values |= {
            f"bin_{index}/n": float(chosen.sum()),
            f"bin_{index}/confidence": float(confidence),
            f"bin_{index}/accuracy": float(accuracy),
        }
    wrong = 1 / (1 + np.exp(margins))
    return {"brier": float((wrong**2).mean()), "calibration_error": float(error), **values}


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
        "perplexity": float(np.exp(loss)),
    }
