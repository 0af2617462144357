# SPDX-License-Identifier: Apache-2.0
"""Time training steps of alignax on this machine, in this process.

    make bench                                   the packaged pairs
    .venv/bin/python -m benchmarks.step --data pairs.jsonl --steps 5 --reference live

All parts are the trainer's own: loading, encoding, packing with read-ahead, the reference pass and
the compiled step. The first step is reported apart. Prints JSON; every figure of a step is a list
(the first step included), so that other scripts can add up what they need.
"""

import time

BEGAN = time.perf_counter()

import argparse  # noqa: E402
import dataclasses  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import resource  # noqa: E402
import statistics  # noqa: E402
from functools import partial  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import jax  # noqa: E402

from alignax.cli.passes import row_tables  # noqa: E402
from alignax.cli.quickstart import ASSETS  # noqa: E402
from alignax.cli.setup import Setup, prepare  # noqa: E402
from alignax.cli.training import first_state, yardstick  # noqa: E402
from alignax.data.pipeline import step_batches  # noqa: E402
from alignax.models.sharding import place_batch  # noqa: E402
from alignax.recipe import Recipe, load_recipe  # noqa: E402
from alignax.train.compilations import Compilations  # noqa: E402
from alignax.train.feed import Feed  # noqa: E402
from alignax.train.loop import Speed, measure_peak_flops  # noqa: E402
from alignax.train.optimizer import build_optimizer, build_schedule  # noqa: E402
from alignax.train.step import build_train_step, step_values  # noqa: E402

GEMM = 2048
"""Side of the square float32 product that the useful FLOPs are measured against."""


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--data", default=str(ASSETS / "quickstart_train.jsonl"))
    parser.add_argument("--format", default="auto", help="row format; trl keeps texts as they are")
    parser.add_argument("--steps", type=int, default=5, help="timed steps after the first")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--max-length", type=int, default=512)
    parser.add_argument("--dropout", type=float, default=0.05)
    parser.add_argument("--full", action="store_true", help="train all weights")
    parser.add_argument("--reference", choices=("cached", "live"), default="cached")
    parser.add_argument("--out", type=Path, help="also write the JSON here")
    return parser.parse_args()


def recipe_of(options: argparse.Namespace) -> Recipe:
    """Turn the command line into the recipe of a run."""
    return load_recipe(
        None,
        {
            "model": options.model, "data": options.data, "output": "runs/never-written",
            "data.format": options.format,
            "data.max_length": options.max_length, "data.eval_fraction": 0,
            "train.batch_size": options.batch_size, "train.steps": options.steps + 1,
            "lora.enabled": not options.full, "lora.dropout": options.dropout,
            "reference.source": "cache" if options.reference == "cached" else "frozen_copy",
        },
    )  # fmt: skip


def measure(setup: Setup) -> dict[str, Any]:
    """Do the steps of a run; see ``main`` for what is measured."""
    compilations = Compilations()
    started = time.perf_counter()
    tables = row_tables(setup)
    reference_s = time.perf_counter() - started
    schedule = build_schedule(setup.recipe.optimizer, setup.plan.steps)
    optimizer = build_optimizer(setup.recipe.optimizer, schedule)
    _, frozen = setup.network.part(setup.start)
    state = first_state(setup, optimizer)
    step = build_train_step(
        setup.network, setup.objective, optimizer, schedule, setup.reference_plan, state
    )
    live = setup.reference if setup.reference_plan.mode == "live" else None
    result: dict[str, Any] = {
        "reference_s": reference_s, "seconds": [], "wait_seconds": [], "losses": [],
        "pairs": [], "tokens": [], "answer_tokens": [],
    }  # fmt: skip
    batches, program = step_batches(setup.train, setup.plan), None
    place = partial(place_batch, mesh=setup.policy.mesh)
    feed = Feed(batches, place, tables, batches.get_state)
    with feed.open():
        for fed in feed:
            started = time.perf_counter() - fed.waited
            arguments = (state, frozen, live, fed.placed, fed.cached)
            if program is None:
                program = step.lower(*arguments).compile()
                result["compile_s"] = time.perf_counter() - started
            state, metrics = program(*arguments)
            loss = step_values(metrics)["loss"]
            if not fed.index:
                result["first_step_at_s"] = time.perf_counter() - BEGAN
                result["compilations"] = compilations.summary()
            result["seconds"].append(time.perf_counter() - started)
            result["wait_seconds"].append(fed.waited)
            result["losses"].append(loss)
            result["pairs"].append(int((fed.batch.example >= 0).sum()))
            result["tokens"].append(int((fed.batch.segments > 0).sum()))
            result["answer_tokens"].append(int(fed.batch.answer_count.sum()))
    batches.close()
    # Measured last, so that it is part of neither the peak nor the time to the first step.
    result["peak_rss_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    compilations.close()
    result["late_programs"] = len(compilations.programs) - result["compilations"]["programs"]
    return result


def summary(result: dict[str, Any], speed: Speed) -> dict[str, float]:
    """Add the steps after the first up."""
    seconds, pairs, tokens, answers, waits = (
        result[name][1:] for name in ("seconds", "pairs", "tokens", "answer_tokens", "wait_seconds")
    )
    spent = sum(seconds)
    useful = sum(tokens) * speed.body_flops + sum(answers) * speed.head_flops
    return {
        "median_step_s": statistics.median(seconds),
        "pairs_per_s": sum(pairs) / spent,
        "tokens_per_s": sum(tokens) / spent,
        "data_wait_share": sum(waits) / spent,
        "useful_flop_share": useful / (spent * speed.peak_flops),
    }


def main() -> None:
    """Time the steps."""
    options = parse()
    setup = prepare(recipe_of(options))
    result = measure(setup)
    speed = dataclasses.replace(yardstick(setup), peak_flops=measure_peak_flops(GEMM, 5))
    result |= summary(result, speed) | {
        "shape": setup.plan.shape._asdict(),
        "fill": setup.plan.fill,
        "set_tokens": int(setup.train.lengths.sum()),
        "body_flops": speed.body_flops,
        "head_flops": speed.head_flops,
        "gemm_gflops": speed.peak_flops / 1e9,
        "loadavg": os.getloadavg(),
        "jax": jax.__version__,
    }
    text = json.dumps(result, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
