# SPDX-License-Identifier: Apache-2.0
"""JAX's own events → how many programs were compiled, how long it took, what the disk had."""

import threading
from typing import Any, NamedTuple

import jax

COMPILED = "/jax/core/compile/backend_compile_duration"
FOUND = "/jax/compilation_cache/cache_hits"
PREPARED = (
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
)
"""Events of ``jax.monitoring``. The first ends every compilation, also one that only reads its
program from the persistent cache, which the second tells before."""


class Program(NamedTuple):
    """One compilation: name of the jitted function, seconds, and whether the disk had it."""

    name: str
    seconds: float
    found: bool


class Compilations:
    """Listens to compilations from its making to ``close``.

    Attributes:
        programs: What was compiled, in order.
        prepare_seconds: Time spent on tracing and lowering.
    """

    def __init__(self) -> None:
        """Start to listen."""
        self.programs: list[Program] = []
        self.prepare_seconds = 0.0
        self._found = threading.local()
        jax.monitoring.register_event_listener(self._on_event)
        jax.monitoring.register_event_duration_secs_listener(self._on_duration)

    def close(self) -> None:
        """Stop to listen."""
        jax.monitoring.unregister_event_listener(self._on_event)
        jax.monitoring.unregister_event_duration_listener(self._on_duration)

    def count(self, name: str) -> int:
        """Tell how often the jitted function of this name was compiled or read."""
        return sum(program.name == name for program in list(self.programs))

    def summary(self) -> dict[str, Any]:
        """Totals, and the slowest programs.

        Returns:
            ``programs`` (compiled or read from disk), ``found`` (read from disk), ``seconds`` (of
            compiling and reading), ``prepare_seconds`` (of tracing and lowering), ``slowest``
            (name and seconds).
        """
        programs = list(self.programs)
        slowest = sorted(programs, key=lambda program: -program.seconds)[:5]
        return {
            "programs": len(programs),
            "found": sum(program.found for program in programs),
            "seconds": round(sum(program.seconds for program in programs), 2),
            "prepare_seconds": round(self.prepare_seconds, 2),
            "slowest": [[program.name, round(program.seconds, 2)] for program in slowest],
        }

    def _on_event(self, event: str, **_: Any) -> None:
        """Note that this thread's compilation was answered from disk."""
        if event == FOUND:
            self._found.now = True

    def _on_duration(self, event: str, duration_secs: float, **details: Any) -> None:
        """Note the end of a compilation."""
        if event == COMPILED:
            found = getattr(self._found, "now", False)
            self._found.now = False
            name = str(details.get("fun_name", "?")).removeprefix("jit(").removesuffix(")")
            self.programs.append(Program(name, duration_secs, found))
        elif event in PREPARED:
            self.prepare_seconds += duration_secs
