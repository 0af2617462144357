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
import optax

from alignax.data.pack import pack
from alignax.data.plan import plan_epochs, row_tiles
from alignax.losses import build_loss
from alignax.models.config import DecoderConfig
from alignax.models.decoder import random_model
from alignax.models.lora import LoraSpec, add_lora
from alignax.models.sharding import build_mesh, commit, place_batch, place_model
from alignax.records import EncodedExample
from alignax.train.forward import split_model
from alignax.train.reference import gather_cached
from alignax.train.step import ReferencePlan, build_train_step, init_state, step_values

SMOLLM2 = DecoderConfig("llama", 49152, 576, 1536, 30, 9, 3, 64, tie_embeddings=True)
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


class RandomPairs:
    """Random tokens with the asked lengths, as a data set."""

    def __init__(self, setting: Setting):
        """Draw the lengths of one step's pairs."""
        self._rng = np.random.default_rng(0)
        self._vocab = setting.vocab
        if setting.length is None:
            drawn = [self._rng.gamma(2.0, mean / 2.0, setting.pairs) for mean in HH_MEANS]
            self.lengths = np.clip(np.stack(drawn, axis=1), 4, 400).astype(np.int64)
        else:
            quarter = setting.length // 4
            self.lengths = np.tile([2 * quarter, quarter, quarter], (setting.pairs, 1))

    def __getitem__(self, index: int) -> EncodedExample:
        """Draw the tokens of a pair."""
        prompt, *answers = (
            self._rng.integers(0, self._vocab, n).astype(np.int32) for n in self.lengths[index]
        )
        return EncodedExample(str(index), prompt, tuple(answers), (True, True))


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
    rows = RandomPairs(setting)
    config = dataclasses.replace(SMOLLM2, layer_count=setting.layers, vocab_size=setting.vocab)
    model = random_model(config, seed=0)
    add_lora(model, LoraSpec(16, 32.0, 0.0, ("q_proj", "v_proj")), key=jax.random.key(0))
    mesh = build_mesh(1, 1, 1)
    place_model(model, mesh)
    network, weights = split_model(model, trains="adapter", answers=2)
    plan = plan_epochs(rows.lengths, batch_size=setting.pairs, epochs=1)
    schedule = optax.constant_schedule(1e-5)
    optimizer = optax.adamw(schedule)
    trainable, frozen = network.part(weights)
    state = commit(init_state(trainable, optimizer, jax.random.key(0)), mesh)
    step = build_train_step(
        network, build_loss(kind="pair"), optimizer, schedule, ReferencePlan("cached"), state
    )
    batch = pack(rows, plan.step(0), plan.shape)
    # The values do not matter for the time a step takes.
    values = -100.0 * np.ones((setting.pairs, 2), np.float32)
    cached = {"reference": gather_cached(values, batch.example)}
    placed = place_batch((batch, cached), mesh)
    built = reset_peak()
    started = time.perf_counter()
    program = step.lower(state, frozen, None, *placed).compile()
    compile_s = time.perf_counter() - started
    seconds = []
    for _ in range(setting.steps + 1):
        started = time.perf_counter()
        state, metrics = program(state, frozen, None, *placed)
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
