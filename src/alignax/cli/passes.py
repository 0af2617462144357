# SPDX-License-Identifier: Apache-2.0
"""Setup → passes over rows that train nothing: the reference's, the self-test's, the held-out one.

The self-test and the held-out rows go through one compiled program of one shape.
"""

from functools import cached_property
from typing import Any

import jax
import numpy as np

from alignax.cli import terminal
from alignax.cli.setup import Setup, scores_for
from alignax.data.dataset import EncodedDataset
from alignax.data.plan import PackShape, Plan, scoring_plan
from alignax.evaluate.heldout import (
    RowScores,
    build_eval_step,
    score_heldout,
    summarize_pairs,
    summarize_sft,
)
from alignax.files import cache_folder
from alignax.train.reference import ReferenceIdentity, build_score_step, describe, fill_cache
from alignax.train.reference_cache import ReferenceCache
from alignax.train.selftest import check_equal_start, check_packed_equals_padded

REFERENCE_TOKENS = 2
"""Rows of the reference pass are this many times as long as training's: nothing is kept for a
backward pass."""


def reference_table(setup: Setup) -> np.ndarray | None:
    """Look the training rows' reference log-probs up, and compute those that are not known yet.

    Held-out rows need no entry: their KL asks for the live reference at every evaluation.
    """
    if setup.reference_plan.mode != "cached":
        return None
    key = setup.identity.key(setup.train.digest, setup.recipe.model.dtype)
    cache = ReferenceCache(cache_folder() / "reference" / f"{key}.logps", notify=terminal.warn)
    absent = cache.missing(setup.train.row_ids)
    if absent:
        step = build_score_step(setup.network, adapter=setup.reference_plan.adapter)
        part = setup.train.select(absent)
        plan = score_plan(setup, part, REFERENCE_TOKENS)
        with terminal.progress("reference log-probs", len(part)) as advance:
            batches = setup.batches(part, plan)
            fill_cache(cache, step, setup.reference, batches, part.row_ids, advance)
    terminal.say(
        f"reference log-probs: {len(absent)} rows computed, "
        f"{len(set(setup.train.row_ids)) - len(absent)} found; the cache has {len(cache)} rows, "
        f"{cache.size / 1024:.0f} KiB"
    )
    return cache.table(setup.train.row_ids)


def row_tables(setup: Setup) -> dict[str, np.ndarray]:
    """Collect the [n, s] values of the training rows that the loss reads."""
    found = {
        "reference": reference_table(setup),
        "score": scores_for(setup.objective, setup.train),
    }
    return {name: table for name, table in found.items() if table is not None}


def score_plan(
    setup: Setup, part: EncodedDataset, times: int = 1, at_least: PackShape | None = None
) -> Plan:
    """Lay out rows for scoring, in rows of ``times`` the training's tokens."""
    return scoring_plan(
        part.lengths,
        microbatch_tokens=setup.recipe.train.microbatch_tokens * times,
        rows=setup.recipe.mesh.data * setup.recipe.mesh.fsdp,
        at_least=at_least,
    )


class HeldOutPass:
    """Scores rows under policy and reference at once."""

    def __init__(self, setup: Setup):
        """Make the program; it is compiled when it is first used."""
        self._setup = setup
        self._live = setup.has_reference
        self._step = build_eval_step(
            setup.network,
            reference_adapter=setup.reference_plan.adapter if self._live else None,
            columns=setup.objective.columns,
        )
        _, self._frozen = setup.network.part(setup.start)

    @cached_property
    def _first_rows(self) -> EncodedDataset:
        """Rows of the first step."""
        step = self._setup.plan.step(0)
        return self._setup.train.select([i for micro in step for row in micro for i in row])

    @cached_property
    def held_out_plan(self) -> Plan | None:
        """Layout of the held-out rows, in a shape in which the first step's rows fit too."""
        if self._setup.held_out is None:
            return None
        first = score_plan(self._setup, self._first_rows).shape
        return score_plan(self._setup, self._setup.held_out, at_least=first)

    def _score(self, part: EncodedDataset, plan: Plan, trainable: Any, title: str) -> RowScores:
        """Score rows with a bar."""
        setup = self._setup
        policy = setup.network.join(trainable, self._frozen)
        with terminal.progress(title, len(part)) as advance:
            return score_heldout(
                self._step, policy, setup.reference if self._live else None,
                setup.batches(part, plan), len(part), advance,
            )  # fmt: skip

    def evaluate(self, trainable: Any, step: int) -> dict[str, float]:
        """Measure the held-out rows, of which there must be some."""
        setup, plan = self._setup, self.held_out_plan
        assert setup.held_out is not None
        assert plan is not None
        scores = self._score(setup.held_out, plan, trainable, "held-out rows")
        if setup.objective.kind == "sft":
            return summarize_sft(scores)
        objective = setup.objective.at(max(step - 1, 0))
        given = scores_for(objective, setup.held_out)
        return summarize_pairs(scores, objective, has_reference=self._live, given=given)

    def self_test(self) -> None:
        """Before the first update: policy = reference, packed = padded, on the first rows.

        Raises:
            SelfTestFailed: They are not.
        """
        setup, part = self._setup, self._first_rows
        dtype = setup.recipe.model.dtype
        trainable, _ = setup.network.part(setup.start)
        if setup.network.scores:
            trainable = with_drawn_score(trainable, setup.recipe.train.seed)
        shared = self.held_out_plan.shape if self.held_out_plan is not None else None
        plan = score_plan(setup, part, at_least=shared)
        scores = self._score(part, plan, trainable, "self-test")
        order = np.argsort(part.lengths.sum(1))[:2]
        weights = setup.network.join(trainable, self._frozen)
        check_packed_equals_padded(
            setup.network, weights, [part[int(i)] for i in order], scores.policy[order], dtype=dtype
        )
        if not self._live:
            return
        identities = self._identities()
        if setup.recipe.reference.start == "base" and setup.policy.adapter_hash is not None:
            rewards = setup.objective.at(0).beta * (scores.policy - scores.reference)
            terminal.warn(
                "the reference is the base below the adapter, as asked: step-0 rewards are "
                f"{rewards[:, 0].mean():+.3f} chosen, {rewards[:, 1].mean():+.3f} rejected, not 0"
            )
            return
        worst = check_equal_start(scores.policy, scores.reference, identities, dtype=dtype)
        terminal.say(
            f"self-test: policy equals reference ({identities['reference']}) within {worst:.1e} "
            "nats; packed equals padded"
        )

    def _identities(self) -> dict[str, str]:
        """Name both sides."""
        policy = self._setup.policy
        return {
            "policy": describe(ReferenceIdentity(policy.loaded.weights_hash, policy.adapter_hash)),
            "reference": describe(self._setup.identity),
        }


def with_drawn_score(trainable: Any, seed: int) -> Any:
    """Replace a fresh scalar head by a random one: zeros would let every self-test pass."""

    def draw(path: Any, leaf: Any) -> Any:
        if "score" not in jax.tree_util.keystr(path):
            return leaf
        values = jax.random.normal(jax.random.key(seed), leaf.shape, leaf.dtype)
        return jax.device_put(values / leaf.shape[-1] ** 0.5, leaf.sharding)

    return jax.tree_util.tree_map_with_path(draw, trainable)
