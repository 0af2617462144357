# SPDX-License-Identifier: Apache-2.0
"""Recipe → setup of a run: data, model, loss, reference and plan (``sft`` and ``dpo``)."""

import platform
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import numpy as np
import optax

import alignax
from alignax.cli import terminal
from alignax.cli.attending import with_attention
from alignax.cli.fitting import job_of, memory_limit, require_fit, this_device, with_crowd
from alignax.cli.loading import (
    Policy,
    build_encoder,
    load_policy,
    load_train_and_eval,
    warn_of_positions,
)
from alignax.cli.run_folder import RunFolder, digest, settings_that_matter
from alignax.cli.run_lock import require_idle
from alignax.data.dataset import EncodedDataset
from alignax.data.encode import Encoder
from alignax.data.pipeline import step_batches
from alignax.data.plan import Plan, plan_epochs
from alignax.errors import DataError, UsageError
from alignax.losses import Objective, build_loss
from alignax.models.lora import merged
from alignax.models.sharding import place_batch
from alignax.recipe import Recipe
from alignax.train.compilations import Compilations
from alignax.train.forward import Network, Weights, split_model
from alignax.train.reference import (
    ReferenceIdentity,
    describe,
)
from alignax.train.step import ReferencePlan, TrainState, init_state

KINDS: dict[str, Literal["pair", "sft", "reward"]] = {
    "dpo": "pair",
    "sft": "sft",
    "reward": "reward",
}
"""Method → kind of its losses."""

ROWS = {"dpo": "pair", "sft": "sft", "reward": "pair"}
"""Method → kind of its rows."""


@dataclass
class Setup:
    """Everything that a run is made of, before the first step."""

    recipe: Recipe
    folder: RunFolder
    policy: Policy
    encoder: Encoder
    train: EncodedDataset
    held_out: EncodedDataset | None
    reports: dict[str, Any]
    objective: Objective
    network: Network
    start: Weights
    reference: Weights
    reference_plan: ReferencePlan
    identity: ReferenceIdentity
    plan: Plan
    attention_notice: str | None
    memory: str
    compilations: Compilations
    at_once: int = 1

    @property
    def answers(self) -> int:
        """Answers of one example."""
        return self.network.answers

    @property
    def has_reference(self) -> bool:
        """Whether held-out rows are compared with a reference, even if the loss has none."""
        free = self.objective.kind == "pair" and self.recipe.lora.enabled
        return self.reference_plan.mode != "none" or free

    def batches(self, dataset: EncodedDataset, plan: Plan) -> Any:
        """Placed batches of a scoring plan, in order."""
        for _, batch in step_batches(dataset, plan):
            yield place_batch(batch, self.policy.mesh)


@dataclass(frozen=True)
class Crowd:
    """How many adapters are trained over the base, and how many together (None: what fits)."""

    variants: int = 1
    at_once: int | None = 1


def prepare(recipe: Recipe, *, objective: Objective | None = None, crowd: Crowd = Crowd()) -> Setup:
    """Load, check and lay out everything; nothing is written yet.

    Args:
        recipe: All settings.
        objective: What the run must provide for, where that is more than the recipe's own loss.
        crowd: Variants that the run trains.
    """
    folder = RunFolder(recipe.output)
    require_idle(folder.path)
    folder.require_usable(resume=recipe.train.resume)
    compilations = Compilations()
    objective = objective or build_objective(recipe)
    policy = load_start(recipe)
    recipe = with_lora_of(policy, recipe)
    encoder = build_encoder(policy, recipe.data)
    train, held_out, reports = load_train_and_eval(recipe.data, encoder, kind=ROWS[recipe.method])
    for rows in (train, held_out):
        warn_of_positions(policy, rows)
        if rows is not None:
            scores_for(objective, rows)
    network, start = take_apart(recipe, policy)
    reference, reference_plan, identity = choose_reference(recipe, policy, start, objective)
    plan = plan_epochs(
        train.lengths,
        batch_size=recipe.train.batch_size,
        epochs=recipe.train.epochs,
        steps=recipe.train.steps or (None if recipe.train.epochs else 1000),
        seed=recipe.train.seed,
        microbatches=recipe.train.accumulate,
        microbatch_tokens=recipe.train.microbatch_tokens,
        rows=recipe.mesh.data * recipe.mesh.fsdp,
        packing=recipe.train.packing,
    )
    warn_of_long_rows(recipe, plan)
    network, notice = with_attention(
        network, policy, recipe.model, max(plan.shape.t, recipe.train.microbatch_tokens)
    )
    recipe, network, memory, at_once = fit_memory(
        recipe, policy, network, reference_plan, plan, train, crowd
    )
    return Setup(
        recipe, folder, policy, encoder, train, held_out, reports, objective.over(plan.steps),
        network, start, reference, reference_plan, identity, plan, notice, memory, compilations,
        at_once,
    )  # fmt: skip


