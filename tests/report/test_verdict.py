# SPDX-License-Identifier: Apache-2.0
"""The verdict says what the numbers prove, and no more."""

import math

import pytest

from alignax.report.verdict import Finding, judge

BEFORE = {
    "n": 200.0,
    "loss": math.log(2),
    "loss_low": math.log(2),
    "loss_high": math.log(2),
    "accuracy": 0.0,
    "accuracy_low": 0.0,
    "accuracy_high": 0.02,
    "ties": 1.0,
    "margin": 0.0,
    "margin_low": 0.0,
    "margin_high": 0.0,
    "kl/token": 0.0,
    "perplexity": 5.0,
    "chosen_logratio": 0.0,
    "rejected_logratio": 0.0,
}
AFTER = BEFORE | {
    "loss": 0.66,
    "loss_low": 0.65,
    "loss_high": 0.67,
    "accuracy": 0.64,
    "accuracy_low": 0.57,
    "accuracy_high": 0.70,
    "ties": 0.0,
    "margin": 0.08,
    "margin_low": 0.05,
    "margin_high": 0.11,
    "kl/token": 0.03,
    "chosen_logratio": 0.02,
    "rejected_logratio": -0.03,
}


def verdict(before=BEFORE, after=AFTER, **changes):
    """Judge a finished run."""
    facts = {
        "method": "dpo",
        "finished": True,
        "steps": 100,
        "best_step": 100,
        "best_metric": "loss",
        "before": before,
        "after": after,
        "last": after,
    }
    return judge(Finding(**{**facts, **changes}))


def test_a_clear_success():
    found = verdict()
    assert found.status == "better"
    for words in (
        "learned the preference",
        "0.000 to 0.080 (95 % interval 0.050 to 0.110, clear of",
        "64.0 %",
        "57.0 to 70.0",
        "every pair was a tie",
        "fell from 0.6931 to 0.6600",
        "within the usual 0.01 to 0.1",
        "chosen answers themselves became more likely",
        "±6 points",
    ):
        assert words in found.text
    assert found.advice == ()


def test_an_interval_that_holds_the_start_proves_nothing():
    found = verdict(after=AFTER | {"margin_low": -0.01, "accuracy_low": 0.48})
    assert found.status == "unclear"
    assert "No effect can be shown" in found.text
    assert "not distinguishable from guessing" in found.text
    assert found.advice


def test_a_margin_below_the_start_is_worse():
    after = AFTER | {"margin": -0.05, "margin_low": -0.08, "margin_high": -0.02, "loss": 0.72}
    found = verdict(after=after)
    assert found.status == "worse"
    assert "against the preference" in found.text
    assert "rose from 0.6931" in found.text
    assert "swapped" in found.advice[0]


def test_displacement_is_said_plainly():
    found = verdict(after=AFTER | {"chosen_logratio": -0.02, "rejected_logratio": -0.07})
    assert "margin grew while the chosen answers became less likely" in found.text
    assert any("nll_weight" in tip for tip in found.advice)


@pytest.mark.parametrize(
    ("kl", "words", "tip"),
    [
        (0.002, "below the usual", "higher learning rate"),
        (0.05, "within the usual", None),
        (0.4, "above the usual", "lower learning rate"),
    ],
)
def test_the_distance_from_the_reference(kl, words, tip):
    found = verdict(after=AFTER | {"kl/token": kl})
    assert words in found.text
    assert any(tip in advice for advice in found.advice) if tip else found.advice == ()


def test_a_loss_that_rises_with_the_margin_is_overconfidence():
    found = verdict(after=AFTER | {"loss": 0.9, "loss_low": 0.8, "loss_high": 1.0})
    assert found.status == "better"
    assert any("confidence" in tip for tip in found.advice)


def test_a_best_step_before_the_end():
    found = verdict(best_step=60, last=AFTER | {"loss": 0.70, "loss_low": 0.69, "loss_high": 0.71})
    assert "step 60 of 100" in found.text
    assert "longer than useful" in found.text
    within = verdict(best_step=60, last=AFTER | {"loss": 0.661})
    assert "longer than useful" not in within.text


def test_the_start_being_the_best_is_said():
    assert "no update improved it" in verdict(best_step=0).text


def test_nothing_held_out():
    found = verdict(before=None, after=None)
    assert found.status == "unfinished"
    assert "nothing can be said" in found.text
    assert "eval_fraction" in found.advice[0]


def test_a_start_that_is_not_the_reference_is_compared_with_itself():
    before = BEFORE | {"margin": 4.8, "margin_low": 4.0, "margin_high": 5.6, "ties": 0.0}
    found = verdict(
        before=before, after=AFTER | {"margin": 5.0, "margin_low": 4.2, "margin_high": 5.8}
    )
    assert found.status == "unclear"
    assert "4.800 to 5.000" in found.text


@pytest.mark.parametrize(("loss", "status"), [(1.8, "better"), (1.99, "unclear"), (2.3, "worse")])
def test_supervised_runs(loss, status):
    def values(mean):
        return {"n": 50.0, "loss": mean, "loss_low": mean - 0.02, "loss_high": mean + 0.02,
                "perplexity": math.exp(mean)}  # fmt: skip

    found = verdict(before=values(2.0), after=values(loss), last=None, method="sft")
    assert found.status == status
    assert f"to {loss:.4f}" in found.text
