# SPDX-License-Identifier: Apache-2.0
"""Guards at work on the variants of a sweep: what one of them stops is frozen, the others go on.

A rollback of one variant would need data that the others have passed, so a guard whose action is
rollback freezes as one whose action is stop does. What is frozen, and since when, is on disk, so
that a resumed sweep knows it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from alignax.errors import StoppedByGuard
from alignax.files import read_json, write_json
from alignax.records import Weighted
from alignax.sections import GuardsSection
from alignax.train.hooks import Hook
from alignax.train.rollback import RollBack, Watch

Values = Mapping[str, float]


def flat_values(names: Sequence[str], running_k: Any, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Turn metrics with an axis of variants into ``v1/loss`` and so on, of those that run."""
    flat: dict[str, Any] = {}
    for place, name in enumerate(names):
        if not running_k[place]:
            continue
        for metric, value in metrics.items():
            flat[f"{name}/{metric}"] = (
                Weighted(value.total[place], value.weight[place])
                if isinstance(value, Weighted)
                else value[place]
            )
    return flat


def values_of(name: str, flat: Values) -> dict[str, float]:
    """Take one variant's values out of flat ones; empty if there are none."""
    prefix = f"{name}/"
    return {key.removeprefix(prefix): v for key, v in flat.items() if key.startswith(prefix)}


class VariantsWatch:
    """Applies the guards of a recipe to every variant.

    Attributes:
        names: Names of the variants.
        running: [k] whether each still trains.
        frozen: What is known of those that do not, by name: ``step``, ``guard``, ``why``.
        evaluations: Step → held-out values, by name.
    """

    def __init__(
        self,
        names: Sequence[str],
        settings: GuardsSection,
        file: Path,
        evaluations: Mapping[int, Values],
        *,
        start_step: int,
        clip_norms: Sequence[float],
    ):
        """Watch variants from a step on; what was frozen later is forgotten.

        ``clip_norms`` holds the norm at which each variant's gradients are clipped.
        """
        self.names = list(names)
        self._file = file
        known = read_json(file) if file.exists() else {}
        self.frozen = {name: r for name, r in known.items() if r["step"] <= start_step}
        self.running = np.array([name not in self.frozen for name in names])
        self.evaluations: dict[str, dict[int, dict[str, float]]] = {
            name: {step: own for step, v in evaluations.items() if (own := values_of(name, v))}
            for name in names
        }
        settings = _freezing(settings)
        self._watches = {
            name: Watch(settings, self.evaluations[name], clip_norm=norm)
            for name, norm in zip(names, clip_norms, strict=True)
        }
        self._objections: dict[str, tuple[int, str, str]] = {}

    def saw_finite(self, step: int, finite_k: Any) -> None:
        """Note which updates were finite; those that were not have not been applied."""
        for place, name in enumerate(self.names):
            if self.running[place] and not finite_k[place]:
                text = f"step {step}: loss or gradient is not finite; the update was not applied"
                self._objections[name] = (step, "finite", text)

    def saw_step(self, step: int, values: Values) -> None:
        """Note a training step of all variants."""
        for name in self._still_running:
            own = values_of(name, values)
            if own and name not in self._objections:
                self._watches[name].saw_step(step, own)

    def saw_evaluation(self, step: int, name: str, values: dict[str, float]) -> None:
        """Note a held-out evaluation of one variant."""
        self.evaluations[name][step] = values

    def judge(self, hooks: Sequence[Hook]) -> None:
        """Ask every guard about every variant that runs; freeze those that one objects to."""
        for name in self._still_running:
            if name not in self._objections:
                try:
                    self._watches[name].judge([_Named(name, hooks)])
                except RollBack as wanted:
                    self._objections[name] = (0, wanted.guard, wanted.stopped.message)
        for name, (step, guard, why) in self._objections.items():
            at = step or self._step_of(name)
            self.running[self.names.index(name)] = False
            self.frozen[name] = {"step": at, "guard": guard, "why": why}
            write_json(self._file, self.frozen)
            left = int(self.running.sum())
            for hook in hooks:
                hook.on_event(at, "frozen", f"{name}: {why}; {left} of {len(self.names)} go on")
        self._objections.clear()

    def skipped(self, step: int) -> str | None:
        """Leave no step out: a bad one freezes its variant."""
        return None

    def end(self, guard: str, stopped: StoppedByGuard, step: int) -> NoReturn:
        """End the sweep; a single variant's trouble never comes here."""
        raise stopped

    @property
    def _still_running(self) -> list[str]:
        """Names of the variants that train."""
        return [name for name, runs in zip(self.names, self.running, strict=True) if runs]

    def _step_of(self, name: str) -> int:
        """The last step that a variant's guards have seen."""
        return self._watches[name].last_step


def _freezing(settings: GuardsSection) -> GuardsSection:
    """Let guards that would stop a run object as those that would roll it back do."""
    stopping = {
        name: section.model_copy(update={"action": "rollback"})
        for name, section in settings
        if getattr(section, "action", None) == "stop"
    }
    return settings.model_copy(update=stopping)


class _Named:
    """Hooks that are told whose event it is."""

    def __init__(self, name: str, hooks: Sequence[Hook]):
        self._name = name
        self._hooks = hooks

    def on_event(self, step: int, kind: str, message: str) -> None:
        """Pass an event on."""
        for hook in self._hooks:
            hook.on_event(step, kind, f"{self._name}: {message}")

    def on_step(self, step: int, values: Values) -> None:
        """Guards do not report steps."""

    def on_eval(self, step: int, values: Values) -> None:
        """Guards do not report evaluations."""

    def close(self) -> None:
        """The hooks are not ours to close."""
