# SPDX-License-Identifier: Apache-2.0
"""Setup → trained run: reference pass, self-tests, loop and checkpoints."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx

from alignax.cli import terminal
from alignax.cli.loading import cache_folder
from alignax.cli.setup import Setup, fingerprints
from alignax.data.dataset import EncodedDataset
from alignax.data.pipeline import step_batches
from alignax.data.plan import Plan, scoring_plan
from alignax.evaluate.heldout import build_eval_step, score_heldout, summarize_pairs, summarize_sft
from alignax.models.sharding import commit, place_batch
from alignax.train.checkpoint import Checkpoints
from alignax.train.forward import Weights
from alignax.train.hooks import Hook, JsonLines, TensorBoard
from alignax.train.loop import Cadence, Parts, Result, Speed, fit, measure_peak_flops
from alignax.train.optimizer import build_optimizer, build_schedule
from alignax.train.reference import (
    ReferenceCache,
    ReferenceIdentity,
    build_score_step,
    describe,
    score_rows,
)
from alignax.train.selftest import (
    check_equal_start,
    check_first_loss,
    check_first_update,
    check_packed_equals_padded,
)
from alignax.train.step import TrainState, build_train_step, init_state


def reference_table(setup: Setup) -> np.ndarray | None:
    """Look the training rows' reference log-probs up, and compute those that are not known yet.

    Held-out rows need no entry: their KL asks for the live reference at every evaluation.
    """
    if setup.reference_plan.mode != "cached":
        return None
    key = setup.identity.key(setup.encoder.digest, setup.recipe.model.dtype)
    cache = ReferenceCache(cache_folder() / "reference" / f"{key}.npz")
    absent = cache.missing(setup.train.row_ids)
    if absent:
        step = build_score_step(setup.network, adapter=setup.reference_plan.adapter)
        part = setup.train.select(absent)
        sums = score_part(setup, step, setup.reference, part, "reference log-probs")
        cache.add(part.row_ids, sums)
    return cache.table(setup.train.row_ids)


def score_part(
    setup: Setup, step: Callable[..., Any], weights: Weights, part: EncodedDataset, title: str
) -> np.ndarray:
    """Score some rows with a bar; returns [n, s] log-probs."""
    plan = score_plan(setup, part)
    with terminal.progress(title, len(part)) as advance:
        batches = setup.batches(part, plan)
        return score_rows(step, weights, batches, len(part), setup.answers, advance)[0]


def score_plan(setup: Setup, part: EncodedDataset) -> Plan:
    """Lay out rows for scoring."""
    return scoring_plan(
        part.lengths,
        microbatch_tokens=setup.recipe.train.microbatch_tokens,
        rows=setup.recipe.mesh.data * setup.recipe.mesh.fsdp,
    )


def build_evaluate(setup: Setup) -> Callable[[Any, int], dict[str, float]] | None:
    """Make the function that the loop calls to measure the held-out rows."""
    held_out = setup.held_out
    if held_out is None:
        return None
    live = setup.reference_plan.mode != "none"
    step = build_eval_step(
        setup.network, reference_adapter=setup.reference_plan.adapter if live else None
    )
    _, frozen = setup.network.part(setup.start)
    plan = score_plan(setup, held_out)

    def evaluate(trainable: Any, _step: int) -> dict[str, float]:
        policy = setup.network.join(trainable, frozen)
        with terminal.progress("held-out rows", len(held_out)) as advance:
            scores = score_heldout(
                step, policy, setup.reference if live else None,
                setup.batches(held_out, plan), len(held_out), setup.answers, advance,
            )  # fmt: skip
        if setup.objective.kind == "sft":
            return summarize_sft(scores)
        return summarize_pairs(scores, setup.objective)

    return evaluate


def self_test(setup: Setup) -> None:
    """Before the first update: policy = reference, packed = padded, on the first rows."""
    first = [i for micro in setup.plan.step(0) for row in micro for i in row]
    part = setup.train.select(first)
    dtype = setup.recipe.model.dtype
    network = setup.network
    weights = network.join(*network.part(setup.start))
    sums = score_part(setup, build_score_step(network, adapter=True), weights, part, "self-test")
    order = np.argsort(part.lengths.sum(1))[:2]
    check_packed_equals_padded(
        network, weights, [part[int(i)] for i in order], sums[order], dtype=dtype
    )
    if setup.reference_plan.mode == "none":
        return
    step = build_score_step(network, adapter=setup.reference_plan.adapter)
    reference = score_part(setup, step, setup.reference, part, "self-test")
    identities = {
        "policy": describe(
            ReferenceIdentity(setup.policy.loaded.weights_hash, setup.policy.adapter_hash)
        ),
        "reference": describe(setup.identity),
    }
    if setup.recipe.reference.start == "base" and setup.policy.adapter_hash is not None:
        rewards = setup.objective.beta * (sums - reference)
        terminal.warn(
            "the reference is the base below the adapter, as asked: step-0 rewards are "
            f"{rewards[:, 0].mean():+.3f} chosen, {rewards[:, 1].mean():+.3f} rejected, not 0"
        )
        return
    worst = check_equal_start(sums, reference, identities, dtype=dtype)
    terminal.say(
        f"self-test: policy equals reference ({identities['reference']}) within {worst:.1e} nats; "
        "packed equals padded"
    )


def first_update_check(setup: Setup) -> Callable[..., None]:
    """Make the check that the loop runs after the first update."""
    equal_start = not (
        setup.recipe.reference.start == "base" and setup.policy.adapter_hash is not None
    )
    plain = setup.objective.spec.name == "sigmoid" and setup.objective.nll_weight == 0

    def check(before: TrainState, after: TrainState, values: Mapping[str, float]) -> None:
        if plain and equal_start:
            check_first_loss(
                values["loss"], beta=setup.objective.beta, dtype=setup.recipe.model.dtype
            )
        share = check_first_update(
            before.trainable, jax.device_get(after.trainable), values["grad_norm"]
        )
        terminal.say(
            f"step-0 loss {values['loss']:.4f}; the first update moved {share:.1%} of the "
            "trainable entries"
        )

    return check


def yardstick(setup: Setup) -> Speed:
    """Useful FLOPs a token, and this machine's measured matrix-multiply rate."""
    config = setup.policy.loaded.config
    passes = 2 if setup.network.trains == "adapter" else 3
    devices = jax.device_count() if jax.default_backend() != "cpu" else 1
    return Speed(
        body_flops=2.0 * passes * config.body_parameters,
        head_flops=2.0 * passes * config.d_model * config.vocab_size,
        peak_flops=measure_peak_flops() * devices,
    )