def load_start(recipe: Recipe) -> Policy:
    """Load what training starts from; a reward model gets its scalar head."""
    return load_policy(
        recipe.model, lora=recipe.lora, mesh=recipe.mesh, seed=recipe.train.seed,
        scores=recipe.method == "reward",
    )  # fmt: skip


def warn_of_long_rows(recipe: Recipe, plan: Plan) -> None:
    """Say so when micro-batches hold more than ``train.microbatch_tokens``."""
    tokens = plan.shape.b * plan.shape.t // (recipe.mesh.data * recipe.mesh.fsdp)
    if tokens > recipe.train.microbatch_tokens:
        cause = "train.accumulate" if recipe.train.accumulate else "the longest example alone"
        terminal.warn(
            f"a micro-batch holds {tokens} tokens, train.microbatch_tokens is "
            f"{recipe.train.microbatch_tokens}: {cause} asks for it"
        )


def fit_memory(
    recipe: Recipe, policy: Policy, network: Network, reference_plan: ReferencePlan, plan: Plan,
    train: EncodedDataset, crowd: Crowd,
) -> tuple[Recipe, Network, str, int]:  # fmt: skip
    """Choose what is recomputed and how many logits exist at a time, from the estimate.

    A run that is continued keeps the policy that it began with.

    Returns:
        Recipe and network with the choice in them, the choice in words, and how many variants are
        computed together.

    Raises:
        RunError: The run cannot fit.
    """
    if recipe.train.resume and recipe.train.remat == "auto":
        began = RunFolder(recipe.output).recipe().train.remat
        recipe = with_remat(recipe, began)
    device = this_device()
    shape = plan.shape
    job = job_of(
        recipe,
        policy.loaded.config,
        policy.lora,
        (shape.g, shape.b, shape.t, shape.a, shape.m),
        live=reference_plan.mode in ("live", "moving"),
        limit=memory_limit(recipe, device),
    )
    job = with_crowd(recipe, job, device, crowd.variants, crowd.at_once)
    longest = int(train.lengths.sum(1).max())
    verdict = require_fit(recipe, job, device, longest)
    network = replace(network, remat=verdict.remat, chunk=job.chunk)
    return with_remat(recipe, verdict.remat), network, verdict.reason, job.at_once


def with_remat(recipe: Recipe, remat: str) -> Recipe:
    """The recipe with another ``train.remat``."""
    return recipe.model_copy(update={"train": recipe.train.model_copy(update={"remat": remat})})


def with_lora_of(policy: Policy, recipe: Recipe) -> Recipe:
    """Write an adapter's own shape into the recipe, which otherwise names the defaults."""
    if policy.lora is None:
        return recipe
    targets = policy.lora.targets
    shape = {
        "rank": policy.lora.rank,
        "alpha": policy.lora.alpha,
        "rslora": policy.lora.rslora,
        "targets": targets if isinstance(targets, str) else list(targets),
    }
    return recipe.model_copy(update={"lora": recipe.lora.model_copy(update=shape)})


def take_apart(recipe: Recipe, policy: Policy) -> tuple[Network, Weights]:
    """Split the policy into its static half and its arrays; full training merges an adapter."""
    if not recipe.lora.enabled and policy.lora is not None:
        policy.loaded.model = merged(policy.model)
        policy.lora = None
    return split_model(
        policy.model,
        trains="adapter" if recipe.lora.enabled else "base",
        answers=1 if ROWS[recipe.method] == "sft" else 2,
        compute_dtype=recipe.model.dtype,
    )


def build_objective(recipe: Recipe) -> Objective:
    """Bind the loss; settings that this method cannot use are refused."""
    kind = KINDS[recipe.method]
    name = None if recipe.loss.type == "auto" else recipe.loss.type
    if kind != "pair" and recipe.reference.model_fields_set:
        raise UsageError(
            f"reference settings have no effect on {recipe.method}, which has no reference"
        )
    objective = build_loss(name, kind=kind, **recipe.loss.model_dump(exclude={"type"}))
    if recipe.guards.beta_factor != 1.0 and not objective.has_beta:
        raise UsageError(
            f"guards.beta_factor={recipe.guards.beta_factor:g} has no effect: "
            f"{objective.spec.name} has no beta",
            hint="leave it out",
        )
    return objective


def start_state(
    recipe: Recipe,
    objective: Objective,
    trainable: Any,
    optimizer: optax.GradientTransformation,
) -> TrainState:
    """Make the state of step 0, with all that this recipe's loss and reference carry along."""
    return init_state(
        trainable,
        optimizer,
        jax.random.key(recipe.train.seed),
        memory=objective.start_memory(),
        moving_reference=reference_mode(recipe, objective) == "moving",
    )


