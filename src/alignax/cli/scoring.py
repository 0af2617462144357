# SPDX-License-Identifier: Apache-2.0
"""Rows → one scored (or dropped) record a row, in file order."""

from typing import Any

from alignax.cli import terminal
from alignax.cli.attending import with_attention
from alignax.cli.from_run import with_run_settings
from alignax.cli.loading import build_encoder, load_policy, load_rows, warn_of_positions
from alignax.data.pipeline import step_batches
from alignax.data.plan import scoring_plan
from alignax.models.sharding import place_batch
from alignax.recipe import Recipe
from alignax.train.forward import split_model
from alignax.train.reference import build_score_step, score_rows


def score_file(recipe: Recipe) -> list[dict[str, Any]]:
    """Score every row of ``recipe.data.path`` under ``recipe.model``."""
    recipe = with_run_settings(recipe)
    model = recipe.model
    policy = load_policy(model, lora=None, mesh=recipe.mesh, seed=0)
    encoder = build_encoder(policy, recipe.data)
    data = recipe.data.model_copy(update={"max_bad_share": 1.0})
    rows, report = load_rows(data, encoder, kind="pair")
    records: dict[int, dict[str, Any]] = {
        index: {"id": d.row_id, "place": d.place, "dropped": d.reason, "detail": d.detail}
        for index, d in report.dropped_rows.items()
    }
    warn_of_positions(policy, rows)
    if len(rows):
        network, weights = split_model(
            policy.model, trains="adapter", answers=2, compute_dtype=model.dtype, remat="none"
        )
        plan = scoring_plan(
            rows.lengths,
            microbatch_tokens=recipe.train.microbatch_tokens,
            rows=recipe.mesh.data * recipe.mesh.fsdp,
        )
        network, _ = with_attention(network, policy, model, plan.shape.t)
        step = build_score_step(network, adapter=True)
        with terminal.progress("rows", len(rows)) as advance:
            batches = (place_batch(b, policy.mesh) for _, b in step_batches(rows, plan))
            sums, tokens = score_rows(step, weights, batches, len(rows), 2, advance)
        for index in range(len(rows)):
            encoded = rows[index]
            records[int(rows.source_index[index])] = {
                "id": encoded.row_id,
                "place": rows.places[index],
                "boundary": len(encoded.prompt),
                "chosen_logp": float(sums[index, 0]),
                "chosen_tokens": int(tokens[index, 0]),
                "rejected_logp": float(sums[index, 1]),
                "rejected_tokens": int(tokens[index, 1]),
                "chosen_cut": encoded.answer_cut[0],
                "rejected_cut": encoded.answer_cut[1],
            }
    return [records[index] for index in sorted(records)]
