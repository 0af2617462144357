# SPDX-License-Identifier: Apache-2.0
"""Compare the memory estimate of `alignax plan` with what training steps take on this machine.

    .venv/bin/python -m benchmarks.memory                    all cases, a table
    .venv/bin/python -m benchmarks.memory --case 'LoRA, 2048 tokens, dots'

Every case runs in a process of its own: random weights of SmolLM2-135M's shape, packed rows whose
lengths are those of HH-RLHF (112 + 38 + 48 tokens on average), two steps of one micro-batch.
Measured is the growth of the peak resident set, from before the model is built until after the
second step; beside it, what the compiler says of its own temporary memory.
"""

import argparse
import json
import resource
import subprocess
import sys
from typing import Any, NamedTuple

import jax
import numpy as np

from alignax.cli.fitting import job_of, memory_limit, this_device
from alignax.cli.known import RUNTIME, SHAPES
from alignax.data.plan import plan_epochs
from alignax.models.config import DecoderConfig
from alignax.models.footprint import footprint
from alignax.models.lora import LoraSpec
from alignax.recipe import build_recipe
from benchmarks.random_step import RandomPairs, ready

MIB = 2**20
MEAN, DEVIATION = (112, 38, 48), (40, 12, 16)
TINY = DecoderConfig("llama", 256, 64, 128, 30, 4, 2, 16, tie_embeddings=True)


class Case(NamedTuple):
    """What is trained, on how many tokens, with which policy."""

    tokens: int
    remat: str
    full: bool = False
    config: DecoderConfig = SHAPES["smollm2-135m"]


CASES = {
    "runtime alone (tiny model)": Case(512, "dots", config=TINY),
    "LoRA, 2048 tokens, dots": Case(2048, "dots"),
    "LoRA, 4096 tokens, dots": Case(4096, "dots"),
    "LoRA, 4096 tokens, full": Case(4096, "full"),
    "all weights, 2048 tokens, dots": Case(2048, "dots", full=True),
}


def lengths_of(tokens: int) -> np.ndarray:
    """Draw the [n, 3] lengths of as many pairs as fit one micro-batch."""
    drawn = np.random.default_rng(0).normal(MEAN, DEVIATION, (tokens, 3)).clip(8).astype(int)
    return drawn[: int((drawn.sum(1).cumsum() <= tokens).sum())]


def peak() -> int:
    """Peak resident bytes of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(case: Case) -> dict[str, Any]:
    """Build, compile and train two steps; compare with the estimate."""
    pairs = RandomPairs(lengths_of(case.tokens), case.config.vocab_size)
    recipe = build_recipe(
        {"lora.enabled": not case.full, "train.microbatch_tokens": case.tokens,
         "train.batch_size": len(pairs.lengths), "train.steps": 2}
    )  # fmt: skip
    plan = plan_epochs(
        pairs.lengths, batch_size=len(pairs.lengths), steps=2, microbatches=1,
        microbatch_tokens=case.tokens,
    )  # fmt: skip
    lora = None if case.full else LoraSpec(16, 32.0, 0.05, ("q_proj", "v_proj"))
    device = this_device()
    g, _, t, a, _, _, m = plan.shape
    job = job_of(
        recipe, case.config, lora, (g, 1, t, a, m), live=case.full,
        limit=memory_limit(recipe, device),
    )  # fmt: skip
    size = footprint(job, case.remat)
    start = peak()
    step, state, rest, _ = ready(case.config, lora, pairs, plan, remat=case.remat, chunk=job.chunk)
    compiled = step.lower(state, *rest).compile()
    for _ in range(2):
        state, metrics = compiled(state, *rest)
        jax.block_until_ready(metrics)
    growth = peak() - start
    assert float(metrics["grad_norm"]) > 0
    told = compiled.memory_analysis()
    return {
        "tokens": t,
        "measured_mib": growth / MIB,
        "estimate_mib": (size.peak + RUNTIME[device.kind]) / MIB,
        "ratio": (size.peak + RUNTIME[device.kind]) / growth,
        "compiler_temporary_mib": told.temp_size_in_bytes / MIB,
        "compiler_arguments_mib": told.argument_size_in_bytes / MIB,
        "estimated_temporary_mib": temporary(size) / MIB,
        "parts_mib": {name: part / MIB for name, part in vars(size).items()},
    }


def temporary(size: Any) -> int:
    """The part of a footprint that the compiler counts as temporary."""
    return size.gradients + size.activations + max(size.layer, size.head)


def main() -> None:
    """Run one case here, or all in processes of their own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=CASES)
    case = parser.parse_args().case
    if case is not None:
        print(json.dumps(measure(CASES[case])))
        return
    print("| case | measured MiB | estimate MiB | ratio |\n|---|---|---|---|")
    for name in CASES:
        command = [sys.executable, "-m", "benchmarks.memory", "--case", name]
        values = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        print(
            f"| {name} | {values['measured_mib']:.0f} | {values['estimate_mib']:.0f} "
            f"| {values['ratio']:.2f} |"
        )


if __name__ == "__main__":
    main()
