# SPDX-License-Identifier: Apache-2.0
"""One loss of each kind through the whole command: three steps, and what is refused."""

import math

import pytest

from alignax.errors import AlignaxError
from tests.cli.tiny_model import QUICK, alignax, pairs, read_lines, write_rows

BARE = (
    "--train.steps", "3", "--train.eval_steps", "3", "--sample.prompts", "0",
    "--export.adapter", "false", "--export.merged", "false",
)  # fmt: skip


def words(tiny, rows, run):
    """The command without its loss."""
    return ("dpo", "--model", tiny / "model", "--data", rows, "--output", run, *QUICK, *BARE)


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """Rows whose chosen answers have 2 points more."""
    rows = [row | {"chosen_score": 5.0, "rejected_score": 3.0} for row in pairs(24)]
    return write_rows(tmp_path_factory.mktemp("scored") / "rows.jsonl", rows)


@pytest.mark.parametrize(
    ("loss", "at_start", "has_reference"),
    [
        ("simpo", None, False),
        ("kto", 0.5, True),
        ("tdpo2", math.log(2), True),
        ("margin(beta=0.1 -> 0.2)", math.log1p(math.exp(2.0)), True),
    ],
)
def test_three_steps_of_each_kind(loss, at_start, has_reference, tiny, scored, tmp_path):
    run = tmp_path / "run"
    assert alignax(*words(tiny, scored, run), "--loss.type", loss) == 0
    lines = read_lines(run / "metrics.jsonl")
    train = [line for line in lines if line["kind"] == "train"]
    held_out = [line for line in lines if line["kind"] == "eval"]
    assert [line["step"] for line in train] == [1, 2, 3]
    assert all(math.isfinite(line["loss"]) for line in lines)
    assert train[-1]["loss"] != train[0]["loss"]
    assert ("chosen_logratio" in train[0]) == has_reference
    assert held_out[-1]["kl/token"] > 0
    if at_start is not None:
        assert train[0]["loss"] == pytest.approx(at_start, abs=1e-5)
        assert held_out[0]["loss"] == pytest.approx(at_start, abs=1e-5)
    assert loss.partition("(")[0] in (run / "recipe.yaml").read_text()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (("--loss.type", "margin"), ["score", "22 of 22", ":1", "another loss"]),
        (("--loss.type", "tdpo2", "--reference.source", "cache"), ["forward_kl", "auto"]),
        (("--loss.type", "simpo", "--reference.source", "cache"), ["no reference"]),
        (("--loss.type", "kto", "--loss.target_margin", "1"), ["target_margin", "simpo"]),
        (("--loss.beta", "low"), ["loss.beta", "'low'", "schedule"]),
    ],
)
def test_what_a_loss_cannot_use_is_refused(settings, told, tiny, tmp_path):
    rows = tiny / "pairs.jsonl"
    with pytest.raises(AlignaxError) as caught:
        alignax(*words(tiny, rows, tmp_path / "run"), *settings)
    for word in told:
        assert word in str(caught.value)
    assert not (tmp_path / "run").exists()
