# SPDX-License-Identifier: Apache-2.0
"""MT-Bench judgments: by hand, against published totals, and on files gone wrong."""

import json
import math

import pytest

from alignax.errors import AlignaxError, DataError
from alignax.evaluate.mt_answers import answer_rows, read_answers
from alignax.evaluate.mt_bench import category_of, read_grades, summarize
from alignax.evaluate.pairwise import read_matches, standings
from alignax.judge.orders import reliability
from alignax.judge.replies import parse_grade, parse_label
from alignax.report.benchmark import radar
from tests.cli.tiny_model import alignax, write_rows


def placed(rows):
    return [(f"f:{n}", r) for n, r in enumerate(rows, 1)]


def grade(question, score, turn=1, model="m", **more):
    """One single-answer judgment."""
    return {
        "question_id": question, "model": model, "judge": ["gpt-4", "single-v1"], "score": score,
        "turn": turn,
    } | more  # fmt: skip


def pair(question, first, second, turn=1, models=("a", "b"), **more):
    """One pairwise judgment."""
    return {
        "question_id": question, "model_1": models[0], "model_2": models[1], "g1_winner": first,
        "g2_winner": second, "judge": ["gpt-4", "pair-v2"], "turn": turn,
    } | more  # fmt: skip


def scores_of(rows, **options):
    return summarize(read_grades(placed(rows), source="f"), **options)


def printed(capsys, *words):
    assert alignax("evaluate", "mt-bench", *words, "--json") == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Rating: [[7]]", 7.0), ("[[8.5]]", 8.5), ("Rating: [6]", 6.0), ("[[10]]", 10.0),
        ("[[0]]", None), ("[[11]]", None), ("[[-1]]", None), ("7 of 10", None), ("", None),
        ("see [3]; rating [[9]]", 9.0),
    ],
)  # fmt: skip
def test_grades(text, value):
    assert parse_grade(text) == value


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("so [[A]]", "win"), ("[[B]]", "loss"), ("[[C]]", "tie"), ("[[A]], yes, [[A]]", "win"),
        ("[[A]] or [[B]]", "unparsed"), ("[A]", "unparsed"), ("", "unparsed"),
        ("I cannot judge this.", "refused"), ("I'm sorry, but [[B]]", "loss"),
    ],
)  # fmt: skip
def test_labels(text, outcome):
    assert parse_label(text) == outcome


def test_categories_are_the_official_ones(shared_dir):
    file = shared_dir / "data" / "mt_bench" / "mt_bench" / "question.jsonl"
    questions = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(questions) == 80
    assert all(category_of(q["question_id"]) == q["category"] for q in questions)
    assert (category_of(80), category_of(161)) == ("", "")


def test_means_by_hand():
    """Turn 1: 8, 6; turn 2: 4; all: 6. -1 is no grade; 160 - 4 answers were not judged."""
    rows = [
        grade(81, 8),
        grade(91, 6),
        grade(81, 4, turn=2),
        grade(82, -1),
        grade(81, 9, model="n"),
    ]
    score = scores_of(rows)["m"]
    assert (score.turns[1].value, score.turns[2].value, score.average.value) == (7.0, 4.0, 6.0)
    assert {n: s.value for n, s in score.categories.items()} == {"writing": 6.0, "roleplay": 6.0}
    assert (score.unparsed, score.missing) == (1, 156)
    assert list(scores_of(rows)) == ["n", "m"]
    # Student's t of 8, 6, 4: s = 2, half = 4.302653 · 2/√3.
    assert score.average.high - score.average.value == pytest.approx(4.302653 * 2 / 3**0.5)


def test_repeats_weigh_once_and_a_grade_replaces_a_failure():
    score = scores_of([grade(81, 9), grade(81, 5), grade(82, -1), grade(82, 4)])["m"]
    assert score.average.value == (7.0 + 4.0) / 2
    assert (score.repeats, score.unparsed) == (1, 0)
    assert score.spread == pytest.approx(math.sqrt(8))


