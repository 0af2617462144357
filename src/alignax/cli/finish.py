# SPDX-License-Identifier: Apache-2.0
"""Trained run → samples, checked export, summary and report."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flax import nnx

from alignax.cli import terminal
from alignax.cli.loading import Policy, build_encoder
from alignax.cli.run_folder import RunFolder, rollback_count
from alignax.cli.run_lock import writing
from alignax.cli.setup import Setup, build_objective, load_start, start_state, take_apart
from alignax.cli.training import model_with, run
from alignax.data.encode import Encoder
from alignax.errors import RunError, StoppedByGuard
from alignax.export.card import RunFacts
from alignax.export.huggingface import write_merged
from alignax.export.peft import write_adapter
from alignax.export.reward import verify_reward
from alignax.export.verify import verify_adapter, verify_merged
from alignax.files import read_json, write_json, write_lines, write_text
from alignax.generate.choice import Choice
from alignax.generate.sampler import Sampler
from alignax.models.decoder import Decoder
from alignax.recipe import Recipe
from alignax.report.build import build_report
from alignax.report.render import render
from alignax.train.checkpoint import Checkpoints
from alignax.train.loop import Result
from alignax.train.optimizer import build_optimizer, build_schedule

EXPORT_PROBES = (
    "What is the capital of France?",
    "How do I boil an egg?",
    "Write one sentence about rain.",
    "What is 12 plus 30?",
    "Name three colours.",
    "Why is the sky blue?",
    "Suggest a name for a cat.",
    "How do I thank a colleague?",
)
"""Prompts on which an export must behave as the trained model does."""


@dataclass(frozen=True)
class Probes:
    """Fixed prompts that are answered before, during and after training."""

    ids: list[list[int]]
    texts: list[str]


def probe_prompts(setup: Setup) -> Probes:
    """Take the first distinct held-out prompts (training prompts without held-out rows).

    A reward model answers nothing.
    """
    if setup.network.scores:
        return Probes([], [])
    rows = setup.held_out if setup.held_out is not None else setup.train
    ids = rows.distinct_prompts(setup.recipe.sample.prompts)
    return Probes(ids, [setup.encoder.decode(i) for i in ids])


def build_sample(setup: Setup, probes: Probes) -> Callable[[Any, int], None]:
    """Make the function that the loop calls to answer the probe prompts."""
    settings = setup.recipe.sample

    def sample(trainable: Any, step: int) -> None:
        if not probes.ids:
            return
        sampler = Sampler(
            model_with(setup, trainable),
            stop_ids=setup.encoder.stop_ids,
            decode=setup.encoder.decode,
            batch_size=len(probes.ids),
        )
        answers = sampler.generate(
            probes.ids,
            max_new_tokens=settings.max_new_tokens,
            choice=Choice(settings.temperature),
            seed=setup.recipe.train.seed,
        )
        records = [
            {"prompt": text, "text": answer.text, "finish_reason": answer.finish_reason}
            for text, answer in zip(probes.texts, answers, strict=True)
        ]
        write_lines(setup.folder.samples / f"step_{step:06d}.jsonl", records)

    return sample


def execute(setup: Setup) -> dict[str, Any]:
    """Run to the end and write everything that a run leaves behind.

    Returns:
        The summary, as in ``summary.json``.
    """
    with writing(setup.folder.path):
        # Looked at again: another process may have begun here while this one was loading.
        setup.folder.require_usable(resume=setup.recipe.train.resume)
        return train_and_export(setup)


def train_and_export(setup: Setup) -> dict[str, Any]:
    """Train, export the best checkpoint, and write summary and report."""
    probes = probe_prompts(setup)
    result, checkpoints, seconds = run(setup, build_sample(setup, probes))
    if result.signal_number is not None:
        raise Interrupted(setup.folder.path, result.step, result.signal_number)
    best = checkpoints.best_step or result.step
    trainable = result.state.trainable
    if best != result.step:
        trainable = checkpoints.restore(best, result.state).trainable
        terminal.say(f"the best checkpoint by {recipe_metric(setup.recipe)} is step {best}")
    summary = summarize(setup, result, best, seconds)
    summary["exports"] = export_model(
        setup.folder,
        setup.policy,
        setup.encoder,
        model_with(setup, trainable),
        setup.recipe,
        summary,
    )
    if result.stopped is not None:
        summary["stopped"] = str(result.stopped)
    setup.compilations.close()
    summary["compilations"] = setup.compilations.summary()
    write_json(setup.folder.summary_file, summary)
    write_report(setup.folder)
    if result.stopped is not None:
        done = rollback_count(setup.folder)
        how = f"given up after {done} rollbacks" if done else "the run was ended"
        raise StoppedByGuard(
            f"{result.stopped.message}; {how}, and step {best} was exported as the result",
            problems=result.stopped.problems,
            hint=result.stopped.hint,
        )
    return summary


class Interrupted(RunError):
    """A signal ended the run after a save; the exit code is 128 + the signal's number."""

    def __init__(self, folder: Path, step: int, number: int):
        """Say where the run can be continued."""
        super().__init__(
            f"signal {number}: saved step {step} and stopped",
            hint=f"repeat the command with --train.resume to continue {folder}",
        )
        self.exit_code = 128 + number


def recipe_metric(recipe: Recipe) -> str:
    """Name the metric that chooses the best checkpoint."""
    return f"held-out {recipe.train.best_metric}"


