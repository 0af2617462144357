# SPDX-License-Identifier: Apache-2.0
"""Every guard keeps still on a good trace, and names metric, value, limit and step on a bad one."""

import math

import pytest

from alignax.guards import GUARDS, kl
from alignax.guards.base import Finding, Trace
from alignax.sections import GradientGuard, GuardsSection, KLBudgetGuard

SETTINGS = GuardsSection(kl_budget=KLBudgetGuard(nats=5.0), gradient=GradientGuard(clip_share=0.9))
"""Defaults, and limits where there is none by default."""


def evals(**columns):
    """Evaluations at steps 0, 10, 20, … from columns of values."""
    count = len(next(iter(columns.values())))
    rows = [{name: values[n] for name, values in columns.items()} for n in range(count)]
    return Trace((), [{"step": 10 * n, **row} for n, row in enumerate(rows)])


def steps(start_loss=0.7, **columns):
    """Training steps 1, 2, 3, … after an evaluation with a loss."""
    count = len(next(iter(columns.values())))
    rows = [{"step": n + 1, **{k: v[n] for k, v in columns.items()}} for n in range(count)]
    return Trace(rows, [{"step": 0, "loss": start_loss}])


GOOD = {
    "finite": [evals(**{"loss": [0.7, 0.6], "kl/token": [0.0, 0.1]}), evals(accuracy=[math.nan])],
    "kl": [
        evals(**{"kl/token": [0.0, 0.001, 0.02, 0.04, 0.09]}),
        evals(loss=[0.7, 0.6]),
    ],
    "kl_budget": [evals(**{"kl/answer": [0.0, 3.0, 4.9]}), evals(loss=[0.7])],
    "throughput": [
        steps(seconds=[60.0] + [1.0, 1.1] * 30 + [1.5] * 3),  # one that compiles
        steps(seconds=[1.0] * 16 + [1.9] * 16),
        steps(seconds=[1.0] * 40 + [9.0] * 5 + [1.0] * 3),
    ],
    "memory": [
        steps(host_gib=[2.0, 2.1] * 32),
        steps(host_gib=[2.0] * 30 + [3.0] * 34),  # an evaluation that needs its own once
        steps(host_gib=[2.0 + 0.001 * n for n in range(64)]),
    ],
    "loss": [
        steps(loss=[0.69, 0.7, 0.5, 9.0, 0.6, 0.6, 0.5, 0.4, 0.3]),
        steps(loss=[9.0] * 7),
    ],
    "gradient": [
        steps(grad_norm=[5.0] * 32, clipped=[1.0, 0.0] * 16),
        steps(grad_norm=[1.0, 1.2, 0.9, 1.1] * 5),
        steps(grad_norm=[1.0] * 17),
    ],
    "displacement": [
        evals(margin=[0.0, 0.5], chosen_logratio=[0.0, -0.1]),
        evals(margin=[0.0, -0.5], chosen_logratio=[0.0, -3.0]),
    ],
    "overfit": [evals(loss=[0.7, 0.6, 0.59, 0.61, 0.6]), evals(loss=[0.7, 0.5, 0.8, 0.52])],
}
BAD = {
    "finite": [
        (evals(loss=[0.7, math.inf]), ("loss", math.inf, math.inf, 10)),
        (evals(**{"loss": [0.7], "kl/token": [-math.inf]}), ("kl/token", -math.inf, math.inf, 0)),
    ],
    "kl": [
        (evals(**{"kl/token": [0.0, 0.05, 0.11]}), ("kl/token", 0.11, 0.1, 20)),
        (evals(**{"kl/token": [0.0, 0.006, 0.08]}), ("kl/token", 0.08, 0.06, 20)),
    ],
    "kl_budget": [(evals(**{"kl/answer": [0.0, 5.5]}), ("kl/answer", 5.5, 5.0, 10))],
    "throughput": [
        (steps(seconds=[1.0] * 32 + [2.5, 3.0] * 8), ("seconds", 2.75, 2.0, 48)),
    ],
    "memory": [
        (
            steps(host_gib=[2.0 + 0.01 * n for n in range(64)]),
            ("host_gib", pytest.approx(2.555), 1.2 * 2.075, 64),
        )
    ],
    "loss": [(steps(loss=[0.7] * 3 + [2.0] * 5), ("loss", 2.0, 1.4, 8))],
    "gradient": [
        (steps(grad_norm=[1.0] * 16 + [4.0]), ("grad_norm", 4.0, 2.0, 17)),
        (steps(grad_norm=[1.0] * 16 + [0.0]), ("grad_norm", 0.0, 0.0, 17)),
        (steps(grad_norm=[1.0, 0.0]), ("grad_norm", 0.0, 0.0, 2)),
        (
            steps(grad_norm=[5.0] * 32, clipped=[0.0] * 17 + [1.0] * 15),
            ("clip_share", 15 / 16, 0.9, 32),
        ),
    ],
    "displacement": [
        (
            evals(margin=[0.0, 0.5], chosen_logratio=[0.0, -0.6]),
            ("chosen_logratio", -0.6, -0.5, 10),
        )
    ],
    "overfit": [(evals(loss=[0.7, 0.5, 0.8, 0.7, 0.6]), ("loss", 0.6, 0.525, 40))],
}


def test_every_guard_has_a_section_and_both_traces():
    assert set(GUARDS) == set(GOOD) == set(BAD)
    numbers = {"max_rollbacks", "rate_factor", "beta_factor", "skip_batches"}
    assert set(GUARDS) == set(GuardsSection.model_fields) - numbers


@pytest.mark.parametrize(("name", "trace"), [(n, t) for n, traces in GOOD.items() for t in traces])
def test_good_traces_are_left_alone(name, trace):
    assert GUARDS[name](trace, getattr(SETTINGS, name)) is None


@pytest.mark.parametrize("name", GUARDS)
def test_an_empty_trace_is_good(name):
    assert GUARDS[name](Trace((), ()), getattr(SETTINGS, name)) is None


@pytest.mark.parametrize(
    ("name", "trace", "want"), [(n, *case) for n, cases in BAD.items() for case in cases]
)
def test_bad_traces_are_found(name, trace, want):
    found = GUARDS[name](trace, getattr(SETTINGS, name))
    assert found is not None
    assert (found.metric, found.value, pytest.approx(found.threshold), found.step) == (
        want[0], want[1], want[2], want[3],
    )  # fmt: skip


def test_a_finding_reads_as_one_line():
    text = str(Finding("kl/token", 0.25, 0.1, 40, "the policy is far from the reference"))
    assert text == ("step 40: the policy is far from the reference (kl/token 0.25, limit 0.1)")


def test_a_run_that_hardly_moved():
    assert kl.hardly_moved(evals(**{"kl/token": [0.0, 0.004]}), 0.01)
    assert not kl.hardly_moved(evals(**{"kl/token": [0.0, 0.02]}), 0.01)
    assert not kl.hardly_moved(evals(loss=[0.7]), 0.01)
