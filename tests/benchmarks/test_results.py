# SPDX-License-Identifier: Apache-2.0
"""Medians, ratios and tables from rounds that were written down by hand."""

import json
from dataclasses import replace

import pytest

from benchmarks.cases import MODES, SETS, Place, command, read_ours, read_trl, read_tunix
from benchmarks.results import GOALS, figures, section, show, splice, table, useful_share
from benchmarks.rounds import Rounds

TITLES = {name: mode.title for name, mode in MODES.items()}


def record(pairs_per_s, rss, **raw):
    """100 tokens, 40 of them answers, in 10 seconds."""
    return {
        "pairs": pairs_per_s * 10, "seconds": 10.0, "pairs_per_s": pairs_per_s, "tokens": 100,
        "answer_tokens": 40, "rss_gib": rss, "compile_s": 7.0, "first_step_at_s": 30.0,
        "loss": 0.69, "raw": raw,
    }  # fmt: skip


def one_round(number, ours, **records):
    raw = {"fill": 0.97, "data_wait_share": 0.01, "body_flops": 3e9, "head_flops": 1e9,
           "gemm_gflops": 100.0}  # fmt: skip
    mine = {"ours-live": record(ours, 2.0, **raw), "ours-cached": record(2 * ours, 2.0, **raw)}
    machine = {"gemm_gflops": {"jax": 90.0, "torch": None}, "load_before": 0.5,
               "date": "2026-01-02", "cpus": 2, "system": "test", "commit": "abc"}  # fmt: skip
    return {"set": "hh-lora", "round": number, "machine": machine, "records": mine | records}


FAILED = {"failed": "exit status -9", "stderr": "..."}
ROUNDS = [
    one_round(1, 0.8, tunix=record(0.05, 16.0), trl=record(0.2, 8.0)),
    one_round(
        2, 0.9, **{"tunix": FAILED, "tunix-remat": record(0.1, 5.0), "trl": record(0.3, 8.0)}
    ),
    one_round(3, 0.6, **{"tunix": record(0.05, 20.0), "tunix-remat": record(0.06, 4.0)}),
]


def test_ratios_are_medians_of_the_rounds_own_ratios():
    values = figures(ROUNDS, {"ours": [0.5, 0.7], "trl": [0.5, 0.70005]})
    # Rounds: 0.8 / 0.05 = 16; 0.9 / 0.1 = 9; 0.6 / max(0.05, 0.06) = 10.
    assert values["pairs_per_s_vs_tunix"] == pytest.approx(10)
    # 0.8 / 0.2 = 4; 0.9 / 0.3 = 3; none in the third.
    assert values["pairs_per_s_vs_trl"] == pytest.approx(3.5)
    assert values["rss_vs_tunix"] == pytest.approx((2 / 16 + 2 / 20) / 2)
    assert values["rss_vs_tunix_remat"] == pytest.approx((2 / 5 + 2 / 4) / 2)
    assert values["row_fill"] == 0.97
    assert values["compile_s"] == 7.0
    assert values["max_pair_loss_difference"] == pytest.approx(5e-5)


def test_what_was_not_measured_is_none():
    values = figures([one_round(1, 1.0)], None)
    assert values["pairs_per_s_vs_trl"] is values["compile_cached_s"] is None
    assert values["max_pair_loss_difference"] is None
    assert set(values) == set(GOALS)


def test_pair_losses_must_be_of_the_same_pairs():
    with pytest.raises(ValueError, match="longer"):
        figures(ROUNDS, {"ours": [0.5], "trl": [0.5, 0.6]})


def test_useful_share_counts_each_distinct_token_once():
    # (100 · 3e9 + 40 · 1e9) / (10 s · 100e9): the larger of both rates.
    for mode in ("ours-cached", "trl"):
        assert useful_share(ROUNDS[0], mode) == pytest.approx(0.34)
    assert useful_share(ROUNDS[1], "tunix") is None


def test_a_mode_that_never_ran_says_why():
    lines = table(ROUNDS[1:2], TITLES)
    line = next(line for line in lines if line.startswith(f"| {TITLES['tunix']} |"))
    assert "exit status -9" in line
    assert {line.count("|") for line in lines} == {9}


def test_table_holds_medians():
    line = table(ROUNDS, TITLES)[2]
    assert line == "| alignax, reference each step | 0.8 | 10 | 34% | 2 | 7 | 30 | 0.69 |"


