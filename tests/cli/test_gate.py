# SPDX-License-Identifier: Apache-2.0
"""A finished run against its start: the table, the files, and the exit code."""

import json

import pytest

from alignax.errors import AlignaxError
from tests.cli.tiny_model import alignax, write_rows

EASY = ("--goal", "perplexity<=1e9", "--goal", "kl/token=0..99", "--goal", "accuracy>=0",
        "--goal", "loss_ratio<=99", "--goal", "length_ratio=0..99")  # fmt: skip


def test_a_run_is_measured_beside_its_start(dpo_run, tmp_path, capsys):
    texts = tmp_path / "texts.txt"
    texts.write_text("red cats drink tea\nthe sun and the moon\n", encoding="utf-8")
    sums = write_rows(tmp_path / "sums.jsonl", [{"question": "1+1?", "answer": "so #### 2"}])
    rules = tmp_path / "rules.json"
    rules.write_text('[{"kind": "length", "min": 1, "unit": "characters"}]', encoding="utf-8")
    words = ("gate", dpo_run, "--items", "3", "--max-new-tokens", "6", "--json", *EASY)
    files = ("--texts", texts, "--gsm8k", sums, "--judge", f"rules:{rules}")
    code = alignax(*words, *files, "--goal", "win_rate>=0", "--goal", "text_perplexity_ratio<=99")
    result = json.loads(capsys.readouterr().out)
    goals = {goal["name"]: goal for goal in result["goals"]}
    assert {goal["status"] for goal in goals.values()} <= {"reached", "not reached"}
    assert result["passed"] == (code == 0) == all(g["status"] == "reached" for g in goals.values())
    assert result["prompts"] == 2, "the run holds out two"
    assert goals["gsm8k_change"]["value"] == 0.0
    assert 0.2 < goals["text_perplexity_ratio"]["value"] < 5
    assert goals["text_perplexity_ratio"]["value"] != 1.0
    assert json.loads((dpo_run / "gate.json").read_text()) == result
    assert "text perplexity ratio" in (dpo_run / "report.html").read_text()


def test_a_goal_that_is_missed_sets_the_exit_code(dpo_run):
    words = ("gate", dpo_run, "--items", "2", "--max-new-tokens", "4", *EASY)
    assert alignax(*words, "--goal", "accuracy>1") == 4


def test_what_cannot_be_gated_is_refused(dpo_run, tiny):
    for words, told in (
        (("gate", tiny / "model"), "not a run"),
        (("gate", dpo_run, "--goal", "win_rate>0.5"), "needs a judge"),
        (("gate", dpo_run, "--items", "0"), "--items"),
    ):
        with pytest.raises(AlignaxError, match=told):
            alignax(*words)
