# SPDX-License-Identifier: Apache-2.0
"""The audit counts what happened to rows and names what may be a trap."""

import json

import numpy as np
import pytest

from alignax.data.audit import length_statistics
from alignax.data.dataset import build_dataset
from tests.data.toys import assistant, chatml, encoder, user

NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
    "{% endif %}{{ '<|start|>' + m.role + '\n' + m.content + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}"
)


def audit(tmp_path, rows, *, template=None, **settings):
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    options = {name: settings.pop(name) for name in ("max_length", "render") if name in settings}
    defaults = {"format": "auto", "split": "train", "kind": "pair", "max_bad_share": 1.0}
    tokenizer = chatml()
    tokenizer.chat_template = template or tokenizer.chat_template
    return build_dataset(
        str(file), cache_dir=tmp_path / "c", encoder=encoder(tokenizer, **options),
        **(defaults | settings),
    )[1]  # fmt: skip


def pair(number, **more):
    return {"prompt": f"q{number} ", "chosen": f"yes {number}", "rejected": f"no {number}", **more}


def test_duplicates_contradictions_ties_and_disagreeing_scores(tmp_path):
    swapped = {"prompt": "q1 ", "chosen": "no 1", "rejected": "yes 1"}
    scored = [
        {**pair(3), "score_chosen": 1, "score_rejected": 1},
        {**pair(4), "score_chosen": 1, "score_rejected": 2},
    ]
    report = audit(tmp_path, [pair(1), pair(1), swapped, pair(2), *scored])
    counts = {name: found["count"] for name, found in report.duplicates.items()}
    assert counts == {
        "exact_duplicate": 1,
        "contradiction": 1,
        "score_tie": 1,
        "score_label_disagree": 1,
    }
    assert report.unused_columns == []
    text = " ".join(report.warnings)
    for words in ("repeat an earlier", "labels swapped", "equal scores", "higher score"):
        assert words in text


def test_cuts_are_counted_for_each_side(tmp_path):
    rows = [
        {"prompt": "12345", "chosen": "abcdefgh", "rejected": "x"},
        {"prompt": "12345", "chosen": "abcdefgh", "rejected": "xyzabcde"},
        {"prompt": "12345", "chosen": "a", "rejected": "b"},
    ]
    report = audit(tmp_path, rows, max_length=10)
    counts = {name: found["count"] for name, found in report.cut.items()}
    assert counts == {"chosen_cut": 2, "rejected_cut": 1, "one_side_cut": 1}
    assert report.stop_token == "1 of 1 rows; 2 cut rows have none"
    assert any("one side only" in warning for warning in report.warnings)


def test_a_constant_opening_is_trivially_separable(tmp_path):
    rows = [{**pair(i), "rejected": f"I am sorry, but as a machine I cannot {i}"} for i in range(9)]
    report = audit(tmp_path, rows)
    assert any("rejected answers" in warning for warning in report.warnings)
    both = [{**row, "chosen": row["rejected"] + " or can I?"} for row in rows]
    assert not any("begin" in warning for warning in audit(tmp_path, both).warnings)


def test_a_length_rule_is_trivially_separable(tmp_path):
    rows = [{**pair(i), "chosen": f"{i} is a long answer"} for i in range(30)]
    report = audit(tmp_path, rows)
    assert report.lengths["chosen_longer"] == 1.0
    assert any("the longer answer is chosen in 100%" in warning for warning in report.warnings)


@pytest.mark.parametrize("render", ["auto", "chat"])
def test_plain_text_is_said_to_have_no_template(tmp_path, render):
    report = audit(tmp_path, [pair(1, system="Be brief"), pair(2)], render=render)
    plain = render == "auto"
    assert any("verbatim" in notice for notice in report.notices) == plain
    assert any("system text" in warning for warning in report.warnings) == plain
    assert report.lengths["plain_text"] == 2 * plain


def test_a_prompt_copied_into_both_answers_is_named(tmp_path):
    question = "Which of the two is the better one? "
    row = {"prompt": question, "chosen": question + "This.", "rejected": question + "That."}
    assert any("repeat the prompt" in warning for warning in audit(tmp_path, [row]).warnings)


def test_unused_columns_hold_something(tmp_path):
    rows = [pair(1, note="x", empty=None, source="y"), pair(2, note="z", empty=None)]
    report = audit(tmp_path, rows)
    assert report.unused_columns == ["note", "source"]
    assert any("note, source" in warning for warning in report.warnings)


def test_boundary_merges_are_shown_by_row(tmp_path):
    report = audit(tmp_path, [pair(1)])
    assert report.boundary_merged == {"count": 0, "rows": []}


@pytest.mark.parametrize(("template", "merged"), [(None, 0), (NO_SYSTEM, 1)])
def test_merged_system_turns_are_counted_and_nothing_is_dropped(tmp_path, template, merged):
    turns = {"chosen": [assistant("yes")], "rejected": [assistant("no")]}
    system = {"role": "system", "content": "Be brief"}
    rows = [{"prompt": [system, user("q1")], **turns}, {"prompt": [user("q2")], **turns}]
    report = audit(tmp_path, rows, template=template)
    assert (report.kept, report.system_merged["count"]) == (2, merged)
    assert report.to_json()["system_merged"]["rows"] == report.system_merged["rows"]


def test_sft_rows_have_one_answer(tmp_path):
    rows = [{"messages": [user(f"q{i}"), assistant("a" * i + "a")]} for i in range(3)]
    report = audit(tmp_path, rows, kind="sft")
    assert report.lengths["answer"]["max"] == 4
    assert report.stop_token == "3 of 3 rows"


def test_length_statistics_by_hand():
    lengths = np.array([[10, 5, 3], [20, 2, 4], [30, 7, 7]], np.int32)
    statistics = length_statistics(lengths)
    assert statistics["prompt"] == {"mean": 20.0, "median": 20.0, "p95": 29.0, "max": 30}
    assert statistics["chosen_longer"] == 0.5
