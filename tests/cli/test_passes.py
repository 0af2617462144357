# SPDX-License-Identifier: Apache-2.0
"""The reference pass of a run: what is computed, and what is found."""

import numpy as np
import pytest

from alignax.cli import passes
from alignax.cli.setup import prepare
from alignax.recipe import load_recipe


@pytest.fixture
def setup_of(tiny, tmp_path, monkeypatch):
    """Make a run's setup; caches of its own."""
    monkeypatch.setenv("ALIGNAX_CACHE", str(tmp_path / "cache"))

    def make(**settings):
        base = {
            "model": str(tiny / "model"), "data": str(tiny / "pairs.jsonl"),
            "output": str(tmp_path / "run"), "data.max_length": 96,
            "train.microbatch_tokens": 512, "train.batch_size": 4, "lora.rank": 4,
        }  # fmt: skip
        return prepare(load_recipe(None, base | settings))

    return make


def test_runs_share_the_reference_whatever_they_train_with(setup_of, monkeypatch, capsys):
    table = passes.reference_table(setup_of())
    assert "22 rows computed, 0 found" in capsys.readouterr().err
    monkeypatch.setattr(passes, "fill_cache", lambda *_: pytest.fail("computed again"))
    others = {
        "loss.beta": 0.7, "optimizer.learning_rate": 1e-3, "train.seed": 9, "lora.rank": 2,
        "train.batch_size": 8, "train.epochs": 2,
    }  # fmt: skip
    np.testing.assert_array_equal(passes.reference_table(setup_of(**others)), table)
    assert "0 rows computed, 22 found" in capsys.readouterr().err


def test_rows_that_are_encoded_otherwise_are_scored_anew(setup_of, capsys):
    passes.reference_table(setup_of())
    passes.reference_table(setup_of(**{"data.system": "be brief"}))
    assert capsys.readouterr().err.count("22 rows computed, 0 found") == 2
