# SPDX-License-Identifier: Apache-2.0
"""Guards at work on a run, and the way back to its last healthy state."""

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jax
import numpy as np

from alignax.errors import StoppedByGuard
from alignax.files import read_json, write_json
from alignax.guards import GUARDS, kl
from alignax.guards.base import Finding, Trace
from alignax.sections import GuardsSection
from alignax.train.hooks import Hook

HISTORY = 256
"""Training steps that guards see."""


class RollBack(Exception):
    """A guard wants an earlier state.

    Attributes:
        guard: Its name.
        stopped: What to say if there is no way back.
        at_step: Where it was found.
    """

    def __init__(self, guard: str, stopped: StoppedByGuard, at_step: int):
        """Keep the parts."""
        super().__init__(stopped.message)
        self.guard = guard
        self.stopped = stopped
        self.at_step = at_step


class Watch:
    """Applies the guards of a recipe to the metrics of a run."""

    def __init__(
        self,
        settings: GuardsSection,
        evaluations: Mapping[int, Mapping[str, float]],
        *,
        clip_norm: float = float("inf"),
        skipped: int = 0,
    ):
        """Watch a run.

        Args:
            settings: What is watched, and what follows.
            evaluations: Step → values; the run adds to it.
            clip_norm: Norm at which gradients are clipped.
            skipped: Steps that were left out so far, because they were not finite.
        """
        self._settings = settings
        self._skipped = skipped
        self._clip_norm = clip_norm
        self._steps: deque[Mapping[str, float]] = deque(maxlen=HISTORY)
        self._evaluations = evaluations
        self._said: dict[str, Finding] = {}

    def saw_step(self, step: int, values: Mapping[str, float]) -> None:
        """Note a training step."""
        clipped = float(values.get("grad_norm", 0.0) > self._clip_norm)
        self._steps.append({"step": step, "clipped": clipped, **values})

    def skipped(self, step: int) -> str | None:
        """Count a step that is to be left out; says so, or None when there were enough of them."""
        budget = self._settings.finite.skips
        if self._skipped >= budget:
            return None
        self._skipped += 1
        return (
            f"alignax left step {step} out ({self._skipped} of {budget} that guards.finite.skips "
            "allows) and goes on"
        )

    @property
    def last_step(self) -> int:
        """The last training step that was noted; 0 before the first."""
        return int(self._steps[-1]["step"]) if self._steps else 0

    def judge(self, hooks: Sequence[Hook]) -> None:
        """Ask every guard; tell the hooks what is new.

        Raises:
            RollBack: A guard found something and its action is rollback.
            StoppedByGuard: The same with stop.
        """
        trace = self._trace
        for name, check in GUARDS.items():
            settings = getattr(self._settings, name)
            found = None if settings.action == "none" else check(trace, settings)
            if found is None or self._said.get(name) == found:
                continue
            self._said[name] = found
            if settings.action != "warn":
                self.end(name, StoppedByGuard(str(found), hint=HINTS[name]), found.step)
            for hook in hooks:
                hook.on_event(found.step, f"guard_{name}", str(found))

    @property
    def _trace(self) -> Trace:
        """The metrics so far."""
        found = self._evaluations
        return Trace(tuple(self._steps), [{"step": step, **found[step]} for step in sorted(found)])

    def end(self, guard: str, stopped: StoppedByGuard, step: int) -> NoReturn:
        """Act on a finding that a run must not go on with."""
        if getattr(self._settings, guard).action == "rollback":
            raise RollBack(guard, stopped, step)
        raise stopped

    def closing_notes(self) -> list[str]:
        """What is to be said of a run that came to its end."""
        trace = self._trace
        bottom = self._settings.kl.bottom
        if kl.hardly_moved(trace, bottom):
            return [
                f"the policy hardly moved: KL a token {trace.evals[-1][kl.METRIC]:.4f} is below "
                f"{bottom:g}; more steps or a higher learning rate would change more"
            ]
        return []


HINTS = {
    "finite": "lower optimizer.learning_rate, and look for odd held-out rows with `alignax data`",
    "kl": "lower optimizer.learning_rate or raise loss.beta; guards.kl.top is the limit",
    "kl_budget": "the last healthy checkpoint is the result; guards.kl_budget.nats is the limit",
    "loss": "lower optimizer.learning_rate; guards.loss.factor is the limit",
    "gradient": "look at the rows of this step; guards.gradient.deviations is the limit",
    "displacement": "add loss.nll_weight, or try loss.type dpop; guards.displacement.floor is the "
    "limit",
    "throughput": "look for other work on this machine; guards.throughput.factor is the limit",
    "memory": "go on with --train.resume, which starts with fresh memory; guards.memory.share is "
    "the limit",
    "overfit": "the best checkpoint is exported; train for fewer epochs",
}


class Rollbacks:
    """The rollbacks of a run, on disk, so that a resumed run goes on as slowly."""

    def __init__(self, file: Path, settings: GuardsSection):
        """Read those so far."""
        self._file = file
        self._settings = settings
        self.done: list[dict[str, Any]] = read_json(file)["rollbacks"] if file.exists() else []

    @property
    def exhausted(self) -> bool:
        """Whether the next one is one too many."""
        return len(self.done) >= self._settings.max_rollbacks

    @property
    def rate(self) -> float:
        """What the learning rate is multiplied with by now."""
        return self._settings.rate_factor ** len(self.done)

    @property
    def beta(self) -> float:
        """What β is multiplied with by now."""
        return self._settings.beta_factor ** len(self.done)

    @property
    def passed_over(self) -> frozenset[int]:
        """Steps whose batches are left out."""
        return frozenset(step for record in self.done for step in record.get("passed_over", []))

    def add(self, wanted: RollBack, *, to_step: int) -> str:
        """Note a rollback; returns the line that tells of it."""
        record: dict[str, Any] = {
            "guard": wanted.guard, "why": str(wanted), "at_step": wanted.at_step,
            "to_step": to_step,
        }  # fmt: skip
        self.done.append(record)
        changes = [f"learning rate times {self.rate:g}"]
        if self.beta != 1.0:
            changes.append(f"beta times {self.beta:g}")
        if self._settings.skip_batches:
            # Of a step that is not finite the batch is known; else any since then may be to blame.
            first = wanted.at_step if wanted.guard == "finite" else to_step + 1
            record["passed_over"] = list(range(first, wanted.at_step + 1))
            several = f"batches of steps {first} to {wanted.at_step}"
            one = f"batch of step {first}"
            changes.append(f"{several if first < wanted.at_step else one} left out")
        record["line"] = line = (
            f"{wanted}: back to step {to_step}, {', '.join(changes)} from here on "
            f"(rollback {len(self.done)} of {self._settings.max_rollbacks})"
        )
        write_json(self._file, {"rollbacks": self.done})
        return line

    def slowed(self, state: Any) -> Any:
        """Give a state the learning rate of now."""
        rate = np.asarray(self.rate, np.float32)
        return state._replace(rate=jax.device_put(rate, state.rate.sharding))
