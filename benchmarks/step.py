# SPDX-License-Identifier: Apache-2.0
"""Time training steps and the parts of one on this machine.

    make bench                                   the packaged pairs
    .venv/bin/python benchmarks/step.py --data pairs.jsonl --steps 5

Prints seconds a step (median), pairs and distinct tokens a second, padding, the share of useful
FLOPs of the measured matrix-multiply rate, compile time and peak memory, as JSON.
"""

import argparse
import json
import os
import resource
import statistics
import time

import jax

from alignax.cli.quickstart import ASSETS
from alignax.cli.setup import prepare
from alignax.cli.training import yardstick
from alignax.data.pipeline import step_batches
from alignax.models.sharding import commit, place_batch
from alignax.recipe import load_recipe
from alignax.train.optimizer import build_optimizer, build_schedule
from alignax.train.reference import gather_cached
from alignax.train.step import build_train_step, init_state, step_values


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--data", default=str(ASSETS / "quickstart_train.jsonl"))
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--max-length", type=int, default=512)
    parser.add_argument("--full", action="store_true", help="train all weights")
    parser.add_argument("--reference", choices=("cached", "live"), default="cached")
    return parser.parse_args()


def main() -> None:
    """Time the steps."""
    options = parse()
    recipe = load_recipe(
        None,
        {
            "model": options.model, "data": options.data, "output": "runs/never-written",
            "data.max_length": options.max_length, "data.eval_fraction": 0,
            "train.batch_size": options.batch_size, "train.steps": options.steps + 1,
            "lora.enabled": not options.full,
            "reference.source": "cache" if options.reference == "cached" else "frozen_copy",
        },
    )  # fmt: skip
    setup = prepare(recipe)
    schedule = build_schedule(recipe.optimizer, setup.plan.steps)
    optimizer = build_optimizer(recipe.optimizer, schedule)
    trainable, frozen = setup.network.part(setup.start)
    state = commit(init_state(trainable, optimizer, jax.random.key(0)), setup.policy.mesh)
    step = build_train_step(
        setup.network, setup.objective, optimizer, schedule, setup.reference_plan, state
    )
    cached_mode = setup.reference_plan.mode == "cached"
    # The values do not matter for the time a step takes.
    table = -100.0 * (setup.train.lengths[:, 1:] > 0) if cached_mode else None
    live = None if cached_mode else setup.reference
    speed = yardstick(setup)
    records = []
    for _, batch in step_batches(setup.train, setup.plan):
        cached = None if table is None else {"reference": gather_cached(table, batch.example)}
        started = time.perf_counter()
        placed, values = place_batch((batch, cached), setup.policy.mesh)
        state, metrics = step(state, frozen, live, placed, values)
        step_values(metrics)
        records.append(speed.values(batch, time.perf_counter() - started))
    first, *steady = records
    result = {
        "shape": setup.plan.shape._asdict(),
        "fill": setup.plan.fill,
        "first_step_seconds": first["seconds"],
        **{name: statistics.median(r[name] for r in steady) for name in first},
        "matmul_gflops": speed.peak_flops / 1e9,
        "peak_rss_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "load": os.getloadavg(),
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
