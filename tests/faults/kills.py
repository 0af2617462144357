# SPDX-License-Identifier: Apache-2.0
"""Kill a run with signal 9 at random moments, again and again; what comes out must not differ.

python -m tests.faults.kills --kills 50 --seed 0

The command runs in a process of its own and is continued with ``--train.resume`` as often as it
takes; only a run that was killed before it began is started anew. A run that came to its end is
compared with the undisturbed one, and the next begins, until there were enough kills.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.cli.tiny_model import pairs, write_model, write_rows

SETTINGS = (
    "--train.batch_size", "4", "--train.steps", "40", "--train.seed", "5", "--train.eval_steps",
    "10", "--train.save_steps", "2", "--optimizer.learning_rate", "1e-3", "--lora.rank", "4",
    "--data.max_length", "96", "--train.microbatch_tokens", "512", "--sample.prompts", "0",
    "--export.dtype", "float32",
)  # fmt: skip
FIELDS = ("step", "kind", "loss", "margin", "grad_norm", "learning_rate", "kl/token")
ADAPTER = "export/adapter/adapter_model.safetensors"


class Suite:
    """One folder with a model, rows and runs."""

    def __init__(self, folder: Path):
        """Write the model and its rows."""
        self.folder = folder
        self.model = write_model(folder / "model")
        self.rows = write_rows(folder / "rows.jsonl", pairs(64))

    def start(self, run: Path, cache: Path, *, resume: bool) -> subprocess.Popen:
        """Start or continue a run."""
        words = ["--model", self.model, "--data", self.rows, "--output", run, *SETTINGS]
        command = [sys.executable, "-m", "alignax.cli.main", "dpo", *map(str, words)]
        with (run.parent / f"{run.name}.log").open("a") as log:
            return subprocess.Popen(
                [*command, *(["--train.resume"] if resume else [])],
                stdout=log, stderr=log, env={**os.environ, "ALIGNAX_CACHE": str(cache)},
            )  # fmt: skip


def signature(run: Path) -> tuple[str, str]:
    """Hash a finished run's adapter, and the figures of its steps."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    figures = [{field: line.get(field) for field in FIELDS} for line in lines]
    weights = hashlib.sha256((run / ADAPTER).read_bytes()).hexdigest()
    return weights, hashlib.sha256(json.dumps(figures).encode()).hexdigest()


def place(run: Path) -> str:
    """Tell what the command was doing when it was killed."""
    if not (run / "recipe.yaml").exists():
        return "before the run's folder"
    if (run / "summary.json").exists():
        return "after the summary"
    if any(run.glob("export/*")):
        return "in the export"
    manifests = {path.stem for path in (run / "checkpoints" / "manifests").glob("[0-9]*.json")}
    folders = {path.name for path in (run / "checkpoints").glob("[0-9]*")}
    if folders - manifests:
        return "in a save"
    return "in the steps" if (run / "metrics.jsonl").exists() else "before the first step"


def disturbed(suite: Suite, name: str, kills: int, longest: float, dice: random.Random) -> Counter:
    """Run once, killed at random moments (at most ``kills``); returns where."""
    run, cache, places = suite.folder / name, suite.folder / f"{name}.cache", Counter()
    while True:
        resume = (run / "recipe.yaml").exists()
        if (run / "summary.json").exists():
            return places
        process = suite.start(run, cache, resume=resume)
        patience = dice.uniform(0.0, longest) if places.total() < kills else None
        try:
            code = process.wait(patience)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            places[place(run)] += 1
            continue
        if code:
            log = (run.parent / f"{run.name}.log").read_text()[-2000:]
            raise SystemExit(f"{run}: exit code {code} after {places.total()} kills\n{log}")


def main() -> None:
    """Run the suite and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    dice, places, runs = random.Random(arguments.seed), Counter(), 0
    with tempfile.TemporaryDirectory() as folder:
        suite = Suite(Path(folder))
        started = time.monotonic()
        straight = suite.folder / "straight"
        if suite.start(straight, suite.folder / "straight.cache", resume=False).wait():
            raise SystemExit((suite.folder / "straight.log").read_text())
        longest = time.monotonic() - started
        while places.total() < arguments.kills:
            name, left = f"run{runs}", arguments.kills - places.total()
            places += disturbed(suite, name, left, longest, dice)
            runs += 1
            if signature(suite.folder / name) != signature(straight):
                raise SystemExit(f"run {name} differs from the undisturbed one")
            sys.stderr.write(f"{places.total()} kills, {runs} runs: {dict(places)}\n")
    result = {"kills": places.total(), "runs": runs, "identical": True, "places": dict(places)}
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
