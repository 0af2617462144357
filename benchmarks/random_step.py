# SPDX-License-Identifier: Apache-2.0
"""Lengths of pairs and the shape of a model → the trainer's own step on random ids and weights.

What a step costs does not depend on what the tokens and weights are.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np

from alignax.data.pack import pack
from alignax.data.plan import Plan
from alignax.losses import build_loss
from alignax.models.config import DecoderConfig
from alignax.models.decoder import random_model
from alignax.models.lora import LoraSpec, add_lora
from alignax.models.sharding import build_mesh, commit, place_batch, place_model
from alignax.recipe import OptimizerSection
from alignax.records import EncodedExample
from alignax.train.forward import split_model
from alignax.train.optimizer import build_optimizer, build_schedule
from alignax.train.reference import gather_cached
from alignax.train.step import ReferencePlan, build_train_step, init_state


class RandomPairs:
    """Random ids in pairs of given lengths, as a data set."""

    def __init__(self, lengths: np.ndarray, vocabulary: int):
        """Hold the [n, 3] lengths of prompts, chosen and rejected answers."""
        self.lengths = lengths
        self._vocabulary = vocabulary
        self._rng = np.random.default_rng(0)

    def __getitem__(self, index: int) -> EncodedExample:
        """Draw the ids of a pair."""
        prompt, *answers = (
            self._rng.integers(0, self._vocabulary, n).astype(np.int32) for n in self.lengths[index]
        )
        return EncodedExample(str(index), prompt, tuple(answers), (True, True))


class Ready(NamedTuple):
    """A step that can be compiled: ``step.lower(state, *rest)``.

    Attributes:
        step: The jitted update.
        state: The state of step 0, which a call donates.
        rest: The other arguments.
        weights: Base and adapter as they were made.
    """

    step: Any
    state: Any
    rest: tuple[Any, ...]
    weights: Any


def ready(
    config: DecoderConfig, lora: LoraSpec | None, pairs: RandomPairs, plan: Plan, **network: Any
) -> Ready:
    """Make model, state and the batch of the plan's first step.

    Args:
        config: Shape of the model.
        lora: The adapter that is trained, with cached references; None trains all weights, with
            the reference computed in the step.
        pairs: The rows.
        plan: Their layout.
        network: Further fields of ``Network``: ``remat``, ``chunk``.
    """
    mesh = build_mesh(1, 1, 1)
    model = random_model(config, seed=0)
    if lora is not None:
        add_lora(model, lora, key=jax.random.key(0))
    place_model(model, mesh)
    parts, weights = split_model(model, trains="base" if lora is None else "adapter", answers=2)
    del model
    parts = dataclasses.replace(parts, **network)
    trainable, frozen = parts.part(weights)
    schedule = build_schedule(OptimizerSection(), plan.steps)
    optimizer = build_optimizer(OptimizerSection(), schedule)
    state = commit(init_state(trainable, optimizer, jax.random.key(0)), mesh)
    live = lora is None
    reference = ReferencePlan("live" if live else "cached")
    step = build_train_step(parts, build_loss(kind="pair"), optimizer, schedule, reference, state)
    batch = pack(pairs, plan.step(0), plan.shape)
    table = np.full((len(pairs.lengths), 2), -100.0, np.float32)
    cached = None if live else {"reference": gather_cached(table, batch.example)}
    placed, cached = place_batch((batch, cached), mesh)
    return Ready(step, state, (frozen, weights if live else None, placed, cached), weights)
