# SPDX-License-Identifier: Apache-2.0
"""AlpacaEval's statistics: by hand, against the published leaderboards, and on files gone wrong."""

import csv
import gzip
import json
import math

import numpy as np
import pytest
from scipy import optimize

from alignax.errors import AlignaxError, DataError
from alignax.evaluate.alpaca_eval import head_to_head, longer_wins, read_annotations
from alignax.evaluate.length_control import Coefficients, at_equal_length, fit, fitted
from tests.cli.tiny_model import alignax

KEYS = (
    "win_rate", "standard_error", "n_wins", "n_wins_base", "n_draws", "n_total",
    "discrete_win_rate", "length_controlled_winrate",
)  # fmt: skip
PUBLISHED = [
    ("alpaca-7b", "weighted_alpaca_eval_gpt4_turbo", 0.2),
    ("FuseChat-Llama-3.2-1B-Instruct", "weighted_alpaca_eval_gpt4_turbo", 0.2),
    ("gpt-3.5-turbo-1106", "weighted_alpaca_eval_gpt4_turbo", 0.2),
    # No coefficients are published for this annotator, so they are fitted.
    ("alpaca-7b", "alpaca_eval_gpt4", 0.5),
]


def row(number, preference, *, ours="mine", theirs="other", **more):
    """One annotation."""
    return {
        "instruction": f"prompt {number}", "output_1": "base!", "generator_1": theirs,
        "output_2": f"answer {number}", "generator_2": ours, "annotator": "judge",
        "preference": preference,
    } | more  # fmt: skip


def read(rows, **options):
    return read_annotations([(f"f:{n}", r) for n, r in enumerate(rows, 1)], source="f", **options)


def write(file, rows):
    file.write_text(json.dumps(rows))
    return file


