# SPDX-License-Identifier: Apache-2.0
"""Win rates: by hand, and the command on two files."""

import json
import math

import numpy as np
import pytest

from alignax.errors import AlignaxError, UsageError
from alignax.evaluate.win_rate import summarize
from alignax.metrics.intervals import bootstrap, sign_test
from alignax.records import Comparison, Verdict
from tests.cli.tiny_model import alignax, read_lines, write_rows
from tests.judge.fake_api import fake_api

RULES = [{"kind": "keyword", "any": ["good"]}]


def judged(outcomes, *, ours=lambda n: "a" * (n + 1), theirs=lambda n: "bb"):
    items = [Comparison(str(n), f"p{n}", ours(n), theirs(n)) for n in range(len(outcomes))]
    verdicts = [Verdict(str(n), outcome, "", (outcome,)) for n, outcome in enumerate(outcomes)]
    return items, verdicts


def test_rate_by_hand():
    """5 wins, 2 ties, 1 loss, 2 without verdict: (5 + 1)/8; bounds 6/10 and 8/10."""
    outcomes = ["win"] * 5 + ["tie"] * 2 + ["loss", "error", "unparsed"]
    items, verdicts = judged(outcomes)
    result = summarize(items, verdicts[::-1])  # joined by id
    assert result.rate.value == 0.75
    assert result.coverage == 0.8
    assert result.bounds == (0.6, 0.8)
    assert (result.wilson.value, result.wilson.n) == (pytest.approx(5 / 6), 6)
    assert result.counts == {"win": 5, "tie": 2, "loss": 1, "error": 1, "unparsed": 1}
    # Six tosses, at most one loss: 2 · (1 + 6)/64.
    assert result.p_value == pytest.approx(14 / 64)
    assert result.lengths == (5.5, 2.0)
    assert "2 of 10 items have no verdict (1 error, 1 unparsed)" in result.warnings[0]


def test_nothing_decided_is_no_rate():
    result = summarize(*judged(["error", "refused"]))
    assert math.isnan(result.rate.value)
    assert (result.coverage, result.bounds, result.p_value) == (0.0, (0.0, 1.0), 1.0)
    assert math.isnan(summarize([], []).rate.value)


def test_verdicts_must_match_the_items():
    items, verdicts = judged(["win", "loss"])
    for wrong in (verdicts[:1], [*verdicts, verdicts[0]], [Verdict("9", "win"), verdicts[1]]):
        with pytest.raises(ValueError, match="do not match"):
            summarize(items, wrong)


def test_length_control_of_a_judge_that_counts_characters():
    """The candidate is longer in 80 of 100 items; who is longer wins: at equal length a half."""
    items, verdicts = judged(
        ["win" if n < 80 else "loss" for n in range(100)],
        ours=lambda n: "a" * (100 + n % 7), theirs=lambda n: "b" * (80 if n < 80 else 120 + n % 5),
    )  # fmt: skip
    result = summarize(items, verdicts)
    assert result.rate.value == 0.8
    assert result.longer_wins.value == 1.0
    assert 0.3 < result.length_controlled < 0.7
    assert any("length explains part" in warning for warning in result.warnings)


@pytest.mark.parametrize(("longer", "warned"), [(96, True), (90, False), (3, True)])
def test_lengths_that_leave_equal_length_out_of_sight(longer, warned):
    outcomes = ["win", "loss"] * 50
    result = summarize(*judged(outcomes, ours=lambda n: "a" * (5 if n < longer else 1)))
    assert any("goes beyond what was judged" in warning for warning in result.warnings) == warned


def test_a_constant_candidate_is_named():
    result = summarize(*judged(["win"] * 6, ours=lambda n: "vote for me"))
    assert any("only 1 distinct answers to 6" in warning for warning in result.warnings)


def test_sign_test_by_hand():
    assert sign_test(0, 0) == 1.0
    assert sign_test(3, 3) == 1.0
    assert sign_test(5, 0) == pytest.approx(2 / 32)
    assert sign_test(1, 5) == pytest.approx(14 / 64)


def test_bootstrap_agrees_with_the_normal_interval_of_many_values():
    values = np.random.default_rng(0).normal(2.0, 3.0, 4000)
    score = bootstrap(values, resamples=1000)
    half = 1.96 * values.std() / math.sqrt(4000)
    np.testing.assert_allclose(
        [score.value, score.low, score.high],
        [values.mean(), values.mean() - half, values.mean() + half], atol=0.012,
    )  # fmt: skip
    assert math.isnan(bootstrap([]).value)
    assert (bootstrap([1.0, 1.0]).low, bootstrap([1.0, 1.0]).high) == (1.0, 1.0)


@pytest.fixture
def files(tmp_path):
    """Eight prompts; the candidate is good on six, the baseline on one of the others."""
    ours = [{"prompt": f"p{n}", "text": "good" if n < 6 else "bad"} for n in range(8)]
    theirs = [{"instruction": f"p{n}", "output": "good" if n == 7 else "meh"} for n in range(8)]
    (tmp_path / "rules.json").write_text(json.dumps(RULES))
    write_rows(tmp_path / "tuned.jsonl", ours)
    (tmp_path / "base.json").write_text(json.dumps(theirs[::-1]))
    return tmp_path


