# SPDX-License-Identifier: Apache-2.0
"""Recipe and sizes → what a step takes, whether it fits, and the policy that makes it fit.

`alignax plan` asks from the configuration alone, `sft` and `dpo` with the layout of their rows.
"""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import jax

from alignax.cli.known import DEVICES, FLOAT32_RATE, GIB, RUNTIME, USABLE, Device
from alignax.errors import RunError
from alignax.losses.chunks import places
from alignax.models.config import DecoderConfig
from alignax.models.footprint import Footprint, Job, footprint
from alignax.models.lora import LoraSpec
from alignax.recipe import Recipe
from alignax.shapes import TILE

ORDER = {"cpu": ("dots", "full"), "gpu": ("none", "dots", "full"), "tpu": ("none", "dots", "full")}
"""Policies by their time, quickest first. On a CPU ``none`` is no quicker than ``dots``: what it
need not compute again it writes and reads. ``attention`` keeps more than ``dots`` and computes more
again, so it is never chosen."""

LOGITS = (64 * 2**20, 2**30)
"""Least and most bytes of a chunk of logits; between them 1/256 of what a device may use."""


@dataclass(frozen=True)
class Verdict:
    """Which policy a run uses, and whether it fits.

    Attributes:
        remat: The policy.
        size: Its footprint on one device.
        total: Bytes on one device with the runtime.
        limit: Bytes that the run may take.
        reason: One sentence for the log.
    """

    remat: str
    size: Footprint
    total: int
    limit: int
    reason: str

    @property
    def fits(self) -> bool:
        """Whether the estimate is within the limit."""
        return self.total <= self.limit


def machine_memory() -> int:
    """Bytes of RAM of this machine, or of its control group if that is less."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        path = Path(file)
        text = path.read_text(encoding="ascii").strip() if path.exists() else "max"
        sizes += [int(text)] if text.isdigit() else []
    return min(sizes)


def this_device(flops: float = 0.0) -> Device:
    """Describe the devices that JAX sees; those of a CPU share its memory and its cores.

    Args:
        flops: Measured float32 FLOPs a second of one device; 0 where time is of no interest.
    """
    first, count = jax.devices()[0], jax.device_count()
    if first.platform == "cpu":
        return Device("this machine", "cpu", machine_memory() // count, flops / count, count)
    kind = "tpu" if first.platform == "tpu" else "gpu"
    # The runtime's limit is what may be used, which ``USABLE`` takes from the whole memory.
    allowed = (first.memory_stats() or {}).get("bytes_limit", 0) / USABLE[kind]
    rate = flops / FLOAT32_RATE[kind]
    return Device(first.device_kind, kind, int(allowed) or machine_memory(), rate, count)


def memory_limit(recipe: Recipe, device: Device) -> int:
    """Bytes that a run may take on one device."""
    asked = recipe.train.memory_limit_gib
    return int(asked * GIB) if asked is not None else int(device.memory * USABLE[device.kind])


def total_bytes(job: Job, remat: str, device: Device) -> tuple[Footprint, int]:
    """The footprint under a policy, and its peak with the runtime of the device."""
    size = footprint(job, remat)
    return size, size.peak + RUNTIME[device.kind]


def settle(recipe: Recipe, job: Job, device: Device) -> Verdict:
    """Take the recipe's policy, or with ``auto`` the quickest one that fits (else ``full``)."""
    limit = memory_limit(recipe, device)
    asked = recipe.train.remat
    wanted = ORDER[device.kind] if asked == "auto" else (asked,)
    tried: list[tuple[str, Footprint, int]] = []
    for policy in wanted:
        tried.append((policy, *total_bytes(job, policy, device)))
        if tried[-1][-1] <= limit:
            break
    remat, size, total = tried[-1]
    how = "as asked" if asked != "auto" else "the quickest that fits" if total <= limit else "least"
    seen = ", ".join(f"{policy} {peak / GIB:.2f} GiB" for policy, _, peak in tried)
    reason = f"train.remat {remat} ({how}): {seen} of {limit / GIB:.2f} GiB a device"
    return Verdict(remat, size, total, limit, reason)


def with_crowd(recipe: Recipe, job: Job, device: Device, variants: int, at_once: int | None) -> Job:
    """The same step for several variants.

    Without a wish, a CPU computes one after another, which is as quick there and takes the least
    memory; others take as many together as fit, by halves.
    """
    job = replace(job, variants=variants, at_once=min(at_once or variants, variants))
    if at_once is not None:
        return job
    if device.kind == "cpu":
        return replace(job, at_once=1)
    while job.at_once > 1 and not settle(recipe, job, device).fits:
        job = replace(job, at_once=math.ceil(job.at_once / 2))
    return job


def smaller(job: Job, tokens: int) -> Job:
    """The same step in micro-batches of fewer tokens."""
    scale = tokens / job.tokens
    return replace(
        job,
        tokens=tokens,
        answers=math.ceil(job.answers * scale),
        tiles=math.ceil(job.tiles * scale),
        microbatches=math.ceil(job.microbatches / scale),
    )


