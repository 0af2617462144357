# SPDX-License-Identifier: Apache-2.0
"""The recipe's schema: its defaults are the documented ones, and what it writes it reads back."""

import pytest
import yaml

from alignax.errors import UsageError
from alignax.recipe import (
    ALIASES,
    Recipe,
    build_recipe,
    dump_recipe,
    flatten,
    known_keys,
    load_recipe,
    parse_value,
    unknown_key,
)

DOCUMENTED = {
    "lora.rank": 16,
    "lora.alpha": 32.0,
    "lora.dropout": 0.05,
    "lora.targets": ["q_proj", "v_proj"],
    "optimizer.learning_rate": 1e-5,
    "optimizer.schedule": "cosine",
    "optimizer.warmup_ratio": 0.1,
    "optimizer.clip_norm": 1.0,
    "train.batch_size": 16,
    "train.eval_steps": 200,
    "data.max_length": 512,
}


def test_defaults():
    flat = flatten(Recipe().model_dump())
    assert {key: flat[key] for key in DOCUMENTED} == DOCUMENTED


def test_every_setting_says_what_it_means():
    keys = known_keys()
    assert len(keys) > 60
    assert not [key for key, info in keys.items() if not info.description]
    assert set(ALIASES.values()) <= set(keys)


def test_a_written_recipe_reads_back(tmp_path):
    recipe = build_recipe(
        {
            "method": "sft",
            "output": "runs/a b: #1",
            "model.path": "demo",
            "data.path": ["one.jsonl", "two *.jsonl"],
            "data.system": "Say: 'yes'\nor \"no\" — 好",
            "data.add_bos": False,
            "data.stop_token": "2",
            "lora.targets": "all-linear",
            "optimizer.learning_rate": 3e-4,
            "train.epochs": 0.5,
        }
    )
    file = tmp_path / "recipe.yaml"
    file.write_text(dump_recipe(recipe), encoding="utf-8")
    assert load_recipe(file, {}) == recipe
    assert load_recipe(file, {"train.epochs": 2}).train.epochs == 2


def test_written_settings_carry_their_meaning():
    text = dump_recipe(Recipe())
    assert "rank: 16  # rank of the update" in text
    assert yaml.safe_load(text)["optimizer"]["learning_rate"] == 1e-5


def test_nested_and_dotted_keys_mean_the_same():
    nested = {"model": "demo", "loss": {"beta": 0.3}, "train": {"steps": 5}}
    assert flatten(nested) == {"model.path": "demo", "loss.beta": 0.3, "train.steps": 5}
    assert flatten({"model": {"path": "demo"}, "loss.beta": 0.3, "train.steps": 5}) == flatten(
        nested
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("3", 3),
        ("true", True),
        ("null", None),
        ("[a, b]", ["a", "b"]),
        ("q_proj", "q_proj"),
        ("2 apples", "2 apples"),
        ("a: [", "a: ["),
    ],
)
def test_flag_texts(text, value):
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


@pytest.mark.parametrize(
    ("key", "near"),
    [("lora.rnak", "lora.rank"), ("optimizer.lr_rate", None), ("beta", "loss.beta")],
)
def test_unknown_key_names_the_nearest(key, near):
    hint = unknown_key(key).hint
    assert near is None or near in hint
    assert hint


def test_all_bad_values_are_named_at_once():
    with pytest.raises(UsageError) as caught:
        build_recipe({"lora.rank": 0, "train.batch_size": "many", "optimizer.b1": 1.5})
    for needle in ("lora.rank", "train.batch_size", "'many'", "optimizer.b1", "1.5"):
        assert needle in str(caught.value)


def test_a_recipe_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        Recipe().lora.rank = 3  # type: ignore[misc]


@pytest.mark.parametrize("value", ["inf", ".inf", "nan", ".nan"])
def test_numbers_are_finite(value):
    with pytest.raises(UsageError, match=r"train\.epochs"):
        load_recipe(None, {"train.epochs": parse_value(value)})


def test_a_recipe_that_is_no_text(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"recipe\.yaml is not UTF-8"):
        load_recipe(file, {})
