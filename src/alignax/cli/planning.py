# SPDX-License-Identifier: Apache-2.0
"""Recipe and device → plan: memory by part and policy, meshes, time; from configuration alone."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alignax.cli.fitting import (
    Verdict,
    job_of,
    memory_limit,
    settle,
    this_device,
    total_bytes,
    ways_out,
)
from alignax.cli.known import DEVICES, FLOAT32_RATE, GIB, RUNTIME, SHAPES, Device
from alignax.cli.loading import adapter_folder, fresh_lora
from alignax.cli.setup import build_objective, reference_mode
from alignax.errors import ModelError, UsageError
from alignax.export.peft import read_adapter
from alignax.models.config import DecoderConfig
from alignax.models.decoder import REMAT
from alignax.models.demo import DEMOS
from alignax.models.footprint import Job, parameter_counts
from alignax.models.lora import LoraSpec
from alignax.models.source import read_config_of, resolve_model
from alignax.recipe import Recipe
from alignax.shapes import TILE
from alignax.train.loop import measure_peak_flops

ANSWER_SHARE = 0.5
"""Assumed share of an example's tokens that are answers."""


@dataclass(frozen=True)
class Assumed:
    """What a plan cannot know.

    Attributes:
        example_tokens: Mean tokens of an example, prompt and answers.
        efficiency: Share of the matrix-multiply rate that a step reaches.
    """

    example_tokens: int
    efficiency: float


def model_shape(path: str) -> DecoderConfig:
    """Find the shape that a model argument names; nothing is fetched and no weights are read.

    Raises:
        ModelError: It is neither a file or folder nor a known name.
    """
    if path.lower() in SHAPES:
        return SHAPES[path.lower()]
    if path not in DEMOS and not Path(path).exists():
        raise ModelError(
            f"no model at {path!r}: no such file, folder or named shape",
            hint=f"shapes: {', '.join(SHAPES)}; a plan fetches nothing",
        )
    return read_config_of(resolve_model(path))


def pick_device(name: str | None, count: int | None) -> tuple[Device, int]:
    """Find a device by name, and how many of them there are.

    Raises:
        UsageError: Unknown name, or a count that is not the slice's own.
    """
    if name is None:
        device = this_device(measure_peak_flops())
    else:
        key = name.lower()
        if key not in DEVICES:
            raise UsageError(f"unknown device {name!r}", hint=f"devices: {', '.join(DEVICES)}")
        device = DEVICES[key]
    if count is not None and count < 1:
        raise UsageError(f"--devices must be at least 1, got {count}")
    if count is not None and device.kind == "tpu" and name is not None and count != device.count:
        raise UsageError(
            f"slice {device.name} has {device.count} devices, got --devices {count}",
            hint="name another slice",
        )
    if name is None and count is not None and count > device.count:
        raise UsageError(f"this machine has {device.count} devices, got --devices {count}")
    return device, count or device.count


def lora_of(recipe: Recipe) -> LoraSpec | None:
    """The adapter that the recipe trains; None: all weights."""
    lora = recipe.lora
    if not lora.enabled:
        return None
    if recipe.model.adapter is not None:
        return read_adapter(adapter_folder(recipe.model.adapter))[1]
    return fresh_lora(lora)


def step_sizes(recipe: Recipe, assumed: Assumed) -> tuple[int, int, int, int, int]:
    """Guess a step's layout: micro-batches, rows, tokens, answer places and tiles of a row."""
    ranks = recipe.mesh.data * recipe.mesh.fsdp
    step = recipe.train.batch_size * assumed.example_tokens
    wanted = recipe.train.microbatch_tokens
    micro = recipe.train.accumulate or math.ceil(step / (ranks * wanted))
    tokens = math.ceil(step / (ranks * micro) / TILE) * TILE
    # A tile sees those before it within its example: half an example's tiles on average.
    seen = 1 + assumed.example_tokens / TILE / 2
    tiles = math.ceil(tokens / TILE * seen)
    return micro, ranks, tokens, math.ceil(tokens * ANSWER_SHARE), tiles


