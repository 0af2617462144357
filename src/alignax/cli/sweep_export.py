# SPDX-License-Identifier: Apache-2.0
"""State of a sweep → a variant's adapter in PEFT's layout, checked against the trained weights."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import jax
from flax import nnx

from alignax.cli import terminal
from alignax.cli.finish import checkpoints_of, export_probes
from alignax.cli.grid import Variant
from alignax.cli.loading import Policy, build_encoder, load_policy
from alignax.cli.run_folder import RunFolder
from alignax.cli.setup import build_objective, start_state, take_apart
from alignax.cli.sweep_setup import spec_of
from alignax.data.encode import Encoder
from alignax.errors import RunError, UsageError
from alignax.export.card import RunFacts
from alignax.export.peft import write_adapter
from alignax.export.verify import verify_adapter
from alignax.files import read_json, write_json
from alignax.losses.alternatives import union
from alignax.models.layers import LoRAParam
from alignax.models.lora import add_lora
from alignax.models.sharding import commit
from alignax.recipe import Recipe, build_recipe, flatten
from alignax.train.forward import Network, Weights
from alignax.train.optimizer import build_optimizer, build_schedule
from alignax.train.step import TrainState
from alignax.train.variants import stack_states, variant_of, with_rank


def summary_of(found: Mapping[str, Any]) -> dict[str, Any]:
    """What other verbs read of a finished run."""
    best = next((v for v in found["variants"] if v["name"] == found["recommended"]), None)
    kept = ("method", "model", "rows", "steps", "seconds", "exports", "compilations")
    summary = {name: found.get(name) for name in kept}
    after = terminal.finite(best["values"]) if best else None
    return summary | {"best_step": found["steps"], "before": None, "after": after}


@dataclass(frozen=True)
class Exporter:
    """Writes variants of one sweep.

    Attributes:
        policy: Base and tokenizer.
        network: Static half of the model.
        start: Its arrays before training.
        encoder: For the prompts on which an export must behave as the trained model does.
        folder: Of the sweep.
        found: As in ``sweep.json``.
    """

    policy: Policy
    network: Network
    start: Weights
    encoder: Encoder
    folder: RunFolder
    found: Mapping[str, Any]

    def write(self, variant: Variant, place: int, state: TrainState, name: str) -> dict[str, Any]:
        """Write a variant below ``export/`` and compare what was written with what was trained."""
        spec = spec_of(variant, self.policy)
        adapter = with_rank(variant_of(state, place).trainable, spec.rank)
        model = nnx.merge(self.network.graphdef, self.start.base, self.start.adapter)
        add_lora(model, spec, key=jax.random.key(0))
        nnx.update(model, nnx.state(model, LoRAParam), adapter)
        facts = RunFacts(
            base=variant.recipe.model.path,
            base_hash=self.policy.loaded.weights_hash,
            method=variant.recipe.method,
            data=variant.recipe.data.path,
            settings=variant.recipe.model_dump(mode="json"),
            summary=summary_of(self.found) | {"after": self.found["variants"][place]["values"]},
        )
        stop_ids, target = self.encoder.stop_ids, self.folder.export / name
        write_adapter(target, model, spec, self.policy.tokenizer, facts, stop_ids=stop_ids)
        prompts = export_probes(self.encoder)
        checks = verify_adapter(target, model, self.policy.loaded, prompts, stop_ids=stop_ids)
        return {"kind": "adapter", "variant": variant.name, "path": str(target), **asdict(checks)}


def saved_variants(folder: RunFolder, recipe: Recipe) -> list[Variant]:
    """Read the variants of a finished sweep.

    Raises:
        RunError: It is not finished.
    """
    if not folder.sweep_file.exists():
        raise RunError(
            f"the sweep in {folder.path} is not finished",
            hint="repeat its command with --train.resume",
        )
    shared = flatten(recipe.model_dump(mode="json"))
    return [
        Variant(one["name"], one["settings"], build_recipe(shared | one["settings"]))
        for one in read_json(folder.sweep_file)["variants"]
    ]


def export_saved(folder: RunFolder, recipe: Recipe, name: str | None) -> list[dict[str, Any]]:
    """Export a variant of a finished sweep (the recommended one if none is named), without rows.

    Raises:
        UsageError: There is no such variant.
    """
    variants = saved_variants(folder, recipe)
    found = read_json(folder.sweep_file)
    name = name or found["recommended"]
    place = next((k for k, variant in enumerate(variants) if variant.name == name), None)
    if place is None:
        listed = ", ".join(f"{variant.name} ({variant.label})" for variant in variants)
        asked = f"no variant {name!r}" if name else "no recommended variant"
        raise UsageError(f"the sweep in {folder.path} has {asked}", hint=f"--variant: {listed}")
    policy = load_policy(recipe.model, lora=recipe.lora, mesh=recipe.mesh, seed=recipe.train.seed)
    network, start = take_apart(recipe, policy)
    trainable, _ = network.part(start)
    checkpoints = checkpoints_of(folder, recipe)
    step = checkpoints.steps[-1]
    schedule = build_schedule(recipe.optimizer, checkpoints.record(step)["total_steps"])
    objective = union([build_objective(variant.recipe) for variant in variants])
    one = start_state(recipe, objective, trainable, build_optimizer(recipe.optimizer, schedule))
    template = commit(stack_states([one] * len(variants)), policy.mesh)
    state = checkpoints.restore(step, template)
    encoder = build_encoder(policy, recipe.data)
    exporter = Exporter(policy, network, start, encoder, folder, found)
    target = "adapter" if name == found["recommended"] else variants[place].name
    written = exporter.write(variants[place], place, state, target)
    kept = [entry for entry in found["exports"] if entry["path"] != written["path"]]
    write_json(folder.sweep_file, terminal.finite(found | {"exports": [*kept, written]}))
    return [written]
