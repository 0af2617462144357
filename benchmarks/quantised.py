# SPDX-License-Identifier: Apache-2.0
"""Quantised bases against the float32 base: log-probs, memory, time of a DPO step.

    .venv/bin/python -m benchmarks.quantised                        nf4, a Markdown table
    .venv/bin/python -m benchmarks.quantised --schemes nf4,int8 --steps 3

Log-probs are those of the answers in the first batch of the packaged pairs, token by token, base
alone; steps are the trainer's own on that batch (the first one, with its compilation, left out),
all bases in this process, in turns. Loading happens in a process of its own for each base: the
growth of its peak resident set from before the weights are read.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from alignax.cli.quickstart import ASSETS
from alignax.cli.setup import Setup, prepare
from alignax.cli.training import first_state
from alignax.data.pipeline import step_batches
from alignax.models.footprint import base_bytes
from alignax.models.weights import load_model, resolve_model
from alignax.recipe import load_recipe
from alignax.train.forward import answer_logps
from alignax.train.optimizer import build_optimizer, build_schedule
from alignax.train.reference import gather_cached
from alignax.train.step import ReferencePlan, build_train_step

MIB = 2**20


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--schemes", default="nf4", help="comma list of model.quantize")
    parser.add_argument("--steps", type=int, default=2, help="timed steps")
    parser.add_argument("--batch-size", type=int, default=8, help="pairs a step")
    parser.add_argument("--load", help=argparse.SUPPRESS)
    return parser.parse_args()


class Base(NamedTuple):
    """A run's setup on one base, its first batch and its log-probs."""

    setup: Setup
    update: Callable[[], float]
    logps: np.ndarray


def build(options: argparse.Namespace, scheme: str) -> Base:
    """Prepare a run, score its first batch and compile its step."""
    recipe = load_recipe(
        None,
        {
            "model": options.model, "data": str(ASSETS / "quickstart_train.jsonl"),
            "output": "runs/never-written", "data.eval_fraction": 0, "lora.dropout": 0,
            "train.batch_size": options.batch_size, "train.steps": options.steps + 1,
            "model.quantize": scheme,
        },
    )  # fmt: skip
    setup = prepare(recipe)
    _, host = next(iter(step_batches(setup.train, setup.plan)))
    schedule = build_schedule(recipe.optimizer, setup.plan.steps)
    optimizer = build_optimizer(recipe.optimizer, schedule)
    state = first_state(setup, optimizer)
    _, frozen = setup.network.part(setup.start)
    plan = ReferencePlan("cached")
    step = build_train_step(setup.network, setup.objective, optimizer, schedule, plan, state)
    table = np.full((len(setup.train), 2), -100.0, np.float32)
    cached = {"reference": gather_cached(table, np.asarray(host.example))}
    held = [state]

    def update() -> float:
        began = time.perf_counter()
        held[0], metrics = step(held[0], frozen, None, host, cached)
        jax.block_until_ready(metrics)
        return time.perf_counter() - began

    score = jax.jit(
        lambda weights, batch: jax.lax.map(
            lambda micro: answer_logps(setup.network, weights, micro, adapter=False).token_logp,
            batch,
        )
    )
    logps = np.asarray(score(setup.start, host))
    update()
    return Base(setup, update, logps)


def loading(options: argparse.Namespace, scheme: str) -> float:
    """MiB by which the peak resident set of a fresh process grows while it loads the base."""
    command = [sys.executable, "-m", "benchmarks.quantised", "--model", options.model]
    done = subprocess.run(
        [*command, "--load", scheme], check=True, capture_output=True, text=True, timeout=900
    )
    return json.loads(done.stdout)


def load(model: str, scheme: str) -> None:
    """Load, and print what the peak grew by in MiB."""
    path = resolve_model(model)
    jax.devices()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    load_model(path, quantize=scheme)
    print(json.dumps((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024))


def main() -> None:
    """Measure and print the table."""
    options = parse()
    if options.load:
        load(options.model, options.load)
        return
    schemes = ["none", *options.schemes.split(",")]
    peaks = {scheme: loading(options, scheme) for scheme in schemes}
    bases = {scheme: build(options, scheme) for scheme in schemes}
    times: dict[str, list[float]] = {scheme: [] for scheme in schemes}
    for _ in range(options.steps):
        for scheme in schemes:
            times[scheme].append(bases[scheme].update())
    plain = bases["none"].logps
    used = plain != 0
    print(f"{int(used.sum())} answer tokens, mean log-prob {plain[used].mean():.4f}\n")
    print(
        "| model.quantize | bytes a weight | projections MiB | base MiB | loading MiB | "
        "mean change of a log-prob | mean of its size | s a step |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    for scheme in schemes:
        print(row_of(scheme, bases[scheme], plain, used, peaks[scheme], min(times[scheme])))


def row_of(
    scheme: str, base: Base, plain: np.ndarray, used: np.ndarray, peak: float, seconds: float
) -> str:
    """Write one base's figures."""
    loaded: Any = base.setup.policy.loaded
    config, held = loaded.config, loaded.quantised
    weights = config.layer_count * sum(i * o for i, o in config.projections.values())
    size = 4 * weights if held is None else held.bytes
    change = (base.logps - plain)[used]
    return (
        f"| {scheme} | {size / weights:.4f} | {size / MIB:.1f} | "
        f"{base_bytes(config, 'float32', scheme) / MIB:.1f} | {peak:.0f} | {change.mean():+.4f} | "
        f"{np.abs(change).mean():.4f} | {seconds:.2f} |"
    )


if __name__ == "__main__":
    main()