def step_flops(job: Job, remat: str, ranks: int) -> tuple[float, float]:
    """FLOPs of a step over all devices: useful ones, and all with what is computed again.

    Useful is 2 FLOPs a weight and distinct token forward and as many backward (twice as many
    with gradients of the weights), the same for the head on answer tokens, and attention's
    products in live tiles.
    """
    config = job.config
    rows = job.microbatches * job.rows * ranks
    passes = 2 if job.lora is not None else 3
    body = 2.0 * config.body_parameters * rows * job.tokens
    head = 2.0 * config.d_model * config.vocab_size * rows * job.answers
    tile = 4.0 * TILE**2 * config.head_count * config.head_dim * config.layer_count
    attention = tile * rows * job.tiles
    useful = passes * (body + head) + 3 * attention
    again = attention / 2 + (head if job.lora is None else 0)
    again += {"full": body + attention, "attention": attention}.get(remat, 0)
    reference = body + head + attention if job.live_reference else 0.0
    return useful + reference, useful + reference + again


def meshes(config: DecoderConfig, count: int) -> list[tuple[int, int, int]]:
    """Ways to arrange devices: (data, fsdp, tensor); tensor divides heads, MLP and vocabulary."""
    found = []
    for tensor in (1, 2, 4, 8):
        sizes = (config.head_count, config.kv_head_count, config.mlp_dim, config.vocab_size)
        if count % tensor or any(size % tensor for size in sizes):
            continue
        rest = count // tensor
        found += [(rest // f, f, tensor) for f in range(1, rest + 1) if rest % f == 0]
    return found


def with_mesh(recipe: Recipe, mesh: tuple[int, int, int], tokens: int | None = None) -> Recipe:
    """The recipe on another mesh, and with another size of micro-batch."""
    section = recipe.mesh.model_copy(
        update=dict(zip(("data", "fsdp", "tensor"), mesh, strict=True))
    )
    train = recipe.train.model_copy(update={"microbatch_tokens": tokens} if tokens else {})
    return recipe.model_copy(update={"mesh": section, "train": train})


def make_plan(recipe: Recipe, device: Device, count: int, assumed: Assumed) -> dict[str, Any]:
    """Estimate a run, and how else it could be laid out.

    Args:
        recipe: The run's settings.
        device: What it runs on.
        count: How many of them.
        assumed: What the configuration does not say.
    """
    config, lora = model_shape(recipe.model.path), lora_of(recipe)
    limit = memory_limit(recipe, device)
    live = reference_mode(recipe, build_objective(recipe)) in ("live", "moving")

    def job_on(other: Recipe) -> Job:
        sizes = step_sizes(other, assumed)
        return job_of(other, config, lora, sizes, live=live, limit=limit)

    options = [
        best_on(recipe, mesh, job_on, device) for mesh in meshes(config, count) or [(count, 1, 1)]
    ]
    recipe = arranged(recipe, options, count)
    job = job_on(recipe)
    verdict = settle(recipe, job, device)
    base, adapter = parameter_counts(config, lora)
    longest = (2 if recipe.method == "dpo" else 1) * recipe.data.max_length
    return {
        "method": recipe.method,
        "model": {
            "name": recipe.model.path,
            "parameters": base,
            "trainable": base if lora is None else adapter,
        },
        "device": {
            "name": device.name,
            "count": count,
            "memory_gib": device.memory / GIB,
            "limit_gib": limit / GIB,
        },
        "step": {
            "batch_size": recipe.train.batch_size,
            "example_tokens": assumed.example_tokens,
            "microbatches": job.microbatches,
            "row_tokens": job.tokens,
            "head_chunk": job.chunk,
            "mesh": recipe.mesh.model_dump(),
        },
        "memory_gib": memory_table(verdict, device),
        "policies": [policy_line(job, remat, device, limit) for remat in REMAT],
        "remat": verdict.remat,
        "fits": verdict.fits,
        "reason": verdict.reason,
        "would_fit": [] if verdict.fits else ways_out(recipe, job, device, longest),
        "meshes": options,
        "time": time_of(recipe, job, verdict.remat, device, assumed),
    }


def arranged(recipe: Recipe, options: list[dict[str, Any]], count: int) -> Recipe:
    """The recipe on its own mesh; if it names none on the first that fits, or comes nearest to it.

    Raises:
        UsageError: The recipe's mesh has more devices than there are.
    """
    given = (recipe.mesh.data, recipe.mesh.fsdp, recipe.mesh.tensor)
    if math.prod(given) > count:
        raise UsageError(f"mesh {' × '.join(map(str, given))} needs more than {count} devices")
    if math.prod(given) > 1 or count == 1:
        return recipe
    fitting = [option for option in options if option["fits"]]
    chosen = fitting[0] if fitting else min(options, key=lambda option: option["peak_gib"])
    return with_mesh(recipe, (chosen["data"], chosen["fsdp"], chosen["tensor"]))


def memory_table(verdict: Verdict, device: Device) -> dict[str, float]:
    """Every part of a device's memory in GiB, and the peak."""
    parts = {name: size / GIB for name, size in vars(verdict.size).items()}
    return parts | {"runtime": RUNTIME[device.kind] / GIB, "peak": verdict.total / GIB}


def policy_line(job: Job, remat: str, device: Device, limit: int) -> dict[str, Any]:
    """What a step takes under one policy."""
    size, total = total_bytes(job, remat, device)
    return {
        "remat": remat,
        "activations_gib": size.activations / GIB,
        "peak_gib": total / GIB,
        "fits": total <= limit,
    }


def best_on(
    recipe: Recipe,
    mesh: tuple[int, int, int],
    job_on: Callable[[Recipe], Job],
    device: Device,
) -> dict[str, Any]:
    """The largest micro-batch that fits on a mesh: the recipe's own size, or a halved one."""
    tokens = recipe.train.microbatch_tokens
    while True:
        other = with_mesh(recipe, mesh, tokens)
        job = job_on(other)
        verdict = settle(other, job, device)
        if verdict.fits or tokens // 2 < recipe.data.max_length:
            break
        tokens //= 2
    return {
        **dict(zip(("data", "fsdp", "tensor"), mesh, strict=True)),
        "row_tokens": job.tokens,
        "microbatches": job.microbatches,
        "remat": verdict.remat,
        "peak_gib": verdict.total / GIB,
        "fits": verdict.fits,
    }


def time_of(
    recipe: Recipe, job: Job, remat: str, device: Device, assumed: Assumed
) -> dict[str, float | None]:
    """Time of a step from its FLOPs, the device's rate and the assumed efficiency."""
    ranks = recipe.mesh.data * recipe.mesh.fsdp
    devices = ranks * recipe.mesh.tensor
    useful, done = step_flops(job, remat, ranks)
    rate = device.flops * (FLOAT32_RATE[device.kind] if recipe.model.dtype == "float32" else 1.0)
    seconds = done / (rate * devices * assumed.efficiency)
    # The length of an epoch lies in the rows, which are not read.
    steps = recipe.train.steps or (None if recipe.train.epochs else 1000)
    tokens = recipe.train.batch_size * assumed.example_tokens
    return {
        "useful_tflop_a_step": useful / 1e12,
        "tflop_a_step": done / 1e12,
        "tflops_a_device": rate / 1e12,
        "efficiency": assumed.efficiency,
        "seconds_a_step": seconds,
        "tokens_per_s": tokens / seconds,
        "examples_per_s": recipe.train.batch_size / seconds,
        "steps": steps,
        "hours": steps * seconds / 3600 if steps else None,
    }
