# SPDX-License-Identifier: Apache-2.0
"""A few steps of a run → a JAX trace, and where their time went."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from alignax.files import write_json
from alignax.train.trace import read_instructions, read_ops, time_by_kind

WARM_UP = 2
"""Steps before the trace begins: the first ones compile and fill caches."""


class ReadableStep:
    """The update, compiled ahead of its first call, so that the program's text is at hand."""

    def __init__(self, step: Any):
        """Wrap a jitted update."""
        self._step = step
        self._compiled: Any = None

    def __call__(self, *arguments: Any) -> Any:
        """Do an update."""
        if self._compiled is None:
            self._compiled = self._step.lower(*arguments).compile()
        return self._compiled(*arguments)

    def text(self) -> str:
        """Return the compiled program's text; there must have been a call."""
        return self._compiled.as_text()


class Profiler:
    """Traces steps of a run; a training hook.

    Writes ``profile/`` (for Perfetto or TensorBoard) and ``profile.json``.
    """

    def __init__(
        self, folder: Path, steps: int, text: Callable[[], str], tell: Callable[[Any], None]
    ):
        """Wait for the warm-up to end.

        Args:
            folder: Run folder.
            steps: Steps to trace.
            text: Gives the compiled step's text.
            tell: Gets the finished table.
        """
        self._folder = folder
        self._steps = steps
        self._text = text
        self._tell = tell
        self._seen = 0
        self._seconds: list[float] = []
        self._tracing = False

    def on_step(self, step: int, values: Mapping[str, float]) -> None:
        """Begin or end the trace after this step."""
        self._seen += 1
        if self._tracing:
            self._seconds.append(values["seconds"])
            if len(self._seconds) == self._steps:
                self._finish(step)
        elif self._seen == WARM_UP:
            options = jax.profiler.ProfileOptions()
            # Python's own calls would cost more than they tell.
            options.python_tracer_level = 0
            jax.profiler.start_trace(self._folder / "profile", profiler_options=options)
            self._tracing = True

    def on_eval(self, step: int, values: Mapping[str, float]) -> None:
        """Nothing: an evaluation's operations belong to another program."""

    def on_event(self, step: int, kind: str, message: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """End a trace that the run did not reach the end of."""
        if self._tracing:
            self._finish(None)

    def _finish(self, last: int | None) -> None:
        """Stop the trace and write the table."""
        self._tracing = False
        jax.profiler.stop_trace()
        if not self._seconds:
            return
        wall = sum(self._seconds)
        ops = read_ops(self._folder / "profile", "jit_train_step")
        table = {
            "steps": len(self._seconds),
            "last_step": last,
            "seconds_per_step": wall / len(self._seconds),
            **time_by_kind(ops, read_instructions(self._text()), wall),
        }
        write_json(self._folder / "profile.json", table)
        self._tell(table)