def test_grades_come_from_the_text_where_no_score_was_written():
    rows = [
        grade(81, None, judgment="[[7]]"), grade(82, None, judgment="well"),
        grade(83, 5, judgment="[[6]]"),
    ]  # fmt: skip
    grades = read_grades(placed(rows), source="f")
    assert [g.score for g in grades] == [7.0, None, 5.0]
    assert [g.contradicted for g in grades] == [False, False, True]


def test_other_questions_bring_their_categories():
    score = scores_of([grade(1, 3), grade(2, 5)], categories={1: "x", 2: "y", 3: "y"})["m"]
    assert {n: s.value for n, s in score.categories.items()} == {"x": 3.0, "y": 5.0}
    assert score.missing == 1


@pytest.mark.parametrize(
    ("row", "needle"),
    [
        (grade(81, 11), "outside of 1 … 10"), (grade(81, "8"), "not a number"),
        (grade("81", 8), "question_id"), (grade(81, 8, turn=3), "turn is 3"),
        (grade(81, None), "neither `score` nor `judgment`"), ([1], "not an object"),
    ],
)  # fmt: skip
def test_wrong_grades_are_refused(row, needle):
    with pytest.raises(DataError, match="f:2") as caught:
        read_grades(placed([grade(82, 5), row]), source="f")
    assert needle in str(caught.value)


def test_grades_of_two_judges_are_not_mixed():
    with pytest.raises(DataError, match="several judges"):
        scores_of([grade(81, 5), grade(82, 5, judge="other")])


def test_standings_by_hand():
    """a: win, tie (disagreement), tie, loss; the fifth has no verdict. b mirrors a."""
    rows = [
        pair(81, "model_1", "model_1"), pair(82, "model_1", "model_2"), pair(83, "tie", "tie"),
        pair(84, "model_2", "model_2"), pair(85, "model_1", "error"),
        pair(81, "model_2", "model_2", turn=2, models=("b", "a")),
    ]  # fmt: skip
    matches = read_matches(placed(rows), source="f")
    table = standings(matches)
    a, b = table["a"], table["b"]
    assert (a.wins, a.losses, a.ties, a.failed) == (2, 1, 2, 1)
    assert (b.wins, b.losses, b.ties, b.failed) == (1, 2, 2, 1)
    assert (a.win_rate, a.loss_rate, a.adjusted.value) == (0.4, 0.2, pytest.approx(0.6))
    assert list(table) == ["a", "b"]
    assert list(standings(matches, "b")) == ["a"]
    judge = reliability([match.verdict for match in matches])
    assert judge.flip_rate.value == 1 / 5
    # Winners of single games: g1 to the first in 81, 82; g2 to the first shown in 84, 81/2;
    # to the second in 81 (g2), 82 (g2: model_2 is shown first, so first), 84 (g1), 81/2 (g1).
    assert judge.first_wins.value == 5 / 8
    with pytest.raises(DataError, match="no match against 'c'"):
        standings(matches, "c")


def test_winners_come_from_both_texts():
    """Game 2 shows model_2 first: [[A]] is model_2's."""
    row = pair(81, None, None, g1_judgment="[[A]]", g2_judgment="[[B]]")
    failed = pair(82, None, None, g1_judgment="$ERROR$", g2_judgment="[[A]]")
    one, two = read_matches(placed([row, failed]), source="f")
    assert one.verdict.outcome == "win"
    assert two.verdict.orders == ("error", "loss")


def test_wrong_matches_are_refused():
    rows = [pair(81, "model_1", "model_1"), pair(81, "tie", "tie"), pair(82, "a", "tie")]
    with pytest.raises(DataError) as caught:
        read_matches(placed(rows), source="f")
    assert "f:2: judges what f:1 judges" in str(caught.value)
    assert "f:3: g1_winner is 'a'" in str(caught.value)


