# SPDX-License-Identifier: Apache-2.0
"""The loop: batches in, checkpoints and records out.

Everything that differs between methods, models or front ends comes in as an argument.
"""

import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from alignax.errors import RunError, StoppedByGuard
from alignax.records import PackedBatch
from alignax.train.checkpoint import Checkpoints
from alignax.train.feed import Fed, Feed
from alignax.train.hooks import Hook
from alignax.train.rollback import Watch
from alignax.train.step import TrainState, passed_over, step_values
from alignax.train.variants_watch import VariantsWatch


@dataclass(frozen=True)
class Cadence:
    """How far to go and how often to look and save, in steps."""

    total_steps: int
    eval_steps: int
    save_steps: int


@dataclass(frozen=True)
class Speed:
    """What the speed figures of a step are measured against.

    Attributes:
        body_flops: Useful FLOPs a distinct token (forward and backward through the layers).
        head_flops: Useful FLOPs an answer token (forward and backward through the head).
        peak_flops: Measured matrix-multiply FLOPs a second of all devices together.
    """

    body_flops: float
    head_flops: float
    peak_flops: float

    def values(self, batch: PackedBatch, seconds: float, waited: float = 0.0) -> dict[str, float]:
        """Speed figures of one step.

        Args:
            batch: Host arrays.
            seconds: Wall time of the step, waiting included.
            waited: Seconds of it in which the batch was not there yet.
        """
        tokens = int((batch.segments > 0).sum())
        useful = tokens * self.body_flops + int(batch.answer_count.sum()) * self.head_flops
        return {
            "pairs_per_s": int((batch.example >= 0).sum()) / seconds,
            "tokens_per_s": tokens / seconds,
            "padding": 1 - tokens / batch.ids.size,
            "useful_flop_share": useful / (seconds * self.peak_flops),
            "data_wait_share": waited / seconds,
            "seconds": seconds,
        }


@dataclass
class StopFlag:
    """Set by SIGINT or SIGTERM; the loop then saves after the step at hand and ends."""

    signal_number: int | None = None

    @contextmanager
    def listening(self) -> Iterator["StopFlag"]:
        """Catch the first signal; a second one has its usual effect."""
        previous = {}

        def catch(number: int, _frame: Any) -> None:
            self.signal_number = number
            for caught, handler in previous.items():
                signal.signal(caught, handler)

        for number in (signal.SIGINT, signal.SIGTERM):
            previous[number] = signal.signal(number, catch)
        try:
            yield self
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


@dataclass(frozen=True)
class Parts:
    """What the loop works with.

    Attributes:
        step: Compiled update (``step.build_train_step``).
        frozen: Arrays that are not trained.
        live: Weights of a live reference, or None.
        tables: [n, s] values of the training rows: cached ``"reference"`` log-probs, ``"score"``.
        place: Puts host arrays with a leading micro-batch axis onto the devices.
        evaluate: ``(trainable, step) → held-out metrics``; None without held-out rows.
        sample: ``(trainable, step)``; writes answers to the probe prompts.
        after_first: Checks of the first update: ``(state before, state after, values)``.
        record: What is saved beside the state.
        data_state: State of the data iterator, saved beside the train state.
        watch: The guards of the run.
        explain: Says what is wrong with a step that is not finite, and keeps its batch:
            ``(state, batch fed, values)``; None where steps never are (a sweep's).
        passed_over: Steps whose batches are left out after a rollback.
    """

    step: Callable[..., tuple[TrainState, dict[str, Any]]]
    frozen: Any
    live: Any
    tables: Mapping[str, np.ndarray]
    place: Callable[[Any], Any]
    evaluate: Callable[[Any, int], dict[str, float]] | None
    sample: Callable[[Any, int], None]
    after_first: Callable[[TrainState, TrainState, Mapping[str, float]], None]
    record: Mapping[str, Any]
    data_state: Callable[[], Any]
    watch: Watch | VariantsWatch
    explain: Callable[[TrainState, Fed, Mapping[str, float]], StoppedByGuard] | None = None
    passed_over: Set[int] = frozenset()


@dataclass
class Result:
    """How a run ended.

    Attributes:
        state: The last state.
        step: Updates done.
        evaluations: Step → held-out metrics.
        signal_number: The signal that ended the run early, or None.
        stopped: Why the run was given up after the last rollback, or None.
        seconds: Time spent in steps.
        waited: Part of it in which the devices waited for a batch.
    """

    state: TrainState
    step: int
    evaluations: dict[int, dict[str, float]] = field(default_factory=dict)
    signal_number: int | None = None
    stopped: StoppedByGuard | None = None
    seconds: float = 0.0
    waited: float = 0.0