def printed(capsys, *words):
    assert alignax("evaluate", "alpaca-eval", *words, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_statistics_by_hand():
    """Wins - 1 are 1, 0, ½, ½, 0.8: mean 0.56, s² = (0.1936+0.3136+0.0036·2+0.0576)/4 = 0.143."""
    values = head_to_head(
        read([row(n, p) for n, p in enumerate([2, 1, 0, 1.5, 1.8, None])]).preferences
    )
    expected = {
        "win_rate": 56.0, "standard_error": 100 * math.sqrt(0.143 / 5), "n_wins": 2,
        "n_wins_base": 1, "n_draws": 2, "n_total": 5, "discrete_win_rate": 60.0,
    }  # fmt: skip
    assert values == pytest.approx(expected, rel=1e-12)


def test_no_verdict_gives_no_rate():
    values = head_to_head(read([row(1, None)]).preferences)
    assert math.isnan(values["win_rate"])
    assert values["n_total"] == 0
    assert math.isnan(head_to_head(np.array([2.0]))["standard_error"])


@pytest.mark.parametrize(("model", "annotator", "tolerance"), PUBLISHED)
def test_published_figures(model, annotator, tolerance, shared_dir, capsys):
    folder = shared_dir / "data" / "alpaca_eval"
    board = folder / "leaderboards" / f"{annotator}_leaderboard.csv"
    with board.open(encoding="utf-8") as file:
        official = next(r for r in csv.DictReader(file) if r[""] == model)
    path = folder / "results" / model / annotator / "annotations.json.gz"
    values = printed(capsys, "--annotations", path)
    for key in KEYS[:-1]:
        assert values[key] == pytest.approx(float(official[key]), abs=1e-6), key
    assert int(values["avg_length"]) == int(official["avg_length"])
    assert values[KEYS[-1]] == pytest.approx(float(official[KEYS[-1]]), abs=tolerance)


def test_missing_and_null_rows_in_another_order(shared_dir, tmp_path, capsys):
    """Every verdict kept, shuffled: the same figures. Some lost: coverage and bounds say so."""
    folder = shared_dir / "data" / "alpaca_eval"
    path = folder / "results/gpt-3.5-turbo-1106/weighted_alpaca_eval_gpt4_turbo"
    rows = json.loads(gzip.decompress((path / "annotations.json.gz").read_bytes()))
    tables = folder / "leaderboards"
    words = (
        "--weights", tables / "length_controlled_v1_weights.csv",
        "--difficulty", tables / "instruction_difficulty.ESTIMATED.csv",
        "--prompts", folder / "eval_set.jsonl.gz",
    )  # fmt: skip
    whole = printed(capsys, "--annotations", path / "annotations.json.gz")
    order = np.random.default_rng(0).permutation(len(rows))
    shuffled = write(tmp_path / "annotations.json", [rows[i] for i in order])
    values = printed(capsys, "--annotations", shuffled, *words)
    assert [values[k] for k in KEYS] == pytest.approx([whole[k] for k in KEYS], rel=1e-12)

    kept = [rows[i] for i in order[:700]]
    kept[:20] = [r | {"preference": None} for r in kept[:20]]
    values = printed(capsys, "--annotations", write(shuffled, kept), *words)
    wins = np.array([r["preference"] - 1 for r in kept[20:]])
    assert values["win_rate"] == pytest.approx(100 * wins.mean(), rel=1e-12)
    assert (values["n_total"], values["n_null"], values["n_missing"]) == (680, 20, 105)
    assert values["coverage"] == 680 / 805
    assert values["win_rate_if_missing_lost"] == pytest.approx(100 * wins.sum() / 805)
    assert values["win_rate_if_missing_won"] == pytest.approx(100 * (wins.sum() + 125) / 805)
    # The official mean runs over the prompts in the file.
    assert values[KEYS[-1]] == pytest.approx(whole[KEYS[-1]], abs=1.5)
    assert any("680 of 805" in warning for warning in values["warnings"])


def test_a_constant_answerer_is_named(tmp_path, capsys):
    rows = [row(n, 1.9, output_2="Vote for me!", output_1="x" * (n % 7)) for n in range(805)]
    values = printed(capsys, "--annotations", write(tmp_path / "annotations.json", rows))
    assert values["win_rate"] == pytest.approx(90.0)
    assert values["distinct_outputs"] == 1
    assert any("constant answerer" in warning for warning in values["warnings"])


def test_a_row_with_the_model_first_is_turned_round():
    rows = [row(1, 2), row(2, 1.2), row(3, 1.8, ours="other", theirs="mine", output_1="a" * 9)]
    found = read(rows)
    assert (found.model, found.baseline) == ("mine", "other")
    np.testing.assert_allclose(found.preferences, [2, 1.2, 1.2])
    np.testing.assert_allclose(found.lengths[2], [len("answer 3"), 9])
    np.testing.assert_allclose(read(rows, model="other").preferences, [1, 1.8, 1.8])


def test_both_orders_of_one_verdict_are_one_row():
    rows = [row(1, 2), row(2, 2), row(1, 1, ours="other", theirs="mine")]
    np.testing.assert_allclose(read(rows).preferences, [2, 2])


def test_a_repeated_row_counts_once_and_null_gives_way():
    found = read([row(1, None), row(2, 1), row(1, 2), row(2, 1)])
    np.testing.assert_allclose(found.preferences, [2, 1])
    assert "2 rows repeat" in found.notes[0]


def test_numbers_that_are_no_preference_are_left_out_and_counted():
    found = read([row(1, 2), row(2, 7), row(3, -1), row(4, float("inf"))])
    assert head_to_head(found.preferences)["n_total"] == 1
    assert found.invalid == 3
    assert "first: 7 at f:2" in found.notes[0]


def test_longer_wins_by_hand():
    """Longer wins, shorter wins, longer loses; a draw and an equal length say nothing."""
    rows = [row(n, p) for n, p in enumerate([2, 2, 1, 1.5, 2])]
    for r, length in zip(rows, [9, 2, 9, 9, 5], strict=True):
        r["output_2"] = "x" * length
    assert longer_wins(read(rows)) == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("rows", "needles"),
    [
        ([{"instruction": "a", "output": "b"}], ("f:1", "model_outputs.json", "judged")),
        ([row(1, 2), row(2, "2")], ("1 of 2", "f:2", "'2'", "number or null")),
        ([row(1, True)], ("True",)),
        ([{"preference": 2}], ("instruction",)),
        (["text"], ("not an object",)),
        ([], ("no rows",)),
        ([row(1, 2), row(1, 1)], ("f:1 says 2", "f:2 says 1", "twice")),
        ([row(1, 2), row(2, 2, ours="third")], ("several pairs", "third against other", "--model")),
        ([row(1, 2), row(2, 2, annotator="b")], ("several annotators", "--annotator")),
    ],
)
def test_wrong_files_are_refused(rows, needles):
    with pytest.raises(DataError) as caught:
        read(rows)
    assert [n for n in needles if n not in str(caught.value)] == [], str(caught.value)


