# SPDX-License-Identifier: Apache-2.0
"""Compare the memory estimate of `alignax plan` with what training steps take on this machine.

    .venv/bin/python benchmarks/memory.py                      all cases, a table
    .venv/bin/python benchmarks/memory.py --case 'LoRA, 2048 tokens, dots'

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
from alignax.data.pack import pack
from alignax.data.plan import plan_epochs
from alignax.losses import build_loss
from alignax.models.config import DecoderConfig
from alignax.models.decoder import random_model
from alignax.models.footprint import footprint
from alignax.models.lora import LoraSpec, add_lora
from alignax.models.sharding import build_mesh, commit, place_batch, place_model
from alignax.recipe import build_recipe
from alignax.records import EncodedExample
from alignax.train.forward import split_model
from alignax.train.optimizer import build_optimizer, build_schedule
from alignax.train.reference import gather_cached
from alignax.train.step import ReferencePlan, build_train_step, init_state

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


class Pairs:
    """Random ids in pairs with the lengths of HH-RLHF."""

    def __init__(self, tokens: int, vocabulary: int):
        """Draw as many pairs as fit one micro-batch."""
        self._rng = np.random.default_rng(0)
        drawn = self._rng.normal(MEAN, DEVIATION, (tokens, 3)).clip(8).astype(int)
        self.lengths = drawn[: int((drawn.sum(1).cumsum() <= tokens).sum())]
        self._vocabulary = vocabulary

    def __getitem__(self, index: int) -> EncodedExample:
        """Make one pair."""
        ids = [
            self._rng.integers(3, self._vocabulary, n).astype(np.int32) for n in self.lengths[index]
        ]
        return EncodedExample(str(index), ids[0], (ids[1], ids[2]), (True, True))


def peak() -> int:
    """Peak resident bytes of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(case: Case) -> dict[str, Any]:
    """Build, compile and train two steps; compare with the estimate."""
    pairs = Pairs(case.tokens, case.config.vocab_size)
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
    compiled, state, rest = compile_step(case, recipe, lora, plan.steps, pairs, plan, job.chunk)
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


def compile_step(
    case: Case, recipe: Any, lora: LoraSpec | None, steps: int, pairs: Pairs, plan: Any, chunk: int
) -> tuple[Any, Any, tuple[Any, ...]]:
    """Make the model and compile the step; returns program, state and the other arguments."""
    mesh = build_mesh(1, 1, 1)
    model = random_model(case.config, seed=0)
    if lora is not None:
        add_lora(model, lora, key=jax.random.key(0))
    place_model(model, mesh)
    network, weights = split_model(
        model, trains="base" if case.full else "adapter", answers=2, remat=case.remat
    )
    del model
    network = network.__class__(**{**vars(network), "chunk": chunk})
    trainable, frozen = network.part(weights)
    schedule = build_schedule(recipe.optimizer, steps)
    optimizer = build_optimizer(recipe.optimizer, schedule)
    state = commit(init_state(trainable, optimizer, jax.random.key(0)), mesh)
    reference = ReferencePlan("live" if case.full else "cached")
    step = build_train_step(network, build_loss(kind="pair"), optimizer, schedule, reference, state)
    batch = pack(pairs, plan.step(0), plan.shape)
    table = (
        None
        if case.full
        else {"reference": gather_cached(np.full((len(pairs.lengths), 2), -100.0), batch.example)}
    )
    placed, cached = place_batch((batch, table), mesh)
    rest = (frozen, weights if case.full else None, placed, cached)
    return step.lower(state, *rest).compile(), state, rest


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
        command = [sys.executable, __file__, "--case", name]
        values = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        print(
            f"| {name} | {values['measured_mib']:.0f} | {values['estimate_mib']:.0f} "
            f"| {values['ratio']:.2f} |"
        )


if __name__ == "__main__":
    main()