def command(files, *words, judge="rules"):
    judge = f"rules:{files / 'rules.json'}" if judge == "rules" else judge
    sides = ("--outputs", files / "tuned.jsonl", "--baseline", files / "base.json")
    return ("evaluate", "win-rate", *sides, "--judge", judge, *words)


def test_rules_decide_two_files_of_other_forms_and_orders(files, capsys):
    verdicts = files / "verdicts.jsonl"
    assert alignax(*command(files, "--json", "--verdicts", verdicts)) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["rate"]["value"] == pytest.approx(6.5 / 8)
    assert values["counts"] == {"win": 6, "tie": 1, "loss": 1}
    assert (values["candidate"], values["baseline"]) == ("tuned", "base")
    assert [v["outcome"] for v in read_lines(verdicts)] == ["win"] * 6 + ["tie", "loss"]
    with pytest.raises(AlignaxError, match="exists; nothing was judged"):
        alignax(*command(files, "--verdicts", verdicts))
    assert alignax(*command(files)) == 0
    assert "0.812" in capsys.readouterr().out


def test_goal_decides_the_exit_code(files):
    assert alignax(*command(files, "--goal", "0.8")) == 0
    assert alignax(*command(files, "--goal", "0.82")) == 4


def test_a_judge_that_a_constant_answer_beats_is_named(files, capsys):
    (files / "rules.json").write_text(json.dumps([{"kind": "length", "min": 20}]))
    assert alignax(*command(files, "--json")) == 0
    warnings = json.loads(capsys.readouterr().out)["warnings"]
    assert any("a constant answer wins 100% of 8 items" in warning for warning in warnings)


def test_unlike_files_are_refused_or_compared_where_alike(files, capsys):
    rows = [{"prompt": f"p{n}", "text": "good"} for n in (0, 1, 9)]
    write_rows(files / "tuned.jsonl", rows)
    with pytest.raises(AlignaxError, match="different prompts: 2 in both, 7 in one") as caught:
        alignax(*command(files))
    assert "only in --outputs: 'p9'" in str(caught.value)
    assert alignax(*command(files, "--common", "--json")) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["rate"]["n"] == 2
    assert any("7 prompts are in one file only" in warning for warning in values["warnings"])


@pytest.mark.parametrize(
    ("rows", "needle"),
    [
        ([{"prompt": "p"}], "no prompt with an answer"),
        ([{"id": 1, "prompt": "p", "text": "a"}] * 2, "id '1' occurs twice"),
        (["text"], "it has str"),
    ],
)
def test_wrong_answer_files(rows, needle, files):
    write_rows(files / "tuned.jsonl", rows)
    with pytest.raises(AlignaxError) as caught:
        alignax(*command(files))
    assert needle in str(caught.value)


def test_samples_of_one_prompt_are_paired_in_order(files, capsys):
    write_rows(files / "tuned.jsonl", [{"prompt": "p", "text": t} for t in ("good", "bad")])
    (files / "base.json").write_text(
        json.dumps([{"prompt": [{"role": "user", "content": "p"}], "text": "bad"}] * 2)
    )
    assert alignax(*command(files, "--json")) == 0
    assert json.loads(capsys.readouterr().out)["counts"] == {"win": 1, "tie": 1}


def test_an_endpoint_judges_both_orders(files, capsys):
    """It reads the answers; one item it will not judge. A second run asks only that one."""

    def script(number, request):
        text = request["messages"][1]["content"]
        if "p5\n" in text:
            return "I cannot help with that."
        first, second = (text.split(f"<{side}>\n")[1].split("\n</")[0] for side in "AB")
        better = {("good", "meh"): "A", ("meh", "good"): "B"}.get((first, second), "C")
        return f"[[{better}]]"

    with fake_api(script) as api:
        words = command(
            files, "--base-url", api.url, "--judge-cache", files / "cache", "--json",
            "--null-items", "0", "--names", "tuned-fake,base", judge="openai:fake-1",
        )  # fmt: skip
        assert alignax(*words) == 0
        values = json.loads(capsys.readouterr().out)
        assert api.calls == 16
        assert alignax(*words) == 0
        assert api.calls == 18
    assert values["counts"] == {"win": 5, "refused": 1, "tie": 2}
    assert values["coverage"] == 7 / 8
    assert values["judge"]["flip_rate"]["value"] == 0.0
    assert any("same family as the candidate" in warning for warning in values["warnings"])


def test_wrong_judges_are_refused(files):
    for judge, needle in (("oracle", "rules:FILE"), ("rules:none.json", "cannot read rules")):
        with pytest.raises(AlignaxError) as caught:
            alignax(*command(files, judge=judge))
        assert needle in str(caught.value)
    with pytest.raises(UsageError, match="not valid") as caught:
        alignax(*command(files, "--workers", "0", "--request", "[]", judge="openai:gpt"))
    text = str(caught.value)
    assert "--workers" in text
    assert "--price is missing" in text
    assert "--request must be a JSON object" in text