def test_published_totals_of_the_vicuna_reviews(shared_dir, capsys):
    """Chiang et al. 2023: total scores of each model against Vicuna-13B."""
    folder = shared_dir / "data" / "vicuna_reviews"
    published = {
        "llama-13b": (513.0, 694.0), "alpaca-13b": (583.0, 704.0), "bard": (664.0, 655.5),
        "gpt35": (693.0, 638.0),
    }  # fmt: skip
    for name, totals in published.items():
        path = folder / "review" / f"review_{name}_vicuna-13b.jsonl"
        models = printed(capsys, "--judgments", path)["models"]
        found = (models[name]["total_score"], models["vicuna-13b"]["total_score"])
        assert found == totals
        answers = folder / "answer" / f"answer_{name}.jsonl"
        named = printed(capsys, "--judgments", path, "--answers", answers)["models"]
        assert sorted(m["total_score"] for m in named.values()) == sorted(totals)


def test_tables_and_page(tmp_path, capsys):
    rows = [grade(81 + 10 * k, 3 + k % 5, turn=t) for k in range(8) for t in (1, 2)]
    rows += [grade(81, 9, model="<n>"), grade(82, -1, model="<n>")]
    file, html = write_rows(tmp_path / "single.jsonl", rows), tmp_path / "mt.html"
    values = printed(capsys, "--judgments", file, "--html", html)
    assert values["models"]["m"]["categories"]["stem"]["value"] == 4.0
    assert "1 judgements hold no grade" in " ".join(values["warnings"])
    text = html.read_text(encoding="utf-8")
    assert "<svg" in text
    assert "&lt;n&gt;" in text
    assert "http" not in text
    assert alignax("evaluate", "mt-bench", "--judgments", file) == 0
    assert "humanities" in capsys.readouterr().out


def test_radar_places_values_on_their_spokes():
    """Four spokes: up 10 → (210, 70), right 5 → (280, 210); a gap ends the line."""
    drawing = radar(["a", "b", "c", "d"], {"m": [10.0, 5.0, math.nan, 10.0]})
    assert '<polyline points="210.0,70.0 280.0,210.0"' in drawing
    assert '<polyline points="70.0,210.0"' in drawing
    full = radar(["a", "b", "c", "d"], {"m": [10.0, 10.0, 10.0, 10.0]})
    assert '<polygon points="210.0,70.0 350.0,210.0 210.0,350.0 70.0,210.0" stroke="var(--f' in full


def test_other_files_are_named(tmp_path, capsys):
    odd = write_rows(tmp_path / "odd.jsonl", [{"prompt": "x"}])
    with pytest.raises(AlignaxError, match="its first row has prompt"):
        printed(capsys, "--judgments", odd)
    one = write_rows(tmp_path / "one.jsonl", [grade(81, 5)])
    two = write_rows(tmp_path / "two.jsonl", [pair(81, "tie", "tie")])
    with pytest.raises(AlignaxError, match="several kinds: pair, single"):
        printed(capsys, "--judgments", one, two)
    with pytest.raises(AlignaxError, match="no judgment by 'x'"):
        printed(capsys, "--judgments", one, "--judge", "x")


def test_answers_survive_the_official_form(shared_dir):
    rows = answer_rows("m", {82: ["c", "d"], 81: ["a", "b"]}, tstamp=1.5)
    assert [row["question_id"] for row in rows] == [81, 82]
    assert read_answers(placed(rows), source="f")[0] == {"m": {81: ["a", "b"], 82: ["c", "d"]}}
    official = shared_dir / "data" / "mt_bench" / "mt_bench" / "reference_answer" / "gpt-4.jsonl"
    lines = [json.loads(line) for line in official.read_text(encoding="utf-8").splitlines()]
    answers, names = read_answers(placed(lines), source="gpt-4.jsonl")
    again = answer_rows("gpt-4", answers["gpt-4"], tstamp=0.0)
    assert [set(row) for row in again] == [set(line) for line in lines]
    assert [row["choices"] for row in again] == [line["choices"] for line in lines]
    assert set(names.values()) == {"gpt-4"}


def test_wrong_answers_are_refused():
    rows = answer_rows("m", {81: ["a"]}, tstamp=0.0)
    with pytest.raises(DataError, match="a second answer of m to 81"):
        read_answers(placed(rows * 2), source="f")
    with pytest.raises(DataError, match="no question_id"):
        read_answers(placed([{"question_id": 81, "model_id": "m", "choices": []}]), source="f")
