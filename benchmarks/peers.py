# SPDX-License-Identifier: Apache-2.0
"""Train the same pairs with alignax, TRL and Tunix in turn, and write the comparison.

    make bench-peers                                    all sets: 90 minutes on a quiet machine
    make bench-peers ARGS="--sets hh-lora --rounds 3"   one set
    make bench-peers ARGS="--quick"                     two layers and a step each: does it all run?
    make bench-peers ARGS="--modes trl,ours-cached"     some modes
    make bench-peers ARGS="--render"                    write the results anew, measure nothing

One process at a time, every mode in a process of its own. Each measurement is written to
``.cache/bench`` as soon as it is there and not repeated by the next call (``--fresh`` forgets all);
what failed is recorded with the end of its stderr, and tried again by the next call. Results go to
``benchmarks/results/peers.json`` and ``docs/performance.md``, after every round.
"""

import argparse
import fcntl
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.cases import MODES, ROOT, SETS, Pairs, Place, command, read
from benchmarks.processes import Failure, available_gib, gemm, machine, run
from benchmarks.results import figures, section, splice
from benchmarks.rounds import Rounds

PAGE = ROOT / "docs" / "performance.md"
RESULTS = ROOT / "benchmarks" / "results"
LOSSES = "pair-losses"
"""Stands beside the modes: the loss of each pair on both sides, which no round repeats."""

PATIENCE = 5
"""A mode may take this many times its rough time before it is stopped."""


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("--sets", type=names, default=list(SETS), help=", ".join(SETS))
    parser.add_argument("--modes", type=names, help=", ".join([*MODES, LOSSES]))
    parser.add_argument("--rounds", type=int, help="rounds of each set; default 3, 1 and 1")
    parser.add_argument("--quick", action="store_true", help="see that everything runs")
    parser.add_argument("--layers", type=int, default=2, help="layers of the model with --quick")
    parser.add_argument("--fresh", action="store_true", help="forget earlier measurements")
    parser.add_argument("--render", action="store_true", help="measure nothing")
    parser.add_argument("--peers", type=Path, default=os.environ.get("PEERS", "../shared/bench"))
    parser.add_argument("--work", type=Path, default=ROOT / ".cache" / "bench")
    parser.add_argument("--trl-python", type=Path, default=ROOT / ".venv-trl/bin/python")
    parser.add_argument("--tunix-python", type=Path, default=ROOT / ".venv-tunix/bin/python")
    options = parser.parse_args()
    for given, known in ((options.sets, SETS), (options.modes or [], [*MODES, LOSSES])):
        for name in given:
            if name not in known:
                parser.error(f"unknown: {name!r}; there are {', '.join(known)}")
    return options


def require(options: argparse.Namespace, modes: set[str]) -> Place:
    """Find the peers' scripts and environments; the working folder is made."""
    peers = Path(options.peers).resolve()
    if not (peers / "bench_trl.py").exists():
        raise SystemExit(
            f"no peers' scripts in {peers} (bench_trl.py, bench_tunix.py and their pairs)\n"
            "name their folder: make bench-peers PEERS=FOLDER"
        )
    sides = {"trl" if mode == LOSSES else MODES[mode].side for mode in modes}
    for side, python in (("trl", options.trl_python), ("tunix", options.tunix_python)):
        if side in sides and not python.exists():
            raise SystemExit(f"no environment for {side} at {python}: run `make bench-peers`")
    options.work.mkdir(parents=True, exist_ok=True)
    # Absolute, but not resolved: the link to an interpreter is what makes it a venv's.
    trl, tunix = options.trl_python.absolute(), options.tunix_python.absolute()
    return Place(peers, options.work.resolve(), trl, tunix)


