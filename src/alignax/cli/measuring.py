# SPDX-License-Identifier: Apache-2.0
"""Model, reference and rows → held-out metrics, outside a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from alignax.cli import terminal
from alignax.cli.attending import with_attention
from alignax.cli.auditing import row_cache, shape_of
from alignax.cli.from_run import run_model, run_recipe, with_run_settings
from alignax.cli.loading import (
    Policy,
    build_encoder,
    load_policy,
    load_rows,
    load_train_and_eval,
    warn_of_positions,
)
from alignax.cli.setup import build_objective, scores_for
from alignax.data.dataset import EncodedDataset
from alignax.data.pipeline import step_batches
from alignax.data.plan import scoring_plan
from alignax.data.sources import open_rows
from alignax.errors import UsageError
from alignax.evaluate.breakdown import by_label, length_label
from alignax.evaluate.heldout import build_eval_step, score_heldout, summarize_pairs
from alignax.models.lora import LoraSpec, merged
from alignax.models.sharding import place_batch
from alignax.recipe import DataSection, Recipe
from alignax.train.forward import Network, Weights, split_model


class Sides(NamedTuple):
    """Policy and reference in one structure.

    Attributes:
        network: Their common static half.
        policy: Arrays of the policy.
        reference: Arrays of the reference.
        adapter: Whether the reference keeps its adapter.
        name: What the reference is, for people.
    """

    network: Network
    policy: Weights
    reference: Weights
    adapter: bool
    name: str


@dataclass(frozen=True)
class Measured:
    """What held-out rows say.

    Attributes:
        values: The metrics.
        reference: What the model was compared with, for people; empty for a reward model.
        groups: Label → metrics of its pairs; empty where no breakdown was asked for.
    """

    values: dict[str, float]
    reference: str
    groups: dict[str, dict[str, Any]]


def evaluate_heldout(recipe: Recipe, reference: str | None, by: str | None = None) -> Measured:
    """Measure ``recipe.model`` on held-out rows.

    Args:
        recipe: Model, rows and loss; a run brings its own rows and loss.
        reference: Model to compare with; None: the run's reference, or the base below the
            adapter.
        by: What to break the accuracy down by: ``"length"``, ``"source"`` or a column of the rows.

    Raises:
        UsageError: A reward model with a reference, or a column that no row has.
    """
    run = run_recipe(recipe.model.path)
    place, recipe = recipe.model.path, with_run_settings(recipe)
    policy = load_policy(recipe.model, lora=None, mesh=recipe.mesh, seed=0, scores=None)
    rows = _rows(recipe, policy, run, place)
    warn_of_positions(policy, rows)
    scores_answers = policy.loaded.config.scores
    if scores_answers and reference is not None:
        raise UsageError("--reference: a reward model is compared with nothing")
    sides = _alone(policy) if scores_answers else _sides(recipe, policy, run, reference)
    plan = scoring_plan(
        rows.lengths,
        microbatch_tokens=recipe.train.microbatch_tokens,
        rows=recipe.mesh.data * recipe.mesh.fsdp,
    )
    network, _ = with_attention(sides.network, policy, recipe.model, plan.shape.t)
    method = "reward" if scores_answers else "dpo"
    objective = build_objective(recipe.model_copy(update={"method": method})).over(1).at(1)
    adapter = None if scores_answers else sides.adapter
    step = build_eval_step(network, reference_adapter=adapter, columns=objective.columns)
    with terminal.progress("held-out rows", len(rows)) as advance:
        batches = (place_batch(b, policy.mesh) for _, b in step_batches(rows, plan))
        scores = score_heldout(step, sides.policy, sides.reference, batches, len(rows), advance)
    values = summarize_pairs(
        scores, objective, given=scores_for(objective, rows), has_reference=not scores_answers
    )
    groups = {}
    if by is not None:
        rewards = scores.policy - scores.reference
        data = recipe.data if recipe.data.path or run is None else run.data
        groups = by_label(_labels(by, rows, scores.tokens, data), rewards[:, 0] - rewards[:, 1])
    return Measured(values, sides.name, groups)


def _alone(policy: Policy) -> Sides:
    """A reward model, which has no reference."""
    network, weights = split_model(policy.model, trains="adapter", answers=2)
    return Sides(network, weights, weights, False, "")


def _labels(by: str, rows: EncodedDataset, tokens: np.ndarray, data: DataSection) -> list[str]:
    """Label every pair by its length gap, its file, or a column of its row.

    Raises:
        UsageError: No row has the column.
    """
    if by == "length":
        return [length_label(*pair) for pair in tokens.tolist()]
    if by == "source":
        return [place.rpartition(":")[0] for place in rows.places]
    paths = data.eval_path if data.eval_path and len(data.eval_path) else data.path
    stored = open_rows(paths, split=data.split, cache_dir=row_cache(data), shape=shape_of(data))
    found = [stored[int(index)] for index in rows.source_index]
    values = [row.get(by) if isinstance(row, Mapping) else None for row in found]
    if all(value is None for value in values):
        columns = sorted({str(name) for row in found if isinstance(row, Mapping) for name in row})
        raise UsageError(
            f"--by {by}: no row has this column",
            hint=f"length, source, or one of {', '.join(columns)}",
        )
    return ["(none)" if value is None else str(value) for value in values]


def _rows(recipe: Recipe, policy: Policy, run: Recipe | None, place: str) -> EncodedDataset:
    """Load the named rows, or the held-out rows of the run."""
    if recipe.data.path:
        return load_rows(recipe.data, build_encoder(policy, recipe.data), kind="pair")[0]
    if run is None:
        raise UsageError("missing: --data", hint="only a run folder brings its own held-out rows")
    encoder = build_encoder(policy, run.data)
    _, held_out, _ = load_train_and_eval(run.data, encoder, kind="pair")
    if held_out is None:
        raise UsageError(f"run {place} has no held-out rows", hint="name some with --data")
    return held_out


def _sides(recipe: Recipe, policy: Policy, run: Recipe | None, reference: str | None) -> Sides:
    """Choose the reference: the named one, the run's, or the base below the adapter."""
    adapter = run.model.adapter if run and run.reference.start == "policy" else None
    if reference is None and policy.lora is not None and adapter is None:
        network, weights = split_model(policy.model, trains="adapter", answers=2)
        return Sides(network, weights, weights, False, "the base without the adapter")
    quantize = recipe.model.quantize
    if reference is not None:
        base, adapter = run_model(reference)
        other_run = run_recipe(reference)
        if other_run is not None:
            quantize = other_run.model.quantize if adapter is not None else "none"
    elif run is not None:
        base, quantize = run.model.path, run.model.quantize
    else:
        raise UsageError(
            "there is nothing to compare with: the model has no adapter",
            hint="name one with --adapter, or a reference model with --reference",
        )
    update = {"path": base, "adapter": adapter, "quantize": quantize}
    section = recipe.model.model_copy(update=update)
    other = load_policy(section, lora=None, mesh=recipe.mesh, seed=0)
    same = (base, quantize) == (recipe.model.path, recipe.model.quantize)
    if same and _same_shape(policy.lora, other.lora):
        network, weights = split_model(policy.model, trains="adapter", answers=2)
        _, theirs = split_model(other.model, trains="adapter", answers=2)
    else:
        network, weights = split_model(merged(policy.model), trains="adapter", answers=2)
        _, theirs = split_model(merged(other.model), trains="adapter", answers=2)
    return Sides(network, weights, theirs, True, f"{base} + {adapter}" if adapter else base)


def _same_shape(one: LoraSpec | None, other: LoraSpec | None) -> bool:
    """Tell whether two adapters can run in one program."""
    if one is None or other is None:
        return False
    shapes = [(spec.rank, spec.scale, set(spec.names)) for spec in (one, other)]
    return shapes[0] == shapes[1]
