# SPDX-License-Identifier: Apache-2.0
"""Log-probs → loss: pure functions of one example, and the objective that maps over a batch.

To add a loss: one file with its function and ``LossSpec``, one line in ``LOSSES``, one row of
hand-derived values in ``tests/losses/cases.py``.
"""

import difflib
from collections.abc import Mapping
from typing import Any, Literal

from alignax.errors import UsageError
from alignax.losses.alphapo import ALPHAPO
from alignax.losses.alternatives import Alternatives
from alignax.losses.aot import AOT, AOT_UNPAIRED
from alignax.losses.apo import APO_DOWN, APO_ZERO
from alignax.losses.bco import BCO, BCO_PAIR
from alignax.losses.beta_dpo import BETA_DPO
from alignax.losses.bradley_terry import BRADLEY_TERRY, BRADLEY_TERRY_MARGIN
from alignax.losses.chosen_nll import CHOSEN_NLL
from alignax.losses.cpo import CPO
from alignax.losses.discopop import DISCOPOP
from alignax.losses.dpo import SIGMOID
from alignax.losses.dpop import DPOP
from alignax.losses.exo import EXO
from alignax.losses.hinge import HINGE
from alignax.losses.ipo import IPO
from alignax.losses.knobs import TERMS, read_number
from alignax.losses.kto import KTO, KTO_PAIR
from alignax.losses.ld_dpo import LD_DPO
from alignax.losses.nca import NCA
from alignax.losses.objective import Objective, Term
from alignax.losses.orpo import ORPO
from alignax.losses.rdpo import RDPO
from alignax.losses.robust import ROBUST
from alignax.losses.rpo import RPO
from alignax.losses.scored import DISTILL, MARGIN
from alignax.losses.sft import NLL
from alignax.losses.sigmoid_norm import SIGMOID_NORM
from alignax.losses.simpo import SIMPO
from alignax.losses.spec import LossSpec
from alignax.losses.sppo import SPPO
from alignax.losses.sums import Part, split_sum
from alignax.losses.tdpo import TDPO1, TDPO2
from alignax.losses.wpo import WPO

LOSSES: dict[str, LossSpec] = {
    "sigmoid": SIGMOID,
    "sigmoid_norm": SIGMOID_NORM,
    "robust": ROBUST,
    "ipo": IPO,
    "hinge": HINGE,
    "simpo": SIMPO,
    "alphapo": ALPHAPO,
    "orpo": ORPO,
    "cpo": CPO,
    "kto": KTO,
    "kto_pair": KTO_PAIR,
    "bco": BCO,
    "bco_pair": BCO_PAIR,
    "exo": EXO,
    "nca": NCA,
    "sppo": SPPO,
    "aot": AOT,
    "aot_unpaired": AOT_UNPAIRED,
    "apo_zero": APO_ZERO,
    "apo_down": APO_DOWN,
    "discopop": DISCOPOP,
    "rdpo": RDPO,
    "ld_dpo": LD_DPO,
    "wpo": WPO,
    "dpop": DPOP,
    "rpo": RPO,
    "chosen_nll": CHOSEN_NLL,
    "tdpo1": TDPO1,
    "tdpo2": TDPO2,
    "beta_dpo": BETA_DPO,
    "margin": MARGIN,
    "distill": DISTILL,
    "nll": NLL,
    "bradley_terry": BRADLEY_TERRY,
    "bradley_terry_margin": BRADLEY_TERRY_MARGIN,
}

DEFAULT_LOSS: dict[str, str] = {
    "pair": "sigmoid",
    "sft": "nll",
    "reward": "bradley_terry",
}
"""The loss of each kind of record when none is named."""

KNOBS: dict[str, str] = {
    name: knob.meaning for spec in reversed(LOSSES.values()) for name, knob in spec.knobs.items()
}
"""Every setting besides β that some loss honours, and what it means."""


def build_loss(
    name: str | None = None,
    *,
    kind: Literal["pair", "sft", "reward"],
    beta: Any = None,
    **knobs: Any,
) -> Objective:
    """Bind a loss, or a sum of losses, to its settings.

    Args:
        name: A key of ``LOSSES``, or a sum like ``"0.8*sigmoid + 0.2*bco_pair(beta=0.05)"``; None
            for the usual loss of ``kind``.
        kind: Which records there are to train on.
        beta: A number or a schedule like ``"0.1 -> 0.02"``; None for each loss's own default.
        **knobs: Keys of ``KNOBS``; None for each loss's own default. In a sum, a setting goes to
            every loss that honours it; what stands in a loss's parentheses goes first.

    Raises:
        UsageError: Unknown loss, a loss for other records, bad values, or settings that would
            have no effect; all problems at once.
    """
    parts = split_sum(DEFAULT_LOSS[kind] if name is None else name)
    specs = [_find(part.name, kind) for part in parts]
    given = {knob: value for knob, value in knobs.items() if value is not None}
    if beta is not None:
        given = {"beta": beta, **given}
    problems = _ineffective(specs, parts, given)
    terms = [_bind(part, spec, given, problems) for part, spec in zip(parts, specs, strict=True)]
    if problems:
        names = " + ".join(spec.name for spec in specs)
        problems = list(dict.fromkeys(problems))
        raise UsageError(f"the settings do not fit the loss {names!r}", problems=problems)
    return Objective(tuple(terms))


