# SPDX-License-Identifier: Apache-2.0
"""Rows or examples → the log-prob (of a reward model: the reward) of every answer."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from alignax.cli import terminal
from alignax.cli.attending import with_attention
from alignax.cli.from_run import with_run_settings
from alignax.cli.loading import Policy, build_encoder, load_policy, load_rows, warn_of_positions
from alignax.data.pack import ExampleSource
from alignax.data.pipeline import step_batches
from alignax.data.plan import scoring_plan
from alignax.models.sharding import place_batch
from alignax.recipe import Recipe
from alignax.records import EncodedExample
from alignax.train.forward import split_model
from alignax.train.reference import build_score_step, score_rows


def score_examples(
    policy: Policy,
    recipe: Recipe,
    rows: ExampleSource,
    lengths: np.ndarray,
    *,
    title: str = "rows",
    adapter: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """Score the answers of encoded examples in one pass of packed rows.

    Args:
        policy: What scores.
        recipe: Its model and mesh, and the size of a micro-batch.
        rows: The examples.
        lengths: [n, 1 + s] tokens of each prompt and its answers.
        title: What the bar is called.
        adapter: Whether the adapter takes part.

    Returns:
        [n, s] log-probs or rewards, and [n, s] scored tokens.
    """
    answers = lengths.shape[1] - 1
    network, weights = split_model(
        policy.model,
        trains="adapter",
        answers=answers,
        compute_dtype=recipe.model.dtype,
        remat="none",
    )
    plan = scoring_plan(
        lengths,
        microbatch_tokens=recipe.train.microbatch_tokens,
        rows=recipe.mesh.data * recipe.mesh.fsdp,
    )
    network, _ = with_attention(network, policy, recipe.model, plan.shape.t)
    step = build_score_step(network, adapter=adapter)
    with terminal.progress(title, len(lengths)) as advance:
        batches = (place_batch(b, policy.mesh) for _, b in step_batches(rows, plan))
        return score_rows(step, weights, batches, len(lengths), answers, advance)


def lengths_of(examples: Sequence[EncodedExample]) -> np.ndarray:
    """Count the tokens of prompt and answers: [n, 1 + s]."""
    return np.array([[len(e.prompt), *map(len, e.answers)] for e in examples], np.int32)


def score_file(recipe: Recipe) -> list[dict[str, Any]]:
    """Score every row of ``recipe.data.path`` under ``recipe.model``."""
    recipe = with_run_settings(recipe)
    policy = load_policy(recipe.model, lora=None, mesh=recipe.mesh, seed=0, scores=None)
    encoder = build_encoder(policy, recipe.data)
    data = recipe.data.model_copy(update={"max_bad_share": 1.0})
    rows, report = load_rows(data, encoder, kind="pair")
    records: dict[int, dict[str, Any]] = {
        index: {"id": d.row_id, "place": d.place, "dropped": d.reason, "detail": d.detail}
        for index, d in report.dropped_rows.items()
    }
    warn_of_positions(policy, rows)
    if len(rows):
        unit = "reward" if policy.loaded.config.scores else "logp"
        sums, tokens = score_examples(policy, recipe, rows, rows.lengths)
        for index in range(len(rows)):
            encoded = rows[index]
            records[int(rows.source_index[index])] = {
                "id": encoded.row_id,
                "place": rows.places[index],
                "boundary": len(encoded.prompt),
                f"chosen_{unit}": float(sums[index, 0]),
                "chosen_tokens": int(tokens[index, 0]),
                f"rejected_{unit}": float(sums[index, 1]),
                "rejected_tokens": int(tokens[index, 1]),
                "chosen_cut": encoded.answer_cut[0],
                "rejected_cut": encoded.answer_cut[1],
            }
    return [records[index] for index in sorted(records)]