def ways_out(recipe: Recipe, job: Job, device: Device, longest: int) -> list[str]:
    """Name changes of which each makes the run fit.

    Args:
        recipe: The run's settings.
        job: The step that does not fit.
        device: What it should run on.
        longest: Tokens of the longest example, below which no micro-batch can go.
    """
    limit = memory_limit(recipe, device)

    def fits(other: Job, remat: str = "full") -> bool:
        return total_bytes(other, remat, device)[1] <= limit

    found = []
    if recipe.train.remat not in ("auto", "full") and fits(job):
        found.append("train.remat full")
    halves = [t for t in _halves(job.tokens, longest) if fits(smaller(job, t))]
    if halves:
        found.append(f"train.microbatch_tokens {halves[0]} with train.remat full")
    if job.dtype == "float32" and fits(replace(job, dtype="bfloat16")):
        found.append("model.dtype bfloat16 with train.remat full")
    quantisable = job.lora is not None and job.config.experts is None and job.quantize == "none"
    if quantisable and fits(replace(job, quantize="nf4")):
        found.append("model.quantize nf4 with train.remat full")
    if job.lora is None:
        lora = LoraSpec(
            recipe.lora.rank, recipe.lora.alpha, recipe.lora.dropout, ("q_proj", "v_proj")
        )
        if fits(replace(job, lora=lora)):
            found.append("lora.enabled true with train.remat full")
    for parts in (2, 4, 8, 16, 32, 64):
        split = replace(job, fsdp=job.fsdp * parts)
        if fits(split):
            count = recipe.mesh.data * split.fsdp * split.tensor
            found.append(f"mesh.fsdp {split.fsdp} on {count} such devices, with train.remat full")
            break
    found += _larger_devices(job, device)
    return found


def _halves(tokens: int, longest: int) -> Iterator[int]:
    """Ever smaller multiples of a tile that still hold the longest example."""
    least = math.ceil(longest / TILE) * TILE
    while tokens // 2 >= least:
        tokens = math.ceil(tokens // 2 / TILE) * TILE
        yield tokens


def _larger_devices(job: Job, device: Device) -> list[str]:
    """The smallest known GPU that is larger and on which the step fits."""
    for other in sorted(DEVICES.values(), key=lambda d: d.memory):
        if other.kind != "gpu" or other.memory <= device.memory:
            continue
        if total_bytes(job, "full", other)[1] <= other.memory * USABLE[other.kind]:
            return [f"a device with {other.memory // GIB} GiB (such as {other.name})"]
    return []


def require_fit(recipe: Recipe, job: Job, device: Device, longest: int) -> Verdict:
    """Choose the policy and refuse a run that cannot fit.

    Raises:
        RunError: The estimate is above the limit and ``train.memory_check`` is on.
    """
    verdict = settle(recipe, job, device)
    if verdict.fits or not recipe.train.memory_check:
        return verdict
    raise no_room(verdict, ways_out(recipe, job, device, longest), device)


def no_room(verdict: Verdict, ways: list[str], device: Device) -> RunError:
    """Say what is missing and what would fit."""
    parts = {name: size / GIB for name, size in vars(verdict.size).items() if size}
    return RunError(
        f"this run does not fit: it needs about {verdict.total / GIB:.2f} GiB a device "
        f"(train.remat {verdict.remat}), {device.name} allows {verdict.limit / GIB:.2f} GiB",
        problems=[
            "of which " + ", ".join(f"{name} {gib:.2f}" for name, gib in parts.items()),
            *(f"would fit: {way}" for way in ways),
        ],
        hint="`alignax plan` shows the estimate; train.memory_limit_gib sets the limit, "
        "train.memory_check false runs in spite of it",
    )


def job_of(
    recipe: Recipe,
    config: DecoderConfig,
    lora: LoraSpec | None,
    sizes: tuple[int, int, int, int, int],
    *,
    live: bool,
    limit: int,
) -> Job:
    """Describe a step.

    Args:
        recipe: The run's settings.
        config: Shape of the decoder.
        lora: The adapter that is trained; None: all weights.
        sizes: Micro-batches, rows of each over all devices, and a row's tokens, answer places and
            tiles.
        live: Whether the reference is computed in the step.
        limit: Bytes of a device.
    """
    microbatches, rows, tokens, answers, tiles = sizes
    rows_here = math.ceil(rows / (recipe.mesh.data * recipe.mesh.fsdp))
    logits = min(max(limit // 256, LOGITS[0]), LOGITS[1])
    return Job(
        config=config,
        lora=lora,
        dtype=recipe.model.dtype,
        rows=rows_here,
        tokens=tokens,
        answers=answers,
        tiles=tiles,
        microbatches=microbatches,
        live_reference=live,
        chunk=places(rows_here, config.vocab_size // recipe.mesh.tensor, logits),
        fsdp=recipe.mesh.fsdp,
        tensor=recipe.mesh.tensor,
        quantize=recipe.model.quantize,
    )
