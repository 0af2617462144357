# SPDX-License-Identifier: Apache-2.0
"""Flags and recipe files become one recipe; anything unknown or without effect is refused."""

import pytest

from alignax.cli import main as cli
from alignax.cli.options import Parser, add_settings, reject_unknown, settings_of
from alignax.errors import UsageError


def parse(words, *prefixes):
    parser = Parser(prog="alignax test")
    parser.add_argument("--recipe")
    add_settings(parser, *(prefixes or ("output", "model.", "data.", "loss.", "lora.", "train.")))
    arguments, unknown = parser.parse_known_args(words)
    reject_unknown(parser, unknown)
    return settings_of(arguments, method="dpo")


def test_flags_of_every_type():
    recipe = parse(
        ["--model", "demo", "--data", "a.jsonl,b.jsonl", "--loss.beta", "0.05", "--train.resume"]
        + ["--lora.targets", "q_proj,k_proj", "--train.batch_size=4", "--data.add_bos", "false"]
    )
    assert recipe.model.path == "demo"
    assert recipe.data.path == ["a.jsonl", "b.jsonl"]
    assert recipe.loss.beta == 0.05
    assert recipe.train.resume is True
    assert recipe.lora.targets == ["q_proj", "k_proj"]
    assert recipe.train.batch_size == 4
    assert recipe.data.add_bos is False


def test_text_settings_stay_text():
    recipe = parse(["--model", "123", "--output", "1e5", "--data.stop_token", "2"])
    assert (recipe.model.path, recipe.output, recipe.data.stop_token) == ("123", "1e5", "2")


def test_one_target_and_all_linear():
    assert parse(["--lora.targets", "q_proj"]).lora.targets == ["q_proj"]
    assert parse(["--lora.targets", "all-linear"]).lora.targets == "all-linear"


def test_flags_win_over_recipe_which_wins_over_defaults(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text("model: demo\nloss:\n  beta: 0.3\ntrain.batch_size: 8\n")
    recipe = parse(["--recipe", str(file), "--loss.beta", "0.2"])
    assert (recipe.model.path, recipe.loss.beta, recipe.train.batch_size) == ("demo", 0.2, 8)
    assert recipe.data.max_length == 512


@pytest.mark.parametrize(
    ("words", "needles"),
    [
        (["--loss.betta", "1"], ["--loss.beta"]),
        (["--beta", "1"], ["--loss.beta"]),
        (["--optimizer.learning_rate", "1"], ["no effect"]),
        (["--nonsense", "1"], ["--nonsense", "unknown"]),
        (["--loss.beta", "0"], ["loss.beta must be > 0", "0"]),
        (["--train.steps", "3", "--train.epochs", "1"], ["exclude each other"]),
        (["--lora.rank", "x"], ["lora.rank", "'x'"]),
        (["--data.overlong", "maybe"], ["truncate", "maybe"]),
    ],
)
def test_bad_flags(words, needles):
    with pytest.raises(UsageError) as caught:
        parse(words)
    for needle in needles:
        assert needle in str(caught.value)


def test_recipe_file_problems(tmp_path):
    file = tmp_path / "recipe.yaml"
    with pytest.raises(UsageError, match="cannot read recipe"):
        parse(["--recipe", str(file)])
    file.write_text("loss: [")
    with pytest.raises(UsageError, match="not valid YAML"):
        parse(["--recipe", str(file)])
    file.write_text("loss:\n  betta: 1\n  kind: x\n")
    with pytest.raises(UsageError) as caught:
        parse(["--recipe", str(file)])
    assert "loss.betta" in str(caught.value)
    assert "loss.kind" in str(caught.value)


@pytest.mark.parametrize("verb", [v for v in cli.VERBS if v not in ("data", "evaluate")])
def test_every_verb_has_help(verb, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.run([verb, "--help"])
    assert caught.value.code == 0
    assert f"usage: alignax {verb}" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["data", "check"], ["data", "show"], ["evaluate", "heldout"]])
def test_every_sub_verb_has_help(words, capsys):
    with pytest.raises(SystemExit):
        cli.run([*words, "--help"])
    assert "--model" in capsys.readouterr().out


def test_unknown_verb_names_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'dpo'"):
        cli.run(["dpoo"])


def test_missing_settings_are_named_at_once():
    with pytest.raises(UsageError, match="--model, --data, --output"):
        cli.run(["dpo"])