def scores_for(objective: Objective, rows: EncodedDataset) -> np.ndarray | None:
    """Take the [n, s] scores of the rows if the loss reads them.

    Raises:
        DataError: Some rows have none.
    """
    if "score" not in objective.columns:
        return None
    absent = np.flatnonzero(np.isnan(rows.scores).any(1))
    if len(absent):
        raise DataError(
            f"loss.type={objective.spec.name} reads a score of each answer, which "
            f"{len(absent)} of {len(rows)} rows lack, first {rows.places[absent[0]]}",
            hint="give the rows chosen_score and rejected_score, or take another loss",
        )
    return rows.scores


def choose_reference(
    recipe: Recipe, policy: Policy, start: Weights, objective: Objective
) -> tuple[Weights, ReferencePlan, ReferenceIdentity]:
    """Decide what the policy is compared with, and where its log-probs come from.

    With a fresh adapter the base alone is the reference. With an adapter that is continued (DPO
    after SFT) it is base + that adapter, frozen, unless the recipe asks for the base.

    Raises:
        UsageError: The asked-for source cannot give this reference.
    """
    base_only = policy.adapter_hash is None or recipe.reference.start == "base"
    identity = ReferenceIdentity(
        policy.loaded.weights_hash, None if base_only else policy.adapter_hash
    )
    if objective.kind != "pair":
        return start, ReferencePlan("none"), identity
    source = recipe.reference.source
    full = not recipe.lora.enabled
    mode = reference_mode(recipe, objective)
    if not objective.needs_reference and (source, recipe.reference.update) != ("auto", "none"):
        raise UsageError(
            f"reference settings have no effect: {objective.spec.name} has no reference",
            hint="leave it out",
        )
    if full and recipe.reference.start == "base" and policy.adapter_hash is not None:
        raise UsageError("reference.start: base needs LoRA: full training merges the adapter")
    if source == "cache" and objective.needs_live_reference:
        raise UsageError(
            f"the loss reads {', '.join(objective.columns)} of the reference, and a cache holds "
            "the answers' summed log-probs only",
            hint="leave reference.source at auto",
        )
    if source == "adapters_off" and (full or not base_only):
        what = "full training has no adapters" if full else "the reference includes an adapter"
        raise UsageError(
            f"reference.source: adapters_off is not the reference of this run: {what}",
            problems=[f"reference: {describe(identity)}"],
            hint="use auto, cache or frozen_copy",
        )
    keep_adapter = not base_only and not full
    # Training starts from a copy (``init_state``), so the start itself stays what it was.
    if mode == "moving":
        return start, moving_plan(recipe, policy), identity
    return start, ReferencePlan(mode, keep_adapter), identity


def reference_mode(
    recipe: Recipe, objective: Objective
) -> Literal["none", "cached", "live", "moving"]:
    """Tell where the reference's log-probs come from (see ``ReferencePlan``)."""
    if not objective.needs_reference:
        return "none"
    if recipe.reference.update != "none":
        return "moving"
    if recipe.reference.source == "auto":
        full = not recipe.lora.enabled
        return "live" if full or objective.needs_live_reference else "cached"
    return "cached" if recipe.reference.source == "cache" else "live"


def moving_plan(recipe: Recipe, policy: Policy) -> ReferencePlan:
    """Let the reference follow the policy; cached log-probs would be those of its start.

    Raises:
        UsageError: The reference does not start as the policy, or a source was asked for.
    """
    section = recipe.reference
    if section.source not in ("auto", "frozen_copy"):
        raise UsageError(
            f"reference.source={section.source} cannot follow the policy (reference.update)",
            hint="leave reference.source at auto",
        )
    if section.start == "base" and policy.adapter_hash is not None:
        raise UsageError("reference.update needs a reference that starts as the policy")
    share = 1.0 if section.update == "hard" else section.update_share or 0.6
    return ReferencePlan("moving", True, section.update_steps or 512, share)


def fingerprints(setup: Setup) -> dict[str, Any]:
    """Identify all that a continuation must share."""
    settings = settings_that_matter(setup.recipe)
    held_out = setup.held_out
    return {
        "base": setup.policy.loaded.weights_hash,
        "adapter": setup.policy.adapter_hash,
        "reference": describe(setup.identity),
        "tokenizer": setup.encoder.tokenizer_hash,
        "template": setup.encoder.template_hash,
        "encoding": setup.encoder.digest,
        "train_rows": digest(list(setup.train.row_ids)),
        "eval_rows": digest(list(held_out.row_ids)) if held_out is not None else None,
        "recipe": digest(settings),
        "settings": settings,
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Versions of what computes."""
    import flax
    import optax

    return {
        "alignax": alignax.__version__,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "flax": flax.__version__,
        "optax": optax.__version__,
        "device": f"{jax.device_count()} × {jax.devices()[0].device_kind}",
    }
