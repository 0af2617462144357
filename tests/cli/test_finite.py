# SPDX-License-Identifier: Apache-2.0
"""A model that cannot read one character: the rows that hold it are named, left out and kept."""

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from alignax.errors import StoppedByGuard
from alignax.models.config import DecoderConfig
from alignax.models.decoder import random_model
from alignax.models.weights import export_tensors, hf_config
from tests.cli.tiny_model import CONFIG, QUICK, alignax, pairs, read_lines, write_model, write_rows

STEPS = ("--train.steps", "6", "--train.eval_steps", "2", "--export.merged", "false")
FROZEN = ("--reference.source", "frozen_copy", "--sample.prompts", "0", "--train.seed", "3")


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory):
    """(model whose embedding of ``~`` is NaN, rows of which number 13 holds it, clean rows)."""
    folder = tmp_path_factory.mktemp("poisoned")
    model = write_model(folder / "model")
    config: DecoderConfig = replace(CONFIG, tie_embeddings=False)
    tensors = export_tensors(random_model(config, seed=0))
    token = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]["~"]
    embedding = np.array(tensors["model.embed_tokens.weight"])
    embedding[token] = np.nan
    tensors["model.embed_tokens.weight"] = embedding
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    content = json.loads((model / "config.json").read_text())
    content |= hf_config(config) | {"eos_token_id": content["eos_token_id"]}
    (model / "config.json").write_text(json.dumps(content))
    rows = pairs(24)
    held_out = write_rows(folder / "held_out.jsonl", pairs(4, seed=9))
    rows[12]["chosen"][0]["content"] += " ~"
    return model, write_rows(folder / "rows.jsonl", rows), held_out


def words(poisoned, run, *more):
    model, rows, held_out = poisoned
    given = ("--model", model, "--data", rows, "--data.eval_path", held_out, "--output", run)
    return ("dpo", *given, *QUICK, *STEPS, *FROZEN, *more)


def test_the_row_is_named_and_left_out(poisoned, tmp_path, capsys):
    run = tmp_path / "run"
    assert alignax(*words(poisoned, run)) == 0
    (event,) = [e for e in read_lines(run / "events.jsonl") if e["kind"] == "skipped"]
    for text in (event["message"], capsys.readouterr().err.replace("\n", "")):
        assert "first bad tensor: model.embed_tokens.weight, row" in text.replace("  ", " ")
        assert "rows.jsonl:13" in text
    assert "1 of 3 that guards.finite.skips allows" in event["message"]
    story = json.loads((run / f"faults/step-{event['step']:06d}.json").read_text())
    assert [row["place"].rpartition("/")[2] for row in story["rows"]] == ["rows.jsonl:13"]
    assert len(story["other_rows"]) == 3
    with np.load(run / "faults" / story["batch"]) as kept:
        assert story["rows"][0]["row_id"] in kept["row_ids"]
        assert {"ids", "segments", "branches", "answer_target"} <= set(kept.files)
    trained = [m["step"] for m in read_lines(run / "metrics.jsonl") if m["kind"] == "train"]
    assert trained == [n for n in range(1, 7) if n != event["step"]]
    adapter = load_file(run / "export/adapter/adapter_model.safetensors")
    assert all(np.isfinite(tensor).all() for tensor in adapter.values())


def test_without_a_budget_the_run_goes_back_and_then_stops(poisoned, tmp_path):
    """The same rows come again; what is left to do is said."""
    run = tmp_path / "run"
    more = ("--guards.finite.skips", "0", "--guards.max_rollbacks", "1")
    with pytest.raises(StoppedByGuard) as caught:
        alignax(*words(poisoned, run, *more))
    assert "rows.jsonl:13" in str(caught.value)
    assert "alignax data show" in str(caught.value)
    (done,) = json.loads((run / "rollbacks.json").read_text())["rollbacks"]
    assert done["guard"] == "finite"
    assert "the batch is kept in" in done["line"]


def test_after_a_rollback_the_batch_can_be_left_out(poisoned, tmp_path):
    run = tmp_path / "run"
    more = ("--guards.finite.skips", "0", "--guards.skip_batches", "true")
    assert alignax(*words(poisoned, run, *more)) == 0
    (done,) = json.loads((run / "rollbacks.json").read_text())["rollbacks"]
    assert done["passed_over"] == [done["at_step"]]
    assert f"batch of step {done['at_step']} left out" in done["line"]
    trained = [m["step"] for m in read_lines(run / "metrics.jsonl") if m["kind"] == "train"]
    assert trained == [n for n in range(1, 7) if n != done["at_step"]]