def measure(place: Place, rounds: Rounds, pairs: Pairs, number: int, name: str) -> dict[str, Any]:
    """Take one measurement; a failure is a record too."""
    mode = MODES[name]
    needed = mode.needs_gib if pairs.layers is None else 2.0
    if available_gib() < needed:
        return {"failed": f"not tried: needs {needed} GiB, {available_gib():.1f} are free"}
    cache = rounds.folder(pairs) / f"cache-{number}-{mode.cache}"
    if mode.side == "ours" and mode.cold:
        shutil.rmtree(cache, ignore_errors=True)
    elif mode.side == "ours" and not cache.is_dir():
        return {"failed": "the mode that fills its caches has not run in this round"}
    out = place.work / "measured.json"
    out.unlink(missing_ok=True)
    try:
        limit = PATIENCE * mode.seconds * pairs.weight
        run(command(place, pairs, mode, out), place, limit=limit, cache=str(cache))
    except Failure as failure:
        return {"failed": failure.reason, "stderr": failure.stderr}
    try:
        return read(place, pairs, mode, json.loads(out.read_text(encoding="utf-8")))
    except ValueError as problem:
        return {"failed": str(problem)}


def jobs(
    rounds: Rounds, sets: Sequence[Pairs], modes: Sequence[str] | None
) -> list[tuple[Pairs, int, str]]:
    """List what is still to be measured, in order: every round goes through all modes."""
    return [
        (pairs, number, mode)
        for pairs in sets
        for number in range(1, pairs.rounds + 1)
        for mode in pairs.modes
        if modes is None or mode in modes
        if "pairs_per_s" not in rounds.read(pairs, number)["records"].get(mode, {})
    ]


def compare_losses(place: Place, rounds: Rounds, pairs: Pairs) -> list[str]:
    """Compute the loss of each pair on both sides, unless that was done; returns what failed."""
    target = rounds.folder(pairs) / "pair_losses.json"
    if target.exists():
        return []
    say("loss of each pair on both sides")
    scratch = place.work / "pair_losses"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    data = scratch / "pairs.jsonl"
    lines = place.window(pairs).read_text(encoding="utf-8").splitlines()[:16]
    data.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    found = {}
    for side, start in (
        ("ours", [sys.executable, "-m", "benchmarks.pair_losses"]),
        ("trl", [str(place.trl), "benchmarks/pair_losses_trl.py"]),
    ):
        out = scratch / f"{side}.json"
        argv = [
            *start, "--model", place.model(pairs), "--data", data, "--adapter",
            scratch / "adapter", "--max-length", pairs.max_length, "--out", out,
        ]  # fmt: skip
        try:
            run([str(part) for part in argv], place, limit=900, cache=str(scratch / "cache"))
        except Failure as failure:
            return [f"loss of each pair, {side}: {failure.reason}\n{failure.stderr}"]
        found[side] = json.loads(out.read_text(encoding="utf-8"))["pair_losses"]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(found), encoding="utf-8")
    shutil.rmtree(scratch)
    return []


def say(text: str) -> None:
    """Write a line of progress."""
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


