# SPDX-License-Identifier: Apache-2.0
"""Objectives of several variants → one objective whose numbers and whose choice are traced.

Objectives that differ in numbers only (β, label smoothing, ends of schedules) share a form and
become one computation. Several forms (other losses, other words among the settings) are branches of
one switch, of which a variant takes its own. Numbers that no two variants differ in stay constants.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from alignax.losses.objective import Objective, Term
from alignax.losses.schedule import Schedule
from alignax.records import PairLogps, Weighted

Place = tuple[int, str, str]
"""Where a number stands: term, setting, and the end of a schedule (or nothing)."""

OWN = ("weight", "beta", "nll_weight", "kl_weight")
"""Fields of a term that may be numbers; its other numbers are among its settings."""


class Choice(NamedTuple):
    """Which objective each variant has; the axis of variants is in front.

    Attributes:
        index: [k] form of each variant.
        numbers: For every form the [k, n] numbers in which its members differ. Variants of other
            forms hold those of its first member, so that no branch sees impossible values.
    """

    index: Any
    numbers: tuple[Any, ...]


@dataclass(frozen=True)
class Form:
    """Objectives that differ in numbers only: one of them, and where they differ."""

    objective: Objective
    places: tuple[Place, ...]

    def filled(self, numbers_n: Any) -> Objective:
        """Put numbers into their places."""
        terms = list(self.objective.terms)
        for place, (index, name, end) in enumerate(self.places):
            terms[index] = _with_number(terms[index], name, end, numbers_n[place])
        return Objective(tuple(terms))


def stack(objectives: Sequence[Objective]) -> tuple[tuple[Form, ...], Choice]:
    """Find the forms of some objectives, and each one's form and numbers."""
    members: dict[Any, list[int]] = {}
    for variant, objective in enumerate(objectives):
        members.setdefault(_outline(objective), []).append(variant)
    index_k = np.zeros(len(objectives), np.int32)
    forms, numbers = [], []
    for place, group in enumerate(members.values()):
        index_k[group] = place
        known = {variant: numbers_of(objectives[variant]) for variant in group}
        first = known[group[0]]
        differing = [at for at in first if len({known[v][at] for v in group}) > 1]
        rows = [known.get(v, first) for v in range(len(objectives))]
        values = [[row[at] for at in differing] for row in rows]
        forms.append(Form(objectives[group[0]], tuple(differing)))
        numbers.append(np.array(values, np.float32).reshape(len(rows), len(differing)))
    return tuple(forms), Choice(index_k, tuple(numbers))


def union(objectives: Sequence[Objective]) -> Objective:
    """Collect all terms: an objective that needs whatever one of them needs."""
    return Objective(tuple(term for objective in objectives for term in objective.terms))


def numbers_of(objective: Objective) -> dict[Place, float]:
    """List every number of an objective by its place."""
    found: dict[Place, float] = {}
    for index, term in enumerate(objective.terms):
        for name, value in _values(term).items():
            if isinstance(value, Schedule):
                found |= {(index, name, "start"): value.start, (index, name, "end"): value.end}
            elif isinstance(value, float):
                found[index, name, ""] = value
    return found


def _values(term: Term) -> dict[str, Any]:
    """All that a term is made of but its loss."""
    return {name: getattr(term, name) for name in OWN} | dict(term.settings)


def _outline(objective: Objective) -> Any:
    """Describe an objective without its numbers."""

    def kind(value: Any) -> Any:
        if isinstance(value, Schedule):
            return ("schedule", value.shape, value.share, value.steps)
        return "number" if isinstance(value, float) else ("constant", value)

    return tuple(
        (term.spec.name, *((name, kind(value)) for name, value in _values(term).items()))
        for term in objective.terms
    )


def _with_number(term: Term, name: str, end: str, number: Any) -> Term:
    """Replace one number of a term."""
    old = _values(term)[name]
    new = replace(old, **{end: number}) if end else number
    if name in OWN:
        return replace(term, **{name: new})
    settings = tuple((known, new if known == name else value) for known, value in term.settings)
    return replace(term, settings=settings)


@dataclass(frozen=True)
class Alternatives:
    """One variant's objective: the form of its index, filled with its numbers.

    It takes the place of an ``Objective`` in a training step.
    """

    objectives: tuple[Objective, ...]
    index: Any

    @classmethod
    def of(cls, forms: Sequence[Form], choice: Choice) -> "Alternatives":
        """Fill the forms for one variant, whose part of the choice is given."""
        filled = [form.filled(n) for form, n in zip(forms, choice.numbers, strict=True)]
        return cls(tuple(filled), choice.index)

    @property
    def kind(self) -> Literal["pair", "sft", "reward"]:
        """Which records they read."""
        return self.objectives[0].kind

    @property
    def columns(self) -> tuple[str, ...]:
        """What any of them reads besides sums and token counts."""
        return union(self.objectives).columns

    @property
    def needs_reference(self) -> bool:
        """Whether any of them compares with a reference."""
        return union(self.objectives).needs_reference

    @property
    def batch_level(self) -> bool:
        """Whether any of them reads the batch as a whole."""
        return union(self.objectives).batch_level

    def at(self, step: Any) -> "Alternatives":
        """Resolve schedules for a step."""
        return replace(self, objectives=tuple(one.at(step) for one in self.objectives))

    def rewards(self, pair: PairLogps) -> tuple[Any, Any]:
        """Compute the rewards that the chosen objective implies."""
        return self._switch(lambda one: one.rewards(pair))

    def remember(self, memory: Any, pair: PairLogps, valid_p: Bool[Array, " p"]) -> Any:
        """Update what the chosen objective carries along."""
        return self._switch(lambda one: one.remember(memory, pair, valid_p))

    def __call__(self, *args: Any) -> Weighted:
        """Sum the chosen objective's loss over valid slots."""
        return self._switch(lambda one: one(*args))

    def _switch(self, apply: Any) -> Any:
        """Apply a function to the chosen objective; results have one dtype in all branches."""
        if len(self.objectives) == 1:
            return apply(self.objectives[0])

        def branch(one: Objective) -> Any:
            return lambda: jax.tree.map(jnp.asarray, apply(one))

        return jax.lax.switch(self.index, [branch(one) for one in self.objectives])
