# SPDX-License-Identifier: Apache-2.0
"""Log-probs → loss: pure functions of one example, and the objective that maps over a batch.

To add a loss: one file with its function and ``LossSpec``, one line in ``LOSSES``, one row of
hand-derived values in ``tests/losses/cases.py``.
"""

import math
from typing import Literal

from alignax.errors import UsageError
from alignax.losses.dpo import SIGMOID
from alignax.losses.sft import NLL
from alignax.losses.spec import LossSpec, Objective

LOSSES: dict[str, LossSpec] = {
    "sigmoid": SIGMOID,
    "nll": NLL,
}

DEFAULT_LOSS: dict[str, str] = {"pair": "sigmoid", "sft": "nll"}
"""The loss of each kind of record when none is named."""

KNOBS: dict[str, float] = {"label_smoothing": 0.0, "nll_weight": 0.0, "kl_weight": 0.0}
"""Every setting besides β that some loss honours, with the value that means "not set"."""

_TERMS = ("nll_weight", "kl_weight")


def build_loss(
    name: str | None = None,
    *,
    kind: Literal["pair", "sft"],
    beta: float | None = None,
    **knobs: float,
) -> Objective:
    """Bind a loss to its settings.

    Args:
        name: A key of ``LOSSES``; None for the usual loss of ``kind``.
        kind: Which records there are to train on.
        beta: None for the loss's own default.
        **knobs: Keys of ``KNOBS``.

    Raises:
        UsageError: Unknown loss, a loss for other records, bad values, or settings that would
            have no effect; all problems at once.
    """
    fitting = [known for known, spec in LOSSES.items() if spec.kind == kind]
    spec = LOSSES.get(DEFAULT_LOSS[kind] if name is None else name)
    if spec is None or spec.kind != kind:
        wrong = f"unknown loss {name!r}" if spec is None else f"{name!r} is a {spec.kind} loss"
        raise UsageError(
            f"loss.type: {wrong}", hint=f"losses for {kind} rows: {', '.join(fitting)}"
        )
    problems = _problems(spec, beta, knobs)
    if problems:
        raise UsageError(f"the settings do not fit the loss {spec.name!r}", problems=problems)
    values = {**KNOBS, **knobs}
    return Objective(
        spec=spec,
        beta=float(beta if beta is not None else spec.default_beta or 0.0),
        **{term: float(values[term]) for term in _TERMS},
        settings=tuple((knob, float(values[knob])) for knob in spec.knobs if knob not in _TERMS),
    )


def _problems(spec: LossSpec, beta: float | None, knobs: dict[str, float]) -> list[str]:
    """List everything that is wrong with the settings."""
    problems = []
    if beta is not None and spec.default_beta is None:
        problems.append(f"loss.beta={beta} has no effect: this loss has no β; leave it out")
    elif beta is not None and not (beta > 0 and math.isfinite(beta)):
        problems.append(f"loss.beta must be a number above 0, got {beta}: at 0 nothing can move")
    for knob, value in knobs.items():
        if knob not in KNOBS:
            problems.append(f"loss.{knob}: unknown setting; known: beta, {', '.join(KNOBS)}")
        elif knob not in spec.knobs and value != KNOBS[knob]:
            problems.append(f"loss.{knob}={value} has no effect with this loss; leave it out")
        elif not (value >= 0 and math.isfinite(value)):
            problems.append(f"loss.{knob} must be a number of at least 0, got {value}")
        elif knob == "label_smoothing" and value >= 0.5:
            problems.append(f"loss.label_smoothing must be below 0.5, got {value}")
    return problems


__all__ = ["DEFAULT_LOSS", "KNOBS", "LOSSES", "LossSpec", "Objective", "build_loss"]
