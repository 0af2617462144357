# SPDX-License-Identifier: Apache-2.0
"""Compare one sweep of K variants with K separate runs: seconds and peak memory of the processes.

    .venv/bin/python -m benchmarks.sweep --variants 8

Everything is the command line's own: loading, audit, reference pass, self-test, steps, evaluations
before and after, export of every adapter, report. The programs are compiled afresh on both sides
for the first run; of the separate runs the first computes the reference and compiles, and the
second finds both on disk, as those after it would: K runs take ``first + (K - 1) * second``.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ASSETS = Path(__file__).resolve().parents[1] / "src" / "alignax" / "assets"
BETAS = (0.05, 0.1, 0.2, 0.5)
RATES = (1e-4, 3e-4)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--data", default=str(ASSETS / "quickstart_train.jsonl"))
    parser.add_argument("--eval-data", default=str(ASSETS / "quickstart_eval.jsonl"))
    parser.add_argument("--variants", type=int, default=8, help="2, 4 or 8")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--rows", type=int, default=24, help="rows that the reference pass sees")
    parser.add_argument("--eval-rows", type=int, default=16)
    parser.add_argument("--slice", type=int, help="variants computed together")
    return parser.parse_args()


def shared_words(options: argparse.Namespace) -> list[str]:
    """Flags of both sides."""
    return [
        "--model", options.model, "--data", options.data, "--data.max_rows", str(options.rows),
        "--data.eval_path", options.eval_data, "--data.max_eval_rows", str(options.eval_rows),
        "--train.steps", str(options.steps), "--train.batch_size", str(options.batch_size),
        "--train.eval_steps", str(options.steps),
        "--guards.kl.action", "warn", "--guards.loss.action", "warn",
    ]  # fmt: skip


def timed(words: list[str], cache: Path) -> dict[str, float]:
    """Run one command with a cache folder: seconds, those of processors, GiB at the peak."""
    environment = os.environ | {
        "ALIGNAX_CACHE": str(cache),
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    }
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "alignax.cli.main", *words], env=environment,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"failed with {process.returncode}: alignax {' '.join(words)}")
    return {
        "seconds": time.perf_counter() - started,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "rss_gib": usage.ru_maxrss / 2**20,
    }


def grid_words(count: int) -> list[str]:
    """The grid of so many variants: β, and two learning rates where they do not suffice."""
    rates = RATES[: 2 if count > len(BETAS) else 1]
    betas = BETAS[: count // len(rates)]
    return [
        "--grid", f"loss.beta={','.join(map(str, betas))}",
        *(["--grid", f"optimizer.learning_rate={','.join(map(str, rates))}"] if len(rates) > 1
          else ["--optimizer.learning_rate", str(rates[0])]),
    ]  # fmt: skip


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run a first separate run, the sweep, and a second separate run."""
    shared = shared_words(options)
    single = ["dpo", *shared, "--sample.prompts", "0", "--export.merged", "false"]
    sweep = ["sweep", *shared, "--export", "all", *grid_words(options.variants)]
    if options.slice:
        sweep += ["--slice", str(options.slice)]
    apart, together = folder / "cache-apart", folder / "cache-together"
    rate = ["--optimizer.learning_rate", str(RATES[0])]
    runs = [
        timed([*single, *rate, "--loss.beta", str(BETAS[0]), "--output", f"{folder}/one"], apart),
        timed([*sweep, "--output", f"{folder}/sweep"], together),
        timed([*single, *rate, "--loss.beta", str(BETAS[1]), "--output", f"{folder}/two"], apart),
    ]
    first, swept, second = runs
    found = json.loads((folder / "sweep" / "sweep.json").read_text(encoding="utf-8"))
    apart_by = {
        unit: first[unit] + (options.variants - 1) * second[unit]
        for unit in ("seconds", "cpu_seconds")
    }
    return {
        "variants": options.variants,
        "together": found["together"],
        "steps": options.steps,
        "first": first,
        "second": second,
        "sweep": swept,
        "separate": apart_by,
        "time_ratio": {unit: swept[unit] / apart for unit, apart in apart_by.items()},
        "memory_ratio": swept["rss_gib"] / max(first["rss_gib"], second["rss_gib"]),
        "sweep_step_seconds": found["step_seconds"],
        "pair_variants_per_s": options.variants
        * options.steps
        * options.batch_size
        / found["step_seconds"],
    }


def main() -> None:
    """Print the comparison as JSON."""
    options = parse()
    with tempfile.TemporaryDirectory(prefix="sweep-bench-") as folder:
        print(json.dumps(measure(options, Path(folder)), indent=1))


if __name__ == "__main__":
    main()
