# SPDX-License-Identifier: Apache-2.0
"""A reward model from the command line: trained, exported, read back, and used as a judge."""

import json
import math

import numpy as np
import pytest

from alignax.errors import AlignaxError
from alignax.models.reward import text_rewards
from alignax.models.tokenizer import load_tokenizer
from alignax.models.weights import load_model
from tests.cli.tiny_model import QUICK, alignax, pairs, read_lines, write_rows

FLAGS = [
    word
    for name, value in zip(QUICK[::2], QUICK[1::2], strict=True)
    if not name.startswith("--sample")
    for word in (name, value)
]


@pytest.fixture(scope="module")
def trained(tiny, tmp_path_factory):
    """A run of eight steps."""
    run = tmp_path_factory.mktemp("reward") / "run"
    words = ("reward", "--model", tiny / "model", "--data", tiny / "pairs.jsonl", "--output", run)
    assert alignax(*words, *FLAGS, "--train.steps", "8", "--train.eval_steps", "4") == 0
    return run


def test_a_run_begins_at_ln_2_and_learns(trained):
    lines = read_lines(trained / "metrics.jsonl")
    train = [line for line in lines if line["kind"] == "train"]
    held_out = [line for line in lines if line["kind"] == "eval"]
    assert train[0]["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert held_out[0]["ties"] == 1.0
    assert held_out[-1]["loss"] < held_out[0]["loss"]
    assert 0 <= held_out[-1]["calibration_error"] <= 1
    for absent in ("perplexity", "kl/token", "chosen_logp", "chosen_logratio"):
        assert all(absent not in line for line in lines)
    assert "Reward model" in (trained / "report.html").read_text()


def test_the_export_is_a_reward_model_whose_padding_ends_no_answer(trained):
    folder = trained / "export" / "merged"
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForSequenceClassification"]
    assert list(config["id2label"]) == ["0"]
    loaded, tokenizer = load_model(folder), load_tokenizer(folder)
    assert loaded.config.scores
    assert np.abs(loaded.model.score.weight[...]).max() > 0
    assert config["pad_token_id"] == tokenizer.pad_token_id != tokenizer.eos_token_id
    assert not (trained / "export" / "adapter").exists()


def test_rewards_of_rows_are_those_of_whole_texts(trained, tiny, tmp_path):
    """``score`` packs pairs behind shared prompts; the oracle reads one padded text at a time."""
    out = tmp_path / "scores.jsonl"
    rows = tiny / "pairs.jsonl"
    alignax("score", "--model", trained, "--data", rows, "--output", out)
    folder = trained / "export" / "merged"
    model, tokenizer = load_model(folder).model, load_tokenizer(folder)
    line = read_lines(out)[0]
    row = read_lines(rows)[0]
    for side in ("chosen", "rejected"):
        turns = row["prompt"] + row[side] if isinstance(row["prompt"], list) else row[side]
        text = tokenizer.apply_chat_template(turns, tokenize=False).rstrip("\n")
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert line[f"{side}_reward"] == pytest.approx(
            float(text_rewards(model, [ids])[0]), abs=1e-5
        )


def test_it_judges_answers_and_a_language_model_does_so_by_label(trained, tiny, tmp_path, capsys):
    ours = [{"prompt": f"say {i}", "text": f"red {i}"} for i in range(4)]
    theirs = [{"prompt": f"say {i}", "text": f"two cats {i}"} for i in range(4)]
    files = [
        write_rows(tmp_path / f"{name}.jsonl", rows) for name, rows in (("a", ours), ("b", theirs))
    ]
    words = ("evaluate", "win-rate", "--outputs", files[0], "--baseline", files[1], "--json")
    found = {}
    for judge in (f"reward:{trained}", f"model:{tiny / 'model'}"):
        verdicts = tmp_path / f"{judge[:6]}.jsonl"
        assert alignax(*words, "--judge", judge, "--verdicts", verdicts) == 0
        found[judge[:5]] = read_lines(verdicts), json.loads(capsys.readouterr().out)
    by_reward, values = found["rewar"]
    assert values["coverage"] == 1.0
    assert all(line["raw"].startswith("rewards ") for line in by_reward)
    by_label, values = found["model"]
    assert values["coverage"] == 1.0
    assert all(line["raw"].count("A 0.") == 2 for line in by_label)


def test_held_out_accuracy_by_a_column_and_by_length(trained, tiny, tmp_path, capsys):
    marked = [row | {"subset": "even" if n % 2 else "odd"} for n, row in enumerate(pairs(8))]
    rows = write_rows(tmp_path / "marked.jsonl", marked)
    words = ("evaluate", "heldout", "--model", trained, "--data", rows, "--json", "--by")
    assert alignax(*words, "subset") == 0
    values = json.loads(capsys.readouterr().out)
    assert {name: group["n"] for name, group in values["groups"].items()} == {"even": 4, "odd": 4}
    shares = [group["accuracy"] for group in values["groups"].values()]
    assert sum(shares) / 2 == pytest.approx(values["accuracy"])
    assert alignax(*words, "length") == 0
    assert set(json.loads(capsys.readouterr().out)["groups"]) == {"rejected longer"}
    with pytest.raises(AlignaxError, match="chosen, prompt, rejected, subset"):
        alignax(*words, "category")


def test_a_reward_model_cannot_answer_and_a_language_model_gives_no_rewards(
    trained, tiny, tmp_path
):
    merged = trained / "export" / "merged"
    rows = write_rows(tmp_path / "a.jsonl", [{"prompt": "a", "text": "b"}])
    other = write_rows(tmp_path / "b.jsonl", [{"prompt": "a", "text": "c"}])
    pair = ("evaluate", "win-rate", "--outputs", rows, "--baseline", other)
    for words, told in (
        (("generate", "--model", merged, "--prompt", "a"), "is a reward model"),
        ((*pair, "--judge", f"reward:{tiny / 'model'}"), "alignax reward"),
        ((*pair, "--judge", f"model:{merged}"), "--judge reward:"),
    ):
        with pytest.raises(AlignaxError, match=told):
            alignax(*words)