def summarize(setup: Setup, result: Result, best: int, seconds: float) -> dict[str, Any]:
    """Collect what the report and the model card say about a run."""
    evaluations = result.evaluations
    return {
        "method": setup.recipe.method,
        "model": setup.recipe.model.path,
        "rows": setup.reports["split"],
        "steps": result.step,
        "best_step": best,
        "before": evaluations.get(0),
        "after": evaluations.get(best),
        "seconds": round(seconds, 1),
        "fill": round(setup.plan.fill, 4),
        "data_wait_share": round(result.waited / result.seconds, 5) if result.seconds else None,
    }


def export_model(
    folder: RunFolder,
    policy: Policy,
    encoder: Encoder,
    model: Decoder,
    recipe: Recipe,
    summary: dict[str, Any],
) -> list[dict[str, Any]]:
    """Write each asked-for form below ``export/`` and check it against the trained model."""
    facts = RunFacts(
        base=recipe.model.path,
        base_hash=policy.loaded.weights_hash,
        method=recipe.method,
        data=recipe.data.path,
        settings=recipe.model_dump(mode="json"),
        summary=summary,
    )
    prompts = export_probes(encoder)
    written: list[dict[str, Any]] = []
    stop_ids = encoder.stop_ids
    adapter_alone = recipe.export.adapter and recipe.lora.enabled and not model.config.scores
    if adapter_alone and policy.lora is not None:
        target = folder.export / "adapter"
        write_adapter(target, model, policy.lora, policy.tokenizer, facts, stop_ids=stop_ids)
        checks = verify_adapter(target, model, policy.loaded, prompts, stop_ids=stop_ids)
        written.append({"kind": "adapter", "path": str(target), **asdict(checks)})
    if recipe.export.merged:
        target = folder.export / "merged"
        write_merged(
            target, model, policy.loaded, policy.tokenizer, facts,
            stop_ids=stop_ids, dtype=recipe.export.dtype,
        )  # fmt: skip
        checks = (
            verify_reward(target, model, prompts)
            if model.config.scores
            else verify_merged(target, model, prompts, stop_ids=stop_ids)
        )
        written.append({"kind": "merged", "path": str(target), **asdict(checks)})
    return written


def export_probes(encoder: Encoder) -> list[list[int]]:
    """Encode the fixed prompts on which an export must behave as the trained model does."""
    if encoder.has_template:
        return [encoder.prompt_ids([{"role": "user", "content": p}]) for p in EXPORT_PROBES]
    return [encoder.prompt_ids(prompt) for prompt in EXPORT_PROBES]


def export_checkpoint(
    folder: RunFolder, recipe: Recipe, checkpoints: Checkpoints, step: int
) -> list[dict[str, Any]]:
    """Export one checkpoint of a run, without its rows."""
    policy = load_start(recipe)
    network, start = take_apart(recipe, policy)
    optimizer = build_optimizer(
        recipe.optimizer, build_schedule(recipe.optimizer, checkpoints.record(step)["total_steps"])
    )
    trainable, frozen = network.part(start)
    template = start_state(recipe, build_objective(recipe), trainable, optimizer)
    weights = network.join(checkpoints.restore(step, template).trainable, frozen)
    model = nnx.merge(network.graphdef, weights.base, weights.adapter)
    summary = read_json(folder.summary_file) if folder.summary_file.exists() else {}
    encoder = build_encoder(policy, recipe.data)
    return export_model(folder, policy, encoder, model, recipe, summary)


def record_exports(
    folder: RunFolder, summary: dict[str, Any], written: list[dict[str, Any]]
) -> None:
    """Replace what the summary says about the forms that were written."""
    kinds = {entry["kind"] for entry in written}
    kept = [entry for entry in summary["exports"] if entry["kind"] not in kinds]
    write_json(folder.summary_file, summary | {"exports": kept + written})


def write_report(folder: RunFolder) -> None:
    """Build ``report.html`` from the run folder's files."""
    write_text(folder.report_file, render(build_report(folder.path)))


def show_summary(folder: RunFolder) -> None:
    """Print the before/after table of a finished run to stdout."""
    summary = read_json(folder.summary_file)
    before, after = summary["before"] or {}, summary["after"] or {}
    names = {
        "loss": "held-out loss",
        "accuracy": "held-out accuracy",
        "margin": "held-out margin",
        "perplexity": "perplexity of chosen",
        "calibration_error": "calibration error",
        "kl/token": "KL to the reference, a token",
    }
    rows = [
        (label, terminal.with_interval(before, name), terminal.with_interval(after, name))
        for name, label in names.items()
        if name in after
    ]
    title = f"{summary['method']}: step {summary['best_step']} of {summary['steps']}"
    if after:
        title += f", {int(after['n'])} held-out rows, 95 % intervals"
    if rows:
        terminal.show_table(title, ("", "before", "after"), rows)
    else:
        terminal.say(f"{title}; no held-out rows, so nothing to compare")
    if before.get("ties") == 1:
        terminal.say("before training every pair is a tie: the policy is its own reference")
    for entry in summary["exports"]:
        terminal.say(f"{entry['kind']}: {entry['path']}")
    terminal.say(f"whole run: {terminal.compiled_line(summary['compilations'])}")
    terminal.say(f"report: {folder.report_file}")


def checkpoints_of(folder: RunFolder, recipe: Recipe) -> Checkpoints:
    """Open a run's checkpoints for reading; the run may still be training."""
    return Checkpoints(
        folder.checkpoints,
        keep=recipe.train.keep,
        best_metric=recipe.train.best_metric,
        reading=True,
    )
