# SPDX-License-Identifier: Apache-2.0
"""One setting of a random SmolLM2-like model and random pairs → time, compile time and memory.

    .venv/bin/python -m benchmarks.point '{"layers": 6, "pairs": 16}'

A process of its own for each setting, so that compiling and peak memory are its own. LoRA of rank
16 on q and v, cached references, float32, the trainer's own packing and step. Prints JSON.
"""

import dataclasses
import json
import resource
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from alignax.cli.known import SHAPES
from alignax.data.plan import plan_epochs, row_tiles
from alignax.models.lora import LoraSpec
from alignax.train.step import step_values
from benchmarks.random_step import RandomPairs, ready

HH_MEANS = (112, 38, 48)
"""Mean tokens of prompt and answers in HH-RLHF."""


@dataclass(frozen=True)
class Setting:
    """What varies.

    Attributes:
        layers: Layers of the model.
        vocab: Its vocabulary.
        pairs: Pairs a step.
        length: Tokens of every pair, half of them prompt; None draws lengths like HH-RLHF's.
        steps: Timed steps after the first.
    """

    layers: int = 6
    vocab: int = 49152
    pairs: int = 16
    length: int | None = None
    steps: int = 2


def lengths_of(setting: Setting) -> np.ndarray:
    """Draw the [n, 3] lengths of one step's pairs."""
    if setting.length is not None:
        quarter = setting.length // 4
        return np.tile([2 * quarter, quarter, quarter], (setting.pairs, 1))
    rng = np.random.default_rng(0)
    drawn = [rng.gamma(2.0, mean / 2.0, setting.pairs) for mean in HH_MEANS]
    return np.clip(np.stack(drawn, axis=1), 4, 400).astype(np.int64)


def peak_gib(*, since_reset: bool = False) -> float:
    """Peak resident memory; Linux can also say the peak since ``reset_peak``."""
    status = Path("/proc/self/status")
    if since_reset and status.exists():
        lines = status.read_text(encoding="utf-8").splitlines()
        return next(int(x.split()[1]) for x in lines if x.startswith("VmHWM")) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def reset_peak() -> float:
    """Forget the peak so far, where the system can; returns the memory that is in use now, GiB."""
    refs = Path("/proc/self/clear_refs")
    if refs.exists():
        refs.write_text("5", encoding="utf-8")
    return peak_gib(since_reset=True)


def measure(setting: Setting) -> dict[str, Any]:
    """Do the steps."""
    config = dataclasses.replace(
        SHAPES["smollm2-135m"], layer_count=setting.layers, vocab_size=setting.vocab
    )
    rows = RandomPairs(lengths_of(setting), setting.vocab)
    plan = plan_epochs(rows.lengths, batch_size=setting.pairs, epochs=1)
    step, state, rest, weights = ready(
        config, LoraSpec(16, 32.0, 0.0, ("q_proj", "v_proj")), rows, plan
    )
    built = reset_peak()
    started = time.perf_counter()
    program = step.lower(state, *rest).compile()
    compile_s = time.perf_counter() - started
    seconds = []
    for _ in range(setting.steps + 1):
        started = time.perf_counter()
        state, metrics = program(state, *rest)
        step_values(metrics)
        seconds.append(time.perf_counter() - started)
    median = statistics.median(seconds[1:])
    tokens = int(rows.lengths.sum())
    tiles = sum(len(row_tiles(rows.lengths[row])) for micro in plan.step(0) for row in micro)
    return {
        **dataclasses.asdict(setting),
        "shape": plan.shape._asdict(),
        "step_s": median,
        "compile_s": compile_s,
        "pairs_per_s": setting.pairs / median,
        "us_per_token": 1e6 * median / tokens,
        "tiles_per_token": tiles / tokens,
        "built_gib": built,
        "peak_gib": peak_gib(since_reset=True),
        "weights_gib": sum(leaf.nbytes for leaf in jax.tree.leaves(weights)) / 2**30,
    }


def main() -> None:
    """Measure the setting of the command line."""
    print(json.dumps(measure(Setting(**json.loads(sys.argv[1])))))


if __name__ == "__main__":
    main()
