# SPDX-License-Identifier: Apache-2.0
"""A JAX trace and the compiled program's text → seconds by kind of operation.

Every traced operation has the name of an HLO instruction, whose metadata name the JAX function and
the ``jax.named_scope`` that it came from. An operation's own time is its time without the
operations inside it (loops and calls contain others).
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import jax

SCOPES = ("attention", "head", "optimizer")
"""Names of ``jax.named_scope`` that decide the kind."""

PROJECTIONS, REST, HOST = "projections", "norms and elementwise", "host"

INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = .*?[\]})] ([a-z][\w\-]*)\(")
COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
CALLED = re.compile(r"(?:calls|to_apply|condition|body)=%?([\w.\-]+)")
NAMED = re.compile(r'op_name="([^"]*)"')
MATRIX = ("dot", "convolution", "custom-call")


class Op(NamedTuple):
    """One traced operation: thread or stream, HLO instruction, start and end in seconds."""

    line: str
    name: str
    start: float
    end: float


class _Line(NamedTuple):
    """One line of a program's text."""

    computation: str
    operation: str
    origin: str
    called: list[str]


class Instruction(NamedTuple):
    """What the program's text says of an instruction: its kind, and where it came from."""

    kind: str
    origin: str


def read_ops(folder: Path, module: str) -> list[Op]:
    """Read the operations of one compiled program from the newest trace below a folder."""
    files = sorted(folder.rglob("*.xplane.pb"), key=lambda file: file.stat().st_mtime)
    if not files:
        return []
    ops = []
    for plane in jax.profiler.ProfileData.from_file(str(files[-1])).planes:
        for number, line in enumerate(plane.lines):
            for event in line.events:
                stats = dict(event.stats)
                name = stats.get("hlo_op")
                if name is None or stats.get("hlo_module") != module:
                    continue
                start = event.start_ns / 1e9
                end = start + event.duration_ns / 1e9
                ops.append(Op(f"{plane.name}/{number}", str(name), start, end))
    return ops


def read_instructions(text: str) -> dict[str, Instruction]:
    """Find the kind of every instruction of a compiled program.

    A scope decides first; then matrix products, alone or fused with what surrounds them, are
    projections; all else is norms and elementwise work. What the compiler made without noting an
    origin has that of the loop or call it lies in.
    """
    products: set[str] = set()
    lines: dict[str, _Line] = {}
    callers: dict[str, str] = {}
    computation = ""
    for line in text.splitlines():
        opened = COMPUTATION.match(line)
        if opened:
            computation = opened[1]
            continue
        parts = INSTRUCTION.match(line)
        if not parts:
            continue
        name, operation = parts.groups()
        if operation in MATRIX:
            products.add(computation)
        origin = NAMED.search(line)
        called = CALLED.findall(line)
        callers.update(dict.fromkeys(called, name))
        lines[name] = _Line(computation, operation, origin[1] if origin else "", called)

    def origin_of(name: str | None) -> str:
        line = lines.get(name or "")
        return (line.origin or origin_of(callers.get(line.computation))) if line else ""

    found = {}
    for name, line in lines.items():
        origin = origin_of(name)
        product = line.operation in MATRIX or any(c in products for c in line.called)
        found[name] = Instruction(_kind(origin, product), origin)
    return found


def _kind(origin: str, product: bool) -> str:
    """Choose the kind of one instruction."""
    # Differentiation wraps scopes: transpose(jvp(attention)).
    words = set(re.split(r"[/()]", origin))
    for scope in SCOPES:
        if scope in words:
            return scope
    return PROJECTIONS if product else REST


def own_seconds(ops: Iterable[Op]) -> tuple[dict[str, float], dict[str, int], float]:
    """Sum up what each instruction took without what ran inside it.

    Returns:
        Instruction → seconds, instruction → times it ran, and the seconds in which any ran.
    """
    seconds: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    lines: dict[str, list[Op]] = defaultdict(list)
    outer: list[tuple[float, float]] = []
    for op in ops:
        lines[op.line].append(op)
    for line in lines.values():
        around: list[Op] = []
        for op in sorted(line, key=lambda op: (op.start, -op.end)):
            while around and around[-1].end <= op.start:
                around.pop()
            seconds[op.name] += op.end - op.start
            counts[op.name] += 1
            if around:
                seconds[around[-1].name] -= min(op.end, around[-1].end) - op.start
            else:
                outer.append((op.start, op.end))
            around.append(op)
    return dict(seconds), dict(counts), _covered(outer)


def _covered(spans: list[tuple[float, float]]) -> float:
    """Length of the union of some spans."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def time_by_kind(
    ops: Iterable[Op], instructions: Mapping[str, Instruction], wall: float
) -> dict[str, object]:
    """Divide wall time among the kinds of operations; what no operation covers is the host's.

    Args:
        ops: Operations of the steps.
        instructions: What the program's text says of each.
        wall: Seconds of the steps.

    Returns:
        ``kinds`` (kind, seconds, share, operations; they sum to ``wall``) and ``slowest`` (the ten
        instructions with the most own time: op, kind, seconds, origin).
    """
    seconds, counts, busy = own_seconds(ops)
    unknown = Instruction(REST, "")
    kinds: dict[str, float] = dict.fromkeys((PROJECTIONS, *SCOPES, REST), 0.0)
    times: dict[str, int] = defaultdict(int)
    for name, spent in seconds.items():
        kind = instructions.get(name, unknown).kind
        kinds[kind] += spent
        times[kind] += counts[name]
    # Threads overlap: of a second in which two ran, each kind gets its part.
    scale = busy / sum(kinds.values()) if busy else 0.0
    kinds = {kind: spent * scale for kind, spent in kinds.items()} | {HOST: max(wall - busy, 0.0)}
    whole = sum(kinds.values())
    slowest = sorted(seconds, key=lambda name: -seconds[name])[:10]
    return {
        "kinds": [
            {"kind": k, "seconds": s, "share": s / whole if whole else 0.0, "operations": times[k]}
            for k, s in sorted(kinds.items(), key=lambda item: -item[1])
        ],
        "slowest": [
            {
                "op": name,
                "kind": instructions.get(name, unknown).kind,
                "seconds": seconds[name] * scale,
                "origin": instructions.get(name, unknown).origin,
            }
            for name in slowest
        ],
    }