def fit(
    state: TrainState,
    batches: Iterable[tuple[int, PackedBatch]],
    parts: Parts,
    cadence: Cadence,
    speed: Speed,
    checkpoints: Checkpoints,
    hooks: Sequence[Hook],
    evaluations: dict[int, dict[str, float]],
) -> Result:
    """Train from ``state`` to the last step, or to a signal.

    Args:
        state: Where to start; its buffers are donated.
        batches: ``(index of the step, host batch)`` from the next step on.
        parts: What the loop works with.
        cadence: How far, how often.
        speed: Yardsticks of the speed figures.
        checkpoints: Where states go.
        hooks: Listeners.
        evaluations: Held-out metrics so far (step → values); added to.

    Raises:
        RollBack: A guard wants an earlier state.
        StoppedByGuard: A guard ended the run.
        RunError: The data ended before the last step.
    """
    result = Result(state, int(state.step), evaluations)
    feed = Feed(batches, parts.place, parts.tables, parts.data_state)
    with StopFlag().listening() as stop, feed.open():
        for fed in feed:
            if fed.index + 1 in parts.passed_over:
                result.state = passed_over(result.state)
            else:
                _update(result, fed, parts, speed, hooks)
            result.step = fed.index + 1
            last = result.step == cadence.total_steps
            if last or result.step % cadence.eval_steps == 0:
                _look(result, parts, hooks)
            parts.watch.judge(hooks)
            if last or result.step % cadence.save_steps == 0 or stop.signal_number is not None:
                checkpoints.save(result.step, result.state, _record(result, parts, fed.position))
            if last or stop.signal_number is not None:
                break
    result.signal_number = stop.signal_number
    if result.signal_number is None and result.step < cadence.total_steps:
        raise RunError(f"the rows ended at step {result.step} of {cadence.total_steps}")
    return result


def _record(result: Result, parts: Parts, position: Any) -> dict[str, Any]:
    """Describe a save; nobody knows whether one between two evaluations is healthy."""
    looked = result.step in result.evaluations or parts.evaluate is None
    metrics = result.evaluations.get(result.step)
    return {**parts.record, "metrics": metrics, "data": position, "healthy": looked}


def _update(result: Result, fed: Fed, parts: Parts, speed: Speed, hooks: Sequence[Hook]) -> None:
    """Do one step, and tell the listeners."""
    started = time.perf_counter()
    first = jax.device_get(result.state) if fed.index == 0 else None
    result.state, metrics = parts.step(
        result.state, parts.frozen, parts.live, fed.placed, fed.cached
    )
    values = step_values(metrics)
    seconds = fed.waited + time.perf_counter() - started
    result.seconds += seconds
    result.waited += fed.waited
    if not values.pop("finite"):
        _skip(result, fed, values, parts, hooks)
        return
    if first is not None:
        parts.after_first(first, result.state, values)
    values |= speed.values(fed.batch, seconds, fed.waited) | host_memory()
    for hook in hooks:
        hook.on_step(fed.index + 1, values)
    parts.watch.saw_step(fed.index + 1, values)


def _skip(
    result: Result, fed: Fed, values: dict[str, float], parts: Parts, hooks: Sequence[Hook]
) -> None:
    """Leave out a step that is not finite, if the guard still lets it; nothing was applied.

    Raises:
        RollBack, StoppedByGuard: There were too many of them.
    """
    assert parts.explain is not None
    stopped = parts.explain(result.state, fed, values)
    words = parts.watch.skipped(fed.index + 1)
    if words is None:
        parts.watch.end("finite", stopped, fed.index + 1)
    for hook in hooks:
        hook.on_event(fed.index + 1, "skipped", f"{stopped}\n{words}")
    result.state = passed_over(result.state)


def _look(result: Result, parts: Parts, hooks: Sequence[Hook]) -> None:
    """Evaluate the held-out rows and answer the probe prompts."""
    if parts.evaluate is not None:
        values = parts.evaluate(result.state.trainable, result.step)
        result.evaluations[result.step] = values
        for hook in hooks:
            hook.on_eval(result.step, values)
    parts.sample(result.state.trainable, result.step)


def host_memory() -> dict[str, float]:
    """Tell how much memory this process holds, in GiB, where the system says so."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return {}
    return {"host_gib": pages * os.sysconf("SC_PAGE_SIZE") / 2**30}


def measure_peak_flops(size: int = 1536, repeats: int = 3) -> float:
    """Measure this machine's float32 matrix-multiply rate (FLOP/s, one device, best of three)."""
    square = jax.numpy.ones((size, size), jax.numpy.float32)
    multiply = jax.jit(lambda x: x @ x)
    multiply(square).block_until_ready()
    best = math.inf
    for _ in range(repeats):
        started = time.perf_counter()
        multiply(square).block_until_ready()
        best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best