def _find(name: str, kind: str) -> LossSpec:
    """Look a loss up; the error lists those that fit."""
    spec = LOSSES.get(name)
    if spec is not None and spec.kind == kind:
        return spec
    fitting = [known for known, other in LOSSES.items() if other.kind == kind]
    wrong = f"unknown loss {name!r}" if spec is None else f"{name!r} is a {spec.kind} loss"
    near = difflib.get_close_matches(name, fitting, 1, 0.6)
    meant = f"did you mean {near[0]!r}? " if near else ""
    raise UsageError(
        f"loss.type: {wrong}", hint=f"{meant}losses for {kind} rows: {', '.join(fitting)}"
    )


def _ineffective(specs: list[LossSpec], parts: list[Part], given: Mapping[str, Any]) -> list[str]:
    """List settings that no loss of the sum honours, and terms that would be added twice."""
    problems = []
    for name, value in given.items():
        if not any(_honours(spec, name) for spec in specs):
            problems.append(_no_effect(specs[0], name, value))
        elif name in TERMS and len(specs) > 1:
            problems.append(
                f"loss.{name}={value}: which loss of the sum? Write it into the parentheses of "
                f"one, as in {parts[0].name}({name}={value})"
            )
    for part, spec in zip(parts, specs, strict=True):
        problems += [
            _no_effect(spec, name, value)
            for name, value in part.settings.items()
            if not _honours(spec, name)
        ]
        if not part.weight > 0:
            problems.append(f"loss.type: {part.name} has weight {part.weight:g}; leave it out")
    return problems


def _honours(spec: LossSpec, name: str) -> bool:
    """Tell whether a setting has an effect on a loss."""
    return spec.default_beta is not None if name == "beta" else name in spec.knobs


def _no_effect(spec: LossSpec, name: str, value: Any) -> str:
    """Say that a setting is unknown or has no effect, and what to do."""
    if name == "beta":
        return f"loss.beta={value} has no effect: {spec.name} has no β; leave it out"
    if name not in KNOBS:
        near = difflib.get_close_matches(name, KNOBS, 1, 0.6)
        meant = f"did you mean {near[0]}? " if near else ""
        known = ", ".join(("beta", *(spec.knobs or KNOBS)))
        return f"loss.{name}: unknown setting; {meant}{spec.name} knows: {known}"
    users = ", ".join(other.name for other in LOSSES.values() if name in other.knobs)
    known = ", ".join(spec.knobs) or "none"
    return (
        f"loss.{name}={value} has no effect with this loss; leave it out (settings of "
        f"{spec.name}: {known}; losses with {name}: {users})"
    )


def _bind(part: Part, spec: LossSpec, given: Mapping[str, Any], problems: list[str]) -> Term:
    """Read the settings of one loss; what is wrong with them is added to ``problems``."""
    chosen = {name: value for name, value in given.items() if _honours(spec, name)}
    chosen |= part.settings
    values: dict[str, Any] = {}
    beta = None
    try:
        if spec.default_beta is not None:
            raw = chosen.get("beta")
            beta = spec.default_beta if raw is None else read_number(raw, "loss.beta", above=True)
    except UsageError as error:
        problems.append(error.message)
    for name, knob in spec.knobs.items():
        values[name] = knob.default
        try:
            if name in chosen:
                values[name] = knob.read(chosen[name], f"loss.{name}")
        except UsageError as error:
            problems.append(error.message)
    for name, knob in spec.knobs.items():
        if name in chosen and knob.only_with and values[knob.only_with[0]] != knob.only_with[1]:
            other, wanted = knob.only_with
            problems.append(
                f"loss.{name}={chosen[name]} has no effect without loss.{other}={wanted}"
            )
    terms = {name: values.pop(name, 0.0) for name in TERMS}
    return Term(spec, part.weight, beta, **terms, settings=tuple(values.items()))


__all__ = [
    "Alternatives",
    "DEFAULT_LOSS",
    "KNOBS",
    "LOSSES",
    "LossSpec",
    "Objective",
    "Term",
    "build_loss",
]
