# SPDX-License-Identifier: Apache-2.0
"""Checks around the first update that stop a run which could only look healthy.

Before it: policy and reference agree on the first batch, the loss is what equal models give, and
packed rows score as plain padded rows do. After it: the gradient was not zero and entries moved.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from alignax.errors import SelfTestFailed
from alignax.records import EncodedExample, PackedBatch
from alignax.shapes import TILE
from alignax.train.forward import Network, Weights, answer_logps

REWARD_TOLERANCE = {"float32": 5e-3, "bfloat16": 0.5}
"""Largest |policy - reference| log-prob of an answer (nats) that rounding explains at step 0."""

PACKED_TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2}
"""Largest relative difference between the packed and the padded score of an answer."""


def padded_batch(examples: Sequence[EncodedExample]) -> PackedBatch:
    """Lay every answer in an ordinary row of its own: its prompt, then the answer, then padding."""
    answers = [
        (e.prompt, answer, e.scored_places(place))
        for e in examples
        for place, answer in enumerate(e.answers)
    ]
    length = max(len(p) + len(a) for p, a, _ in answers)
    length = -(-length // TILE) * TILE
    width = max(len(scored) for *_, scored in answers)
    rows = len(answers)
    ids, positions, segments, branches = (np.zeros((rows, length), np.int32) for _ in range(4))
    index, target, slot = (np.zeros((rows, width), np.int32) for _ in range(3))
    slot += 1
    for row, (prompt, answer, scored) in enumerate(answers):
        start, end = len(prompt), len(prompt) + len(answer)
        ids[row, :end] = np.concatenate([prompt, answer])
        positions[row, :end] = np.arange(end)
        segments[row, :end] = 1
        branches[row, start:end] = 1
        index[row, : len(scored)] = start - 1 + scored
        target[row, : len(scored)] = answer[scored]
        slot[row, : len(scored)] = 0
    counts = np.array([len(scored) for *_, scored in answers], np.int32)
    tiles = np.full((rows, 1, 2), -1, np.int32)
    example = np.arange(rows, dtype=np.int32)[:, None]
    return PackedBatch(
        ids, positions, segments, branches, tiles, index, target, slot, counts, example
    )


def check_packed_equals_padded(
    network: Network,
    weights: Weights,
    examples: Sequence[EncodedExample],
    packed_ns: np.ndarray,
    *,
    dtype: str,
) -> None:
    """Compare the packed score of a few examples with dense attention over plain padded rows.

    Raises:
        SelfTestFailed: An answer's log-prob differs by more than rounding explains.
    """
    single = replace(network, remat="none", answers=1, attention="tiled", chunk=256)
    score = jax.jit(lambda w, b: answer_logps(single, w, b, attention="dense").sums)
    padded = np.asarray(score(weights, padded_batch(examples))).reshape(packed_ns.shape)
    error = np.abs(packed_ns - padded) / np.maximum(np.abs(padded), 1.0)
    if not (error <= PACKED_TOLERANCE[dtype]).all():
        problems = [
            f"row {example.row_id}: packed {packed.tolist()}, padded {plain.tolist()}"
            for example, packed, plain in zip(examples, packed_ns, padded, strict=True)
        ]
        raise SelfTestFailed(
            f"packed rows score differently from padded rows (relative {error.max():.2e})",
            problems=problems,
            hint="this is a fault in alignax: please report it with these lines",
        )


def check_equal_start(
    policy_ns: np.ndarray, reference_ns: np.ndarray, identities: Mapping[str, str], *, dtype: str
) -> float:
    """Require that policy and reference give the first batch the same log-probs.

    Returns:
        The largest difference seen (nats).

    Raises:
        SelfTestFailed: The policy does not start at its reference.
    """
    worst = float(np.abs(policy_ns - reference_ns).max())
    if not worst <= REWARD_TOLERANCE[dtype]:
        raise SelfTestFailed(
            f"policy and reference differ before the first update: up to {worst:.4g} nats an "
            f"answer, {REWARD_TOLERANCE[dtype]} allowed for {dtype}",
            problems=[f"{role}: {identity}" for role, identity in identities.items()],
            hint="the reference must be the very weights that training starts from; to compare "
            "with the base below an adapter on purpose, set reference.start: base",
        )
    return worst


def check_first_loss(loss: float, *, beta: float, dtype: str) -> None:
    """Require ln 2 from the compiled training step on the first batch.

    Raises:
        SelfTestFailed: The loss differs by more than the allowed log-prob difference explains.
    """
    allowed = beta * REWARD_TOLERANCE[dtype] + 1e-5
    if not abs(loss - math.log(2)) <= allowed:
        raise SelfTestFailed(
            f"the loss before the first update is {loss:.6f}, ln 2 = {math.log(2):.6f} expected "
            f"(±{allowed:.2g})"
        )


def check_first_update(before: Any, after: Any, grad_norm: float) -> float:
    """Require a gradient, and entries that moved.

    Returns:
        Share of trainable entries that the first update changed.

    Raises:
        SelfTestFailed: Nothing can be trained.
    """
    if not grad_norm > 0:
        raise SelfTestFailed(
            f"the gradient of all trainable arrays is {grad_norm} at the first step",
            hint="nothing would train: check lora.targets, the learning rate and the rows",
        )
    moved, total = 0, 0
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        moved += int((np.asarray(old) != np.asarray(new)).sum())
        total += old.size
    if not moved:
        raise SelfTestFailed(
            f"the first update changed none of {total} trainable entries "
            f"(gradient norm {grad_norm:.3g})",
            hint="raise optimizer.learning_rate, or check the dtype of the trainable arrays",
        )
    return moved / total