def run(setup: Setup, sample: Callable[[Any, int], None]) -> tuple[Result, Checkpoints, float]:
    """Train: from step 0, or from the newest whole checkpoint of the folder."""
    recipe, folder, network = setup.recipe, setup.folder, setup.network
    marks = fingerprints(setup)
    changed: list[str] = []
    if recipe.train.resume:
        folder.require_same(marks)
        changed = folder.rewrite_recipe(recipe)
    table = reference_table(setup)
    schedule = build_schedule(recipe.optimizer, setup.plan.steps)
    optimizer = build_optimizer(recipe.optimizer, schedule)
    trainable, frozen = network.part(setup.start)
    state = commit(
        init_state(trainable, optimizer, jax.random.key(recipe.train.seed)), setup.policy.mesh
    )
    if not recipe.train.resume:
        self_test(setup)
        folder.create(recipe, marks, setup.reports)
    checkpoints = Checkpoints(
        folder.checkpoints, keep=recipe.train.keep, best_metric=recipe.train.best_metric
    )
    state, evaluations = restore(state, checkpoints, setup)
    start_step = int(state.step)
    if recipe.train.resume and start_step == 0:
        self_test(setup)
    hooks = build_hooks(setup, start_step)
    iterator = step_batches(setup.train, setup.plan, start_step=start_step)
    parts = Parts(
        step=build_train_step(
            network, setup.objective, optimizer, schedule, setup.reference_plan, state
        ),
        frozen=frozen,
        live=setup.reference if setup.reference_plan.mode == "live" else None,
        table=table,
        row_ids=setup.train.row_ids,
        place=lambda tree: place_batch(tree, setup.policy.mesh),
        evaluate=build_evaluate(setup),
        sample=sample,
        after_first=first_update_check(setup),
        record={"recipe": marks["recipe"], "total_steps": setup.plan.steps},
        data_state=iterator.get_state,
    )
    cadence = Cadence(
        setup.plan.steps,
        recipe.train.eval_steps,
        recipe.train.save_steps or recipe.train.eval_steps,
    )
    started = time.monotonic()
    try:
        announce(hooks, start_step, checkpoints, setup, changed)
        if start_step == 0:
            look_before(parts, state, hooks, evaluations)
        result = fit(
            state, iterator, parts, cadence, yardstick(setup), checkpoints, hooks, evaluations
        )
    finally:
        iterator.close()
        for hook in hooks:
            hook.close()
    return result, checkpoints, time.monotonic() - started


def build_hooks(setup: Setup, start_step: int) -> list[Hook]:
    """Make the run's listeners."""
    folder = setup.folder
    return [
        JsonLines(folder.path, start_step=start_step, log_steps=setup.recipe.train.log_steps),
        TensorBoard(folder.tensorboard, start_step=start_step),
        terminal.TrainingProgress(setup.plan.steps, start_step),
    ]


def look_before(
    parts: Parts, state: TrainState, hooks: list[Hook], evaluations: dict[int, dict[str, float]]
) -> None:
    """Evaluate and sample before step 1."""
    if parts.evaluate is not None:
        evaluations[0] = parts.evaluate(state.trainable, 0)
        for hook in hooks:
            hook.on_eval(0, evaluations[0])
    parts.sample(state.trainable, 0)


def restore(
    state: TrainState, checkpoints: Checkpoints, setup: Setup
) -> tuple[TrainState, dict[int, dict[str, float]]]:
    """Read the newest whole checkpoint of a resumed run, and its evaluations so far."""
    if not setup.recipe.train.resume or not checkpoints.steps:
        return state, {}
    step = checkpoints.steps[-1]
    state = checkpoints.restore(step, state)
    return state, setup.folder.evaluations(up_to=step)


def announce(
    hooks: list[Hook], start: int, checkpoints: Checkpoints, setup: Setup, changed: list[str]
) -> None:
    """Record how the run began."""
    events = [("torn_save", f"ignored and removed: {name}") for name in checkpoints.discarded]
    if start == 0:
        events.append(("memory", setup.memory))
    if setup.attention_notice is not None:
        events.append(("attention", setup.attention_notice))
    if setup.recipe.train.resume:
        events.append(("resumed", f"continues after step {start}"))
        events += [("setting_changed", change) for change in changed]
    for kind, message in events:
        for hook in hooks:
            hook.on_event(start, kind, message)


def model_with(setup: Setup, trainable: Any) -> Any:
    """Build the decoder that holds the given trained arrays."""
    _, frozen = setup.network.part(setup.start)
    weights = setup.network.join(trainable, frozen)
    return nnx.merge(setup.network.graphdef, weights.base, weights.adapter)
