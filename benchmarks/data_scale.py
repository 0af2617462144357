# SPDX-License-Identifier: Apache-2.0
"""Synthesise many pairs from a few real rows, audit them, and say rows a second and memory.

    python benchmarks/data_scale.py FILE… --rows 1000000 --folder FOLDER [--workers 2]

Sentences of the files' answers are dealt anew, a hundredth of the rows are near copies and a
hundredth exact ones. Memory is the greatest resident set of this process and of its workers.
"""

import argparse
import json
import random
import resource
import time
from pathlib import Path

from alignax.cli.auditing import audit_rows
from alignax.data.sources import open_rows
from alignax.recipe import DataSection

COPIES = 0.01


def sentences(files: list[str], cache: Path) -> list[str]:
    """Collect sentences of all texts of some files."""
    found: set[str] = set()
    for file in files:
        rows = open_rows(file, cache_dir=cache)
        for row in rows.batch(range(len(rows))):
            text = json.dumps(row, ensure_ascii=False)
            found.update(s.strip() for s in text.split(". ") if 20 < len(s) < 200 and '"' not in s)
    return sorted(found)


def write_rows(target: Path, pool: list[str], count: int) -> None:
    """Write ``count`` pairs, one JSON object a line."""
    draw = random.Random(0)
    recent: list[dict[str, str]] = []
    with target.open("w", encoding="utf-8") as file:
        for number in range(count):
            kind = draw.random()
            if recent and kind < 2 * COPIES:
                row = dict(draw.choice(recent))
                if kind < COPIES:
                    row["chosen"] += " Indeed."
            else:
                row = {
                    "prompt": f"{'. '.join(draw.choices(pool, k=2))}? ({number})",
                    "chosen": ". ".join(draw.choices(pool, k=draw.randrange(2, 9))),
                    "rejected": ". ".join(draw.choices(pool, k=draw.randrange(2, 8))),
                }
                recent = [*recent[-999:], row]
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def main() -> None:
    """Write, audit twice, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=0)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    target = arguments.folder / f"pairs-{arguments.rows}.jsonl"
    if not target.exists():
        write_rows(target, sentences(arguments.files, arguments.folder / "cache"), arguments.rows)
    section = DataSection(path=str(target), cache=str(arguments.folder / "cache"))
    for run in ("first", "second"):
        began = time.perf_counter()
        audited = audit_rows(section, kind="pair", workers=arguments.workers)
        surveyed = time.perf_counter() - began
        result = audited.full()
        took = time.perf_counter() - began
        own, others = (
            resource.getrusage(who).ru_maxrss / 2**20
            for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        )
        counts = {code: len(rows) for code, rows in result["reasons"].items()}
        print(
            f"{run} run: {arguments.rows} rows in {took:.0f} s ({surveyed:.0f} s of survey), "
            f"{arguments.rows / took:.0f} rows/s, {target.stat().st_size / 2**30:.2f} GiB; memory "
            f"{own:.2f} GiB, of the largest worker {others:.2f} GiB; {counts}",
            flush=True,
        )


if __name__ == "__main__":
    main()
