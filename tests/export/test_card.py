# SPDX-License-Identifier: Apache-2.0
"""The card says what was done, what came of it and what is not known."""

import dataclasses

import pytest
import yaml

from alignax.export.card import model_card


def front_matter(card):
    """The card's metadata."""
    return yaml.safe_load(card.split("---")[1])


def test_card_of_a_merged_model(facts):
    card = model_card(facts, "merged", dtype="bfloat16")
    assert front_matter(card) == {
        "library_name": "transformers", "pipeline_tag": "text-generation",
        "tags": ["alignax", "dpo", "lora"],
    }  # fmt: skip
    assert "| loss | 0.6931 | 0.6402 [0.6100, 0.6700] |" in card
    assert "| accuracy (chosen above rejected) | 0.0000 | 0.7031 [0.5823, 0.8006] |" in card
    assert "64 held-out rows; brackets are 95 % intervals." in card
    assert "`pairs.jsonl`" in card
    assert "| `loss.beta` | `0.1` |" in card
    assert "| step of these weights | 80 |" in card
    assert "stay under its licence" in card
    assert facts.base_hash in card
    assert "## Limits" in card


def test_card_of_an_adapter_without_evaluation(facts):
    bare = dataclasses.replace(facts, base="someone/model-1B", summary={})
    card = model_card(bare, "adapter", dtype="float32")
    assert front_matter(card)["base_model"] == "someone/model-1B"
    assert front_matter(card)["library_name"] == "peft"
    assert "was not evaluated on held-out rows" in card
    assert "PeftModel.from_pretrained" in card


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"export": {"dtype": "bfloat16"}}, True),
        ({"train": {"seed": 0, "resume": True}}, True),
        ({"train": {"seed": 1, "resume": False}}, False),
        ({"output": "runs/two"}, False),
    ],
)
def test_a_run_is_its_settings(facts, changes, same):
    other = dataclasses.replace(facts, settings={**facts.settings, **changes})
    assert (other.run == facts.run) is same


def test_values_cannot_break_the_table(facts):
    odd = dataclasses.replace(facts, data=["a|b`c\nd"])
    assert "- `a/b'c d`" in model_card(odd, "merged", dtype="float32")


def test_the_manifest_is_plain_json(facts):
    odd = dataclasses.replace(facts, summary={"after": {"loss_low": -float("inf"), "n": 1.0}})
    assert odd.to_json()["summary"] == {"after": {"loss_low": None, "n": 1.0}}