def test_one_of_several_is_chosen():
    rows = [row(1, 2), row(2, 1, ours="third"), row(3, 2, annotator="b")]
    assert read(rows, model="third", annotator="judge").instructions == ("prompt 2",)
    with pytest.raises(DataError, match="no model 'none'"):
        read(rows, model="none", annotator="judge")


def test_stray_backslashes_are_read_as_they_stand(tmp_path, capsys):
    file = tmp_path / "annotations.json"
    text = json.dumps([row(1, 2), row(2, 1)])
    file.write_text(text.replace("answer 1", r"a\user \\u \" \x"))
    values = printed(capsys, "--annotations", file)
    assert values["n_total"] == 2
    assert values["avg_length"] == (len(r"a\user \u " + '" ' + r"\x") + len("answer 2")) / 2
    lines = tmp_path / "annotations.jsonl"
    lines.write_text("\n".join(json.dumps(row(n, 2)).replace("answer", r"\user") for n in (1, 2)))
    assert printed(capsys, "--annotations", lines)["avg_length"] == len(r"\user 1")
    file.write_text(text[:-5])
    with pytest.raises(AlignaxError, match="not JSON at line 1"):
        printed(capsys, "--annotations", file)


def test_tables_of_another_form_are_refused(tmp_path, capsys):
    file = write(tmp_path / "annotations.json", [row(1, 2, generator_1="gpt4_1106_preview",
        annotator="weighted_alpaca_eval_gpt4_turbo"), row(2, 1, generator_1="gpt4_1106_preview",
        annotator="weighted_alpaca_eval_gpt4_turbo")])  # fmt: skip
    table = tmp_path / "table.csv"
    table.write_text("name,a,b\nx,1,2\n")
    for flag, needle in (("--weights", "std_delta_len"), ("--difficulty", "instruction_diff")):
        with pytest.raises(DataError, match=needle):
            printed(capsys, "--annotations", file, flag, table)


def test_equal_length_rate_by_hand():
    """σ(ln 3 + 0) = 0.75 and σ(ln 3 - ln 3) = 0.5."""
    weights = Coefficients(-9.0, 1.0, math.log(3))
    assert at_equal_length(weights, np.array([0.0, -math.log(3)])) == pytest.approx(62.5)


def test_fit_agrees_with_a_general_minimiser():
    rng = np.random.default_rng(1)
    features, wins = rng.normal(size=(60, 3)), rng.uniform(size=60)
    centre, precision = np.array([-1.0, 0.5, 0.0]), np.diag([2.0, 0.5, 0.1])

    def loss(c):
        z = features @ c
        off = c - centre
        return (np.logaddexp(0, z) - wins * z).sum() + off @ precision @ off / 2

    expected = optimize.minimize(loss, centre, options={"gtol": 1e-9}).x
    found = fit(features, wins, centre=centre, precision=precision)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_length_control_finds_the_rate_behind_a_length_bias():
    """Verdicts are drawn with P(win) = σ(0.4 - 2 tanh(Δ/s)); at equal length σ(0.4) = 59.87 %."""
    rng = np.random.default_rng(0)
    lengths = np.stack([rng.uniform(100, 200, 4000), rng.uniform(150, 400, 4000)], 1)
    gap = lengths[:, 0] - lengths[:, 1]
    chance = 1 / (1 + np.exp(-0.4 + 2 * np.tanh(gap / gap.std(ddof=1))))
    wins = (rng.uniform(size=4000) < chance).astype(float)
    rate = fitted(wins, lengths, prior=((0.0, 0.0), (1.0, 1e-3)))
    assert wins.mean() > 0.8
    assert rate == pytest.approx(59.87, abs=3.0)


@pytest.mark.parametrize(
    ("wins", "lengths"),
    [
        ([1.0, 0.0], [[5.0, 5.0], [7.0, 7.0]]),
        ([1.0, 0.0], [[5.0, math.nan], [7.0, 8.0]]),
        ([math.nan, math.nan], [[5.0, 6.0], [7.0, 9.0]]),
    ],
)
def test_length_control_that_cannot_be_fitted(wins, lengths):
    prior = ((0.0, 0.0), (1.0, 1e-3))
    assert fitted(np.array(wins), np.array(lengths), prior=prior) is None
