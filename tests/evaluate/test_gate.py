# SPDX-License-Identifier: Apache-2.0
"""Goals read from words, and measures held against them."""

import math

import pytest

from alignax.errors import UsageError
from alignax.evaluate.gate import Measure, check_goals, last_number, parse_goal


@pytest.mark.parametrize(
    ("text", "name", "good", "bad"),
    [
        ("win_rate>0.6", "win_rate", 0.61, 0.6),
        ("win_rate >= 0.6", "win_rate", 0.6, 0.59),
        ("perplexity<=8", "perplexity", 8.0, 8.1),
        ("perplexity<8", "perplexity", 7.9, 8.0),
        ("kl/token=0.01..0.2", "kl/token", 0.2, 0.21),
        ("gsm8k_change>=-0.1", "gsm8k_change", -0.1, -0.2),
    ],
)
def test_goals_are_read(text, name, good, bad):
    read, goal = parse_goal(text)
    assert read == name
    assert goal.holds(good)
    assert not goal.holds(bad)
    assert not goal.holds(math.nan)


@pytest.mark.parametrize("text", ["win_rate", "wins>0.5", "win_rate>high", "win_rate>1..2e", ""])
def test_what_is_no_goal_is_refused(text):
    with pytest.raises(UsageError, match="--goal"):
        parse_goal(text)


def test_unmeasured_goals_count_only_if_they_were_named():
    measures = {"accuracy": Measure(0.8, 0.5, 0.45, 0.9), "kl/token": Measure(0.05)}
    records, passed = check_goals(measures, {})
    found = {record["name"]: record for record in records}
    assert passed
    assert found["accuracy"]["status"] == "reached"
    assert not found["accuracy"]["certain"], "its interval reaches below the goal"
    assert found["kl/token"]["certain"]
    assert found["win_rate"]["status"] == "not measured"
    assert not check_goals(measures, dict([parse_goal("win_rate>0.5")]))[1]
    assert not check_goals(measures | {"perplexity": Measure(5.1)}, {})[1]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("She has 3 + 4 = 7 apples.", 7.0),
        ("first 9 then\n#### 1,250", 1250.0),
        ("it costs $-3.50 today", -3.5),
        ("none at all", None),
    ],
)
def test_the_last_number_of_an_answer(text, number):
    assert last_number(text) == number
