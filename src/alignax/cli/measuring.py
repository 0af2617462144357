# SPDX-License-Identifier: Apache-2.0
"""Model, reference and rows → held-out metrics, outside a run."""

from typing import NamedTuple

from alignax.cli import terminal
from alignax.cli.attending import with_attention
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
from alignax.errors import UsageError
from alignax.evaluate.heldout import build_eval_step, score_heldout, summarize_pairs
from alignax.models.lora import LoraSpec, merged
from alignax.models.sharding import place_batch
from alignax.recipe import Recipe
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


def evaluate_heldout(recipe: Recipe, reference: str | None) -> tuple[dict[str, float], str]:
    """Measure ``recipe.model`` on held-out rows.

    Args:
        recipe: Model, rows and loss; a run brings its own rows and loss.
        reference: Model to compare with; None: the run's reference, or the base below the
            adapter.

    Returns:
        The metrics and a name for the reference.
    """
    run = run_recipe(recipe.model.path)
    place, recipe = recipe.model.path, with_run_settings(recipe)
    policy = load_policy(recipe.model, lora=None, mesh=recipe.mesh, seed=0)
    rows = _rows(recipe, policy, run, place)
    warn_of_positions(policy, rows)
    sides = _sides(recipe, policy, run, reference)
    plan = scoring_plan(
        rows.lengths,
        microbatch_tokens=recipe.train.microbatch_tokens,
        rows=recipe.mesh.data * recipe.mesh.fsdp,
    )
    network, _ = with_attention(sides.network, policy, recipe.model, plan.shape.t)
    objective = build_objective(recipe).over(1).at(1)
    step = build_eval_step(network, reference_adapter=sides.adapter, columns=objective.columns)
    with terminal.progress("held-out rows", len(rows)) as advance:
        batches = (place_batch(b, policy.mesh) for _, b in step_batches(rows, plan))
        scores = score_heldout(step, sides.policy, sides.reference, batches, len(rows), advance)
    given = scores_for(objective, rows)
    return summarize_pairs(scores, objective, given=given), sides.name


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