def write_results(rounds: Rounds, sets: Sequence[Pairs], folder: Path, page: Path | None) -> None:
    """Write ``peers.json`` and the section of the page."""
    measured = {pairs.name: rounds.of(pairs) for pairs in sets}
    losses = {pairs.name: rounds.losses(pairs) for pairs in sets}
    values = {name: figures(ones, losses[name]) for name, ones in measured.items() if ones}
    flat = [one for ones in measured.values() for one in ones]
    if not flat:
        return
    folder.mkdir(parents=True, exist_ok=True)
    first = values.get("hh-lora", {})
    others = {name: of for name, of in values.items() if name != "hh-lora"}
    content = {
        **first, "other_sets": others, "pair_losses": losses.get("hh-lora"),
        "machine": machine(), "rounds": flat,
    }  # fmt: skip
    text = json.dumps(content, indent=1)
    (folder / "peers.json").write_text(text + "\n", encoding="utf-8")
    titles = {name: mode.title for name, mode in MODES.items()}
    lines = section(measured, values, titles)
    if page is None:
        (folder / "peers.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    else:
        spliced = splice(page.read_text(encoding="utf-8"), "peers", lines)
        page.write_text(spliced, encoding="utf-8")


def write_model(place: Place, pairs: Pairs) -> None:
    """Write the folder that all sides load, unless it is there."""
    folder = place.model(pairs)
    if not folder.is_dir():
        layers = [] if pairs.layers is None else ["--layers", str(pairs.layers)]
        run([sys.executable, "-m", "benchmarks.model", str(folder), *layers], place, limit=900)


def work_through(
    place: Place,
    rounds: Rounds,
    todo: Sequence[tuple[Pairs, int, str]],
    publish: Callable[[], None],
) -> None:
    """Measure one after another; results are written after every round."""
    took: dict[tuple[str, str], float] = {}
    for index, (pairs, number, name) in enumerate(todo):
        rest = sum(
            took.get((p.name, m), MODES[m].seconds * p.weight * (0.3 if p.layers else 1))
            for p, _, m in todo[index:]
        )
        place_in_line = f"[{index + 1}/{len(todo)}] {pairs.name} round {number}"
        say(f"{place_in_line}: {name}, all done in about {rest / 60:.0f} min")
        one = rounds.read(pairs, number)
        if not one["machine"]:
            load = os.getloadavg()[0]
            one["machine"] = machine() | {"load_before": load, "gemm_gflops": gemm(place)}
        started = time.monotonic()
        one["records"][name] = record = measure(place, rounds, pairs, number, name)
        took[pairs.name, name] = time.monotonic() - started
        one["machine"]["load_after"] = os.getloadavg()[0]
        rounds.write(pairs, one)
        say(f"    {outcome(record)}")
        if index + 1 == len(todo) or todo[index + 1][:2] != (pairs, number):
            publish()


def outcome(record: Mapping[str, Any]) -> str:
    """Say in a line what a measurement gave."""
    if "failed" in record:
        last = record.get("stderr", "").strip().splitlines()[-1:]
        return " ".join(["FAILED:", record["failed"], *last])
    return f"{record['pairs_per_s']:.3f} pairs/s, {record['rss_gib']:.2f} GiB"


def alone(place: Place) -> Any:
    """Take the working folder for this process; held until the returned file is closed."""
    lock = (place.work / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SystemExit(f"another benchmark is running in {place.work}") from None
    return lock


def failures(rounds: Rounds, sets: Sequence[Pairs]) -> list[str]:
    """List what did not finish, a line each."""
    return [
        f"{one['set']} {one['round']} {mode}: {record['failed']}"
        for pairs in sets
        for one in rounds.of(pairs)
        for mode, record in one["records"].items()
        if "failed" in record
    ]


def main() -> None:
    """Measure what is missing and write the results."""
    options = parse()
    every = {name: p.quick(options.layers) if options.quick else p for name, p in SETS.items()}
    chosen = [
        replace(every[name], rounds=options.rounds or every[name].rounds) for name in options.sets
    ]
    modes = set(options.modes or [mode for pairs in chosen for mode in pairs.modes])
    place = require(options, set() if options.render else modes)
    rounds = Rounds(place, list(every.values()))
    where = (place.work / "quick", None) if options.quick else (RESULTS, PAGE)

    def publish() -> None:
        write_results(rounds, list(every.values()), *where)

    failed: list[str] = []
    with alone(place):
        if options.fresh:
            for pairs in chosen:
                shutil.rmtree(rounds.folder(pairs), ignore_errors=True)
        if not options.render:
            for pairs in chosen:
                write_model(place, pairs)
            work_through(place, rounds, jobs(rounds, chosen, options.modes), publish)
            if "hh-lora" in options.sets and (options.modes is None or LOSSES in options.modes):
                failed = compare_losses(place, rounds, every["hh-lora"])
        publish()
    failed += failures(rounds, chosen)
    if failed:
        raise SystemExit("not measured:\n  " + "\n  ".join(failed))


if __name__ == "__main__":
    main()
