# SPDX-License-Identifier: Apache-2.0
"""Several answers and a verdict, in published schemas: which pair comes out, and what is a tie."""

import json

import pytest

from alignax.data.formats import detect, parse_row
from alignax.data.formats.ranked import pairs
from alignax.data.reshape import Shape
from alignax.records import Dropped
from tests.data.toys import assistant, user


def read(row):
    name = detect("auto", [row], kind="pair", source="x")
    return parse_row(name, row, kind="pair", row_id="1", place="x:1")


Q = (user("q"),)
BETTER_IS_A = {
    "AlpacaEval": {"instruction": "q", "output_1": "b", "output_2": "a", "preference": 1.9,
                   "annotator": "gpt4", "generator_1": "x"},
    "AlpacaEval, first": {"instruction": "q", "output_1": "a", "output_2": "b", "preference": 1},
    "LLMBar": {"input": "q", "output_1": "b", "output_2": "a", "label": 2},
    "PandaLM": {"instruction": "q", "input": "", "response1": "a", "response2": "b",
                "annotator1": 1, "annotator2": 1, "annotator3": 2},
    "Auto-J": {"prompt": "q", "response 1": "a", "response 2": "b", "label": 0},
    "SHP": {"history": "q", "human_ref_A": "b", "human_ref_B": "a", "labels": 0, "score_A": 3,
            "score_B": 9, "domain": "x"},
    "WebGPT": {"question": {"full_text": "q", "id": 1}, "answer_0": "b", "answer_1": "a",
               "score_0": -1.0, "score_1": 1.0},
    "summaries": {"info": {"post": "q"}, "summaries": [{"text": "b"}, {"text": "a"}], "choice": 1},
    "HelpSteer2": {"prompt": "q", "response_1": "b", "response_2": "a", "preference_strength": 2},
    "HelpSteer3": {"context": [user("q")], "response1": "a", "response2": "b",
                   "overall_preference": -2},
    "arena": {"conversation_a": [user("q"), assistant("a")],
              "conversation_b": [user("q"), assistant("b")], "winner": "model_a"},
}  # fmt: skip


@pytest.mark.parametrize("name", BETTER_IS_A)
def test_the_better_answer_is_chosen(name):
    pair = read(BETTER_IS_A[name])
    assert not isinstance(pair, Dropped), pair
    assert (pair.prompt, pair.chosen, pair.rejected) == (Q, (assistant("a"),), (assistant("b"),))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"preference": 1.5}, "label_tie"),
        ({"preference": 0}, "label_tie"),
        ({"preference": "tie"}, "label_tie"),
        ({"preference": "perhaps"}, "unclear_label"),
        ({"preference": 7}, "unclear_label"),
        ({"preference": None}, "unclear_label"),
        ({"output_2": None}, "null_field"),
        ({"output_2": 5}, "wrong_type"),
    ],
)
def test_ties_and_unclear_verdicts_are_dropped(change, reason):
    row = {**BETTER_IS_A["AlpacaEval"], **change}
    example = parse_row("comparison", row, kind="pair", row_id="1", place="x:1")
    assert isinstance(example, Dropped)
    assert example.reason == reason


def test_equal_scores_of_two_texts_are_a_tie():
    text = "## Human:\nq\n\n## Assistant:\n"
    assert read({"text": [text + "a", text + "b"], "score": [1.0, 1.0]}).reason == "score_tie"
    pair = read({"text": [text + "b", text + "a"], "score": [0.5, 1.5]})
    assert (pair.chosen_score, pair.rejected_score) == (1.5, 0.5)
    assert pair.chosen == (assistant("a"),)


def answers(pairing, row):
    return [(p.get("chosen"), p.get("rejected"), p.get("problem")) for p in pairs(row, pairing)]


SCORED = {"prompt": "q", "responses": ["w", "x", "y", "z"], "scores": [1, 4, 4, 2]}


def test_scored_answers_are_paired_by_the_rule():
    assert answers("best-worst", SCORED) == [("x", "w", None)]
    assert answers("adjacent", SCORED) == [("y", "z", None), ("z", "w", None)]
    assert sorted(answers("all", SCORED)) == [
        ("x", "w", None), ("x", "z", None), ("y", "w", None), ("y", "z", None), ("z", "w", None),
    ]  # fmt: skip
    assert answers("all", {**SCORED, "scores": [3] * 4}) == [(None, None, "label_tie")]
    assert answers("all", {**SCORED, "scores": [3, None, "", None]}) == [(None, None, "no_pair")]


def test_ranks_count_down_and_objects_carry_scores():
    nectar = {"prompt": "q", "answers": [{"answer": "b", "rank": 3}, {"answer": "a", "rank": 1}]}
    assert answers("best-worst", nectar) == [("a", "b", None)]
    scored = [{"response": "b", "overall_score": 2.0}, {"response": "a", "overall_score": 8.5}]
    published = {"instruction": "q", "completions": scored}
    (pair,) = pairs(published, "best-worst")
    assert read(pair).prompt == "q"
    assert (pair["score_chosen"], pair["score_rejected"]) == (8.5, 2.0)


def test_trees_give_pairs_at_every_fork():
    def reply(text, rank, *replies, role="assistant"):
        return {"text": text, "role": role, "rank": rank, "replies": list(replies)}

    more = reply("and?", None, reply("c", 1), reply("d", 0), role="prompter")
    tree = {"prompt": reply("q", None, reply("b", 1), reply("a", 0, more), role="prompter")}
    records = [row for _, _, row in Shape().apply(iter([(0, 1, tree)]))]
    first, second = map(read, records)
    assert (first.prompt, first.chosen, first.rejected) == (Q, (assistant("a"),), (assistant("b"),))
    assert second.prompt == (*Q, assistant("a"), user("and?"))
    assert second.chosen == (assistant("d"),)
    lonely = {"prompt": reply("q", None, reply("a", 0), role="prompter")}
    assert answers("all", lonely) == [(None, None, "no_pair")]
    assert json.dumps(records)
