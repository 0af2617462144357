# SPDX-License-Identifier: Apache-2.0
"""Model, reference and rows → held-out metrics, outside a run."""

from alignax.cli import terminal
from alignax.cli.loading import (
    Policy,
    build_encoder,
    load_policy,
    load_rows,
    load_train_and_eval,
    run_model,
)
from alignax.cli.run_folder import RunFolder
from alignax.cli.setup import build_objective
from alignax.data.dataset import EncodedDataset
from alignax.data.encode import Encoder
from alignax.data.pipeline import step_batches
from alignax.data.plan import scoring_plan
from alignax.errors import UsageError
from alignax.evaluate.heldout import build_eval_step, score_heldout, summarize_pairs
from alignax.models.lora import merged
from alignax.models.sharding import place_batch
from alignax.recipe import ModelSection, Recipe
from alignax.train.forward import Network, Weights, split_model


def evaluate_heldout(recipe: Recipe, reference: str | None) -> tuple[dict[str, float], str]:
    """Measure ``recipe.model`` on held-out rows.

    Args:
        recipe: Model, rows and loss; without rows, the model must be a run.
        reference: Model to compare with; None: the run's reference, or the base below the
            adapter.

    Returns:
        The metrics and a name for the reference.
    """
    base, adapter = run_model(recipe.model.path)
    model = recipe.model.model_copy(
        update={"path": base, "adapter": recipe.model.adapter or adapter}
    )
    policy = load_policy(model, lora=None, mesh=recipe.mesh, seed=0)
    encoder, rows = _rows(recipe, policy)
    network, weights, ref_weights, keep, name = _sides(recipe, model, policy, reference)
    plan = scoring_plan(
        rows.lengths,
        microbatch_tokens=recipe.train.microbatch_tokens,
        rows=recipe.mesh.data * recipe.mesh.fsdp,
    )
    step = build_eval_step(network, reference_adapter=keep)
    with terminal.progress("held-out rows", len(rows)) as advance:
        batches = (place_batch(b, policy.mesh) for _, b in step_batches(rows, plan))
        scores = score_heldout(step, weights, ref_weights, batches, len(rows), 2, advance)
    return summarize_pairs(scores, build_objective(recipe)), name


def _rows(recipe: Recipe, policy: Policy) -> tuple[Encoder, EncodedDataset]:
    """Load the named rows, or the held-out rows of the run."""
    if recipe.data.path:
        encoder = build_encoder(policy, recipe.data)
        return encoder, load_rows(recipe.data, encoder, kind="pair")[0]
    folder = RunFolder(recipe.model.path)
    if not folder.recipe_file.exists():
        raise UsageError("missing: --data", hint="only a run folder brings its own held-out rows")
    data = folder.recipe().data
    encoder = build_encoder(policy, data)
    _, held_out, _ = load_train_and_eval(data, encoder, kind="pair")
    if held_out is None:
        raise UsageError(f"run {folder.path} has no held-out rows", hint="name some with --data")
    return encoder, held_out


def _sides(
    recipe: Recipe, model: ModelSection, policy: Policy, reference: str | None
) -> tuple[Network, Weights, Weights, bool, str]:
    """Bring policy and reference into one structure; tell whether the reference has an adapter."""
    run = RunFolder(recipe.model.path)
    before = run.recipe().model.adapter if run.recipe_file.exists() else None
    if reference is None and before is not None and policy.lora is not None:
        other = load_policy(
            model.model_copy(update={"adapter": before}), lora=None, mesh=recipe.mesh, seed=0
        )
        network, weights = split_model(policy.model, trains="adapter", answers=2)
        return (
            network,
            weights,
            split_model(other.model, trains="adapter", answers=2)[1],
            True,
            (f"base + {before}"),
        )
    if reference is None and policy.lora is not None:
        network, weights = split_model(policy.model, trains="adapter", answers=2)
        return network, weights, weights, False, "the base without the adapter"
    if reference is None:
        raise UsageError(
            "there is nothing to compare with: the model has no adapter",
            hint="name one with --adapter, or a reference model with --reference",
        )
    base, adapter = run_model(reference)
    section = model.model_copy(update={"path": base, "adapter": adapter})
    other = load_policy(section, lora=None, mesh=recipe.mesh, seed=0)
    network, weights = split_model(merged(policy.model), trains="adapter", answers=2)
    _, theirs = split_model(merged(other.model), trains="adapter", answers=2)
    return network, weights, theirs, True, reference
