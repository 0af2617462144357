# SPDX-License-Identifier: Apache-2.0
"""Run one process at a time and look at the machine. Imports no JAX, see ``benchmarks.cases``."""

import datetime
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cases import ROOT, Place


@dataclass(frozen=True)
class Failure(Exception):
    """A process that did not finish: why, and the end of what it said."""

    reason: str
    stderr: str = ""


def run(argv: Sequence[str], place: Place, *, limit: float, cache: str = "") -> str:
    """Run one process to its end; returns its stdout.

    Raises:
        Failure: It failed, or took too long.
    """
    ours = argv[0] == sys.executable
    hidden = {"JAX_COMPILATION_CACHE_DIR", "XLA_FLAGS"} | (set() if ours else {"PYTHONPATH"})
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {
        "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1", "TMPDIR": str(place.work / "tmp"),
    }  # fmt: skip
    if cache:
        environment["ALIGNAX_CACHE"] = cache
    (place.work / "tmp").mkdir(exist_ok=True)
    process = subprocess.Popen(
        argv, cwd=ROOT, env=environment, text=True, process_group=0,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        out, error = process.communicate(timeout=limit)
    except BaseException as stopped:
        os.killpg(process.pid, signal.SIGKILL)
        _, error = process.communicate()
        if isinstance(stopped, subprocess.TimeoutExpired):
            raise Failure(f"stopped after {limit:.0f} s", error[-4000:]) from None
        raise
    finally:
        shutil.rmtree(place.work / "tmp", ignore_errors=True)
    if process.returncode:
        killed = " (killed: out of memory?)" if process.returncode == -signal.SIGKILL else ""
        raise Failure(f"exit status {process.returncode}{killed}", error[-4000:])
    return out


def available_gib() -> float:
    """Memory that can be had; infinite where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return float("inf")
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) / 2**20


def gemm(place: Place) -> dict[str, float | None]:
    """Measure what the machine can do now, with each side's own library."""
    rates: dict[str, float | None] = {}
    for library, python in (("jax", Path(sys.executable)), ("torch", place.trl)):
        rates[library] = None
        if python.exists():
            out = run([str(python), "benchmarks/gemm.py", library], place, limit=300)
            rates[library] = json.loads(out)["gemm_gflops"]
    return rates


def machine() -> dict[str, Any]:
    """Facts about the machine that do not change between rounds."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    return {
        "cpus": os.cpu_count(),
        "system": platform.platform(),
        "commit": commit.stdout.strip() or None,
        "date": datetime.date.today().isoformat(),
    }
