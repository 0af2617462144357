# SPDX-License-Identifier: Apache-2.0
"""Both orders, combined: by hand, with judges whose vice is known."""

import pytest

from alignax.judge.base import Opinion
from alignax.judge.orders import (
    combined,
    judge_both_orders,
    longer_wins,
    null_model,
    reliability,
    self_preference,
)
from alignax.records import Comparison, Verdict


class Scripted:
    """A judge made of a function of (first, second)."""

    name = fingerprint = "scripted"
    family = "gpt"
    symmetric = False

    def __init__(self, decide):
        self.decide, self.asked = decide, []

    def judge(self, questions, *, done=lambda _: None):
        self.asked += questions
        return [Opinion(self.decide(q.first, q.second), "text") for q in questions]


def items(*pairs):
    return [Comparison(str(n), f"p{n}", one, two) for n, (one, two) in enumerate(pairs)]


def longer(one, two):
    return "win" if len(one) > len(two) else "loss" if len(one) < len(two) else "tie"


@pytest.mark.parametrize(
    ("orders", "outcome"),
    [
        (("win", "win"), "win"), (("loss", "loss"), "loss"), (("tie", "tie"), "tie"),
        (("win", "loss"), "tie"), (("win", "tie"), "tie"), (("win", "error"), "error"),
        (("unparsed", "loss"), "unparsed"), (("refused", "error"), "error"),
        (("unparsed", "refused"), "refused"), (("win",), "win"),
    ],
)  # fmt: skip
def test_combining(orders, outcome):
    assert combined(orders) == outcome


def test_a_judge_of_content_agrees_with_itself():
    found = judge_both_orders(Scripted(longer), items(("aaa", "b"), ("a", "bbb"), ("a", "b")))
    assert [v.outcome for v in found] == ["win", "loss", "tie"]
    assert [v.orders for v in found] == [("win", "win"), ("loss", "loss"), ("tie", "tie")]
    assert reliability(found).flip_rate.value == 0.0
    assert reliability(found).first_wins.value == 0.5


def test_a_judge_that_likes_the_first_place_decides_nothing():
    found = judge_both_orders(Scripted(lambda one, two: "win"), items(*[("a", "b")] * 5))
    assert {v.outcome for v in found} == {"tie"}
    judge = reliability(found)
    assert (judge.flip_rate.value, judge.first_wins.value, judge.tie_rate.value) == (1.0, 1.0, 1.0)
    assert judge.counts == {"tie": 5}


def test_equal_answers_are_ties_and_cost_nothing():
    judge = Scripted(longer)
    found = judge_both_orders(judge, items(("same", "same"), ("aa", "b")))
    assert [v.outcome for v in found] == ["tie", "win"]
    assert len(judge.asked) == 2
    assert reliability(found).flip_rate.n == 1
    assert judge_both_orders(judge, []) == []


def test_a_symmetric_judge_is_asked_once():
    judge = Scripted(longer)
    judge.symmetric = True
    found = judge_both_orders(judge, items(("aa", "b"), ("a", "bb")))
    assert [v.orders for v in found] == [("win",), ("loss",)]
    assert len(judge.asked) == 2
    assert reliability(found).flip_rate.n == 0


def test_failures_are_counted_and_left_out_of_the_rates():
    verdicts = [
        Verdict("0", "win", "", ("win", "win")), Verdict("1", "error", "", ("win", "error")),
        Verdict("2", "tie", "", ("win", "loss")), Verdict("3", "refused", "", ("refused", "win")),
    ]  # fmt: skip
    judge = reliability(verdicts)
    assert judge.counts == {"win": 1, "error": 1, "tie": 1, "refused": 1}
    assert (judge.flip_rate.value, judge.flip_rate.n) == (0.5, 2)
    assert (judge.tie_rate.value, judge.tie_rate.n) == (0.5, 2)
    # Single winners: 0 first and second place, 2 first place twice.
    assert (judge.first_wins.value, judge.first_wins.n) == (0.75, 4)


def test_longer_wins_by_hand():
    """Longer wins, shorter loses, longer loses; equal lengths and ties say nothing."""
    pairs = items(("aaa", "b"), ("a", "bbb"), ("aaa", "b"), ("a", "b"), ("aaa", "b"))
    outcomes = ("win", "loss", "loss", "win", "tie")
    verdicts = [Verdict(str(n), outcome) for n, outcome in enumerate(outcomes)]
    score = longer_wins(pairs, verdicts)
    assert (score.value, score.n) == (pytest.approx(2 / 3), 3)


def test_the_null_model_says_the_same_everywhere():
    (one, two) = null_model(items(("a", "b"), ("c", "d")), "no")
    assert (one.answer, two.answer, one.baseline, two.baseline) == ("no", "no", "b", "d")
    assert (one.item_id, one.prompt) == ("null 0", "p0")


@pytest.mark.parametrize(
    ("candidate", "baseline", "words"),
    [
        ("my-GPT-4o", "llama", "family as the candidate"),
        ("llama", "gpt-4", "family as the baseline"),
        ("gpt-4", "gpt-3.5", "candidate and the baseline"), ("llama", "qwen", ""),
    ],
)  # fmt: skip
def test_self_preference(candidate, baseline, words):
    found = self_preference(Scripted(longer), candidate, baseline)
    assert words in found
    assert bool(found) == bool(words)