def test_section_judges_each_figure_against_its_goal():
    values = {"hh-lora": figures(ROUNDS, None)}
    text = "\n".join(section({"hh-lora": ROUNDS, "uf-lora": []}, values, TITLES))
    assert "| pairs/s against TRL | 3.5 | ≥ 3 | met |" in text
    assert "| row fill | 0.97 | ≥ 0.95 | met |" in text
    slow = [one_round(1, 0.1, trl=record(0.1, 8.0))]
    text = "\n".join(section({"hh-lora": slow}, {"hh-lora": figures(slow, None)}, TITLES))
    assert "| pairs/s against TRL | 1 | ≥ 3 | **not met** |" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.0, "0"), (3.14159, "3.14"), (1234.5, "1234"), (5e-5, "5.0e-05")],
)
def test_numbers_are_short(value, text):
    assert show(value) == text


def test_splice_replaces_only_its_section():
    page = "a\n<!-- peers:begin -->\nold\n<!-- peers:end -->\nb\n"
    assert splice(page, "peers", ["new"]) == (
        "a\n<!-- peers:begin -->\n\nnew\n\n<!-- peers:end -->\nb\n"
    )
    with pytest.raises(ValueError, match="no section"):
        splice("nothing", "peers", [])


PAIRS = replace(SETS["hh-lora"], timed=4, batch=2, widths=10)
LENGTHS = [[9, 9, 9], [9, 9, 9], [20, 3, 4], [5, 6, 30], [1, 1, 1], [1, 1, 1]]


def test_trl_is_read_without_its_warm_up():
    raw = {
        "step_seconds": [9.0, 2.0, 3.0], "logs": [{"loss": 9.0}, {"loss": 0.5}, {"loss": 0.7}],
        "peak_rss_gib": 8.0, "import_s": 1.0, "build_s": 2.0,
    }  # fmt: skip
    got = read_trl(raw, LENGTHS, PAIRS)
    assert (got["pairs"], got["seconds"], got["loss"]) == (4, 5.0, pytest.approx(0.6))
    assert (got["tokens"], got["answer_tokens"]) == (27 + 41 + 3 + 3, 7 + 36 + 2 + 2)
    assert got["first_step_at_s"] == 12.0


def test_tunix_is_read_with_texts_cut_to_its_widths():
    raw = {
        "step_s_each": [50.0, 20.0], "loss": [0.7, 0.6], "peak_rss_gb": 6.0, "compile_s": 30.0,
        "import_s": 1.0, "build_s": 2.0, "first_step_s": 50.0,
    }  # fmt: skip
    got = read_tunix(raw, LENGTHS, PAIRS)
    assert (got["pairs"], got["seconds"]) == (2, 20.0)
    assert (got["tokens"], got["answer_tokens"]) == (10 + 3 + 4 + 5 + 6 + 10, 7 + 16)


def test_ours_is_read_without_its_first_step():
    raw = {
        "pairs": [2, 2, 2], "seconds": [30.0, 3.0, 4.0], "tokens": [9, 10, 11],
        "answer_tokens": [4, 5, 6], "peak_rss_gib": 3.0, "compile_s": 26.0,
        "first_step_at_s": 40.0, "losses": [0.7, 0.6, 0.4], "set_tokens": 74,
    }  # fmt: skip
    got = read_ours(raw, LENGTHS, PAIRS)
    assert (got["pairs"], got["seconds"], got["tokens"]) == (4, 7.0, 21)
    assert got["loss"] == pytest.approx(0.5)
    with pytest.raises(ValueError, match="reads 75 tokens in the pairs, not 74"):
        read_ours(raw | {"set_tokens": 75}, LENGTHS, PAIRS)


@pytest.fixture
def place(tmp_path):
    rows = [{"prompt": str(i), "chosen": "a", "rejected": "b"} for i in range(6)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "hh_pairs.jsonl").write_text(text)
    return Place(tmp_path, tmp_path, tmp_path / "trl", tmp_path / "tunix")


def test_ours_trains_on_the_pairs_that_trl_is_timed_on(place):
    rows = place.window(PAIRS).read_text().splitlines()
    assert [json.loads(row)["prompt"] for row in rows] == ["2", "3", "4", "5"]
    argv = command(place, PAIRS, MODES["trl"], place.work / "out")
    assert argv[argv.index("--steps") + 1] == "2"
    assert argv[argv.index("--warmup") + 1] == "1"


def test_rounds_survive_and_follow_the_settings(place):
    rounds = Rounds(place, [PAIRS])
    rounds.write(PAIRS, ROUNDS[0])
    again = Rounds(place, [replace(PAIRS, rounds=9, modes=("trl",))])
    assert again.read(PAIRS, 1) == ROUNDS[0]
    assert [one["round"] for one in again.of(PAIRS)] == [1]
    other = replace(PAIRS, timed=6)
    assert not Rounds(place, [other]).of(other)
