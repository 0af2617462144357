# SPDX-License-Identifier: Apache-2.0
"""Whole commands on a tiny model: what they print, write and leave behind."""

import io
import json
import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alignax.cli import attending
from alignax.models.attention import BACKENDS
from alignax.models.weights import load_model
from tests.cli.tiny_model import QUICK, alignax, byte_tokenizer, pairs, read_lines, write_rows

FILES = (
    "recipe.yaml", "fingerprints.json", "metrics.jsonl", "events.jsonl", "data_report.json",
    "summary.json", "report.html", "checkpoints/index.json", "samples/step_000000.jsonl",
    "samples/step_000004.jsonl", "export/adapter/adapter_model.safetensors",
    "export/merged/model.safetensors", "export/merged/README.md",
)  # fmt: skip


def test_dpo_leaves_a_whole_run_folder(dpo_run):
    assert [name for name in FILES if not (dpo_run / name).exists()] == []
    assert list((dpo_run / "tensorboard").iterdir())


def test_dpo_starts_at_ln_2_and_learns(dpo_run):
    lines = read_lines(dpo_run / "metrics.jsonl")
    train = [line for line in lines if line["kind"] == "train"]
    held_out = {line["step"]: line for line in lines if line["kind"] == "eval"}
    assert [line["step"] for line in train] == [1, 2, 3, 4]
    assert train[0]["loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert held_out[0]["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert sorted(held_out) == [0, 2, 4]
    assert train[-1]["loss"] < train[0]["loss"]


def test_dpo_prints_its_summary_as_data_only(tiny, dpo_run, capsys):
    """A second run with the same seed: --json on stdout, talk on stderr, the same numbers."""
    again = tiny / "runs" / "again"
    words = ("--model", tiny / "model", "--data", tiny / "pairs.jsonl", "--output", again)
    capsys.readouterr()
    assert alignax("dpo", *words, *QUICK, "--json") == 0
    printed = capsys.readouterr()
    summary = json.loads(printed.out)
    assert summary["steps"] == 4
    assert {entry["kind"] for entry in summary["exports"]} == {"adapter", "merged"}
    assert "report" in json.dumps(summary) or (again / "report.html").exists()
    assert "step-0 loss 0.6931" in printed.err
    assert losses(again) == losses(dpo_run)
    assert (again / "export/adapter/adapter_model.safetensors").read_bytes() == (
        dpo_run / "export/adapter/adapter_model.safetensors"
    ).read_bytes()


def losses(run):
    """Training losses of a run."""
    return [line["loss"] for line in read_lines(run / "metrics.jsonl") if line["kind"] == "train"]


def test_an_attention_kernel_that_fails_is_replaced_and_named(tiny, dpo_run, capsys, monkeypatch):
    """A machine with kernels that do not compile: the run of tiled attention, and a notice."""

    def broken(*_):
        raise NotImplementedError("no such instruction")

    monkeypatch.setattr(attending, "platform", lambda: "tpu")
    monkeypatch.setitem(BACKENDS, "pallas", broken)
    run = tiny / "runs" / "broken-kernel"
    words = ("--model", tiny / "model", "--data", tiny / "pairs.jsonl", "--output", run)
    assert alignax("dpo", *words, *QUICK) == 0
    cause = "NotImplementedError: no such instruction"
    assert f"tiled instead: {cause}" in capsys.readouterr().err
    (event,) = [e for e in read_lines(run / "events.jsonl") if e["kind"] == "attention"]
    assert event["message"].endswith(cause)
    assert losses(run) == losses(dpo_run)


def test_a_run_tells_what_it_waited_for_and_compiled(dpo_run):
    lines = read_lines(dpo_run / "metrics.jsonl")
    shares = [line["data_wait_share"] for line in lines if line["kind"] == "train"]
    assert len(shares) == 4
    assert all(0 <= share < 1 for share in shares)
    found = ("first_step", "recompiled")
    events = [e for e in read_lines(dpo_run / "events.jsonl") if e["kind"] in found]
    assert [(event["step"], event["kind"]) for event in events] == [(1, "first_step")]
    assert "programs compiled" in events[0]["message"]
    summary = json.loads((dpo_run / "summary.json").read_text())
    assert min(shares) <= summary["data_wait_share"] <= max(shares)
    compiled = summary["compilations"]
    assert compiled["programs"] > compiled["found"] >= 0
    page = (dpo_run / "report.html").read_text(encoding="utf-8")
    assert "Waiting for data" in page
    assert "Programs" in page


def test_split_keeps_prompts_apart(dpo_run):
    split = json.loads((dpo_run / "data_report.json").read_text())["split"]
    assert split["train_rows"] + split["eval_rows"] == 24
    assert split["eval_rows"] == 2


def plain_scores(folder, rows):
    """Slow oracle: one answer at a time through dense attention, no packing, no data code."""
    model = load_model(folder).model
    tokenizer = byte_tokenizer()

    @jax.jit
    def logps_of(ids_bt, real_bt):
        position_bt = jnp.arange(ids_bt.shape[1])[None]
        tiles = jnp.full((1, 1, 2), -1)
        hidden_btd = model.hidden(
            ids_bt, position_bt, real_bt, jnp.zeros_like(ids_bt), tiles, attention="dense"
        )
        return jax.nn.log_softmax(hidden_btd @ model.head_vd.T, -1)

    results = []
    for row in rows:
        text = tokenizer.apply_chat_template(
            row["prompt"], add_generation_prompt=True, tokenize=False
        )
        prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
        values = {"boundary": len(prompt)}
        for side in ("chosen", "rejected"):
            answer = tokenizer(row[side][0]["content"] + "<|im_end|>")["input_ids"]
            ids = prompt + answer
            padded = np.zeros((1, 128), np.int32)
            padded[0, : len(ids)] = ids
            real = (np.arange(128) < len(ids)).astype(np.int32)[None]
            logp = np.asarray(logps_of(padded, real))[0]
            values[f"{side}_tokens"] = len(answer)
            values[f"{side}_logp"] = sum(
                float(logp[len(prompt) + i - 1, token]) for i, token in enumerate(answer)
            )
        results.append(values)
    return results


def test_score_equals_a_plain_computation(tiny, tmp_path, capsys):
    rows = pairs(6, seed=5)
    rows[2]["rejected"] = rows[2]["chosen"]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    out = tmp_path / "scores.jsonl"
    words = ("--model", tiny / "model", "--data", data, "--output", out)
    assert alignax("score", *words, "--json") == 0
    totals = json.loads(capsys.readouterr().out)
    assert (totals["rows"], totals["scored"], totals["dropped"]) == (6, 5, 1)
    lines = read_lines(out)
    assert [line["place"].rpartition(":")[2] for line in lines] == list("123456")
    assert lines[2]["dropped"] == "identical_pair"
    assert len({line["id"] for line in lines}) == 6
    for line, expected in zip(lines, plain_scores(tiny / "model", rows), strict=True):
        if "dropped" in line:
            continue
        for name, value in expected.items():
            assert line[name] == pytest.approx(value, abs=1e-3), name


def test_score_of_a_run_is_the_score_of_its_exports(tiny, dpo_run, tmp_path):
    data = ("--data", tiny / "pairs.jsonl", "--data.max_length", "96")
    scores = {}
    for name, words in {
        "run": ("--model", dpo_run),
        "adapter": ("--model", tiny / "model", "--adapter", dpo_run / "export/adapter"),
        "merged": ("--model", dpo_run / "export/merged"),
        "base": ("--model", tiny / "model"),
    }.items():
        out = tmp_path / f"{name}.jsonl"
        assert alignax("score", *words, *data, "--output", out) == 0
        scores[name] = [line["chosen_logp"] for line in read_lines(out)]
    assert scores["run"] == scores["adapter"]
    np.testing.assert_allclose(scores["merged"], scores["run"], atol=1e-3)
    assert np.abs(np.subtract(scores["base"], scores["run"])).max() > 0.05


def test_evaluate_finds_the_run_own_held_out_rows(dpo_run, capsys):
    capsys.readouterr()
    assert alignax("evaluate", "heldout", "--model", dpo_run, "--json") == 0
    values = json.loads(capsys.readouterr().out)
    after = json.loads((dpo_run / "summary.json").read_text())["after"]
    for name in ("n", "loss", "margin", "accuracy", "perplexity", "kl/token"):
        assert values[name] == pytest.approx(after[name], abs=1e-5), name


def test_generate_prints_json_lines(tiny, dpo_run, capsys):
    capsys.readouterr()
    words = ("--prompt", "0 red?", "--prompt", "1 blue?", "--max-new-tokens", "4", "--json")
    assert alignax("generate", "--model", dpo_run, *words) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["prompt"] for line in lines] == ["0 red?", "1 blue?"]
    assert all(line["finish_reason"] in ("stop", "length") for line in lines)
    assert all(line["tokens"] <= 4 for line in lines)


def test_chat_answers_each_turn(tiny, monkeypatch, capsys):
    capsys.readouterr()
    monkeypatch.setattr(sys, "stdin", io.StringIO("0 red?\n/system be brief\n/reset\nhi\n"))
    assert alignax("chat", "--model", tiny / "model", "--max-new-tokens", "4") == 0
    printed = capsys.readouterr()
    assert printed.out.count("\n") >= 2
    assert "answering as" in printed.err


def test_export_of_the_last_checkpoint(dpo_run, capsys):
    before = (dpo_run / "export/adapter/adapter_model.safetensors").read_bytes()
    capsys.readouterr()
    words = ("--checkpoint", "last", "--export.merged", "false", "--json")
    assert alignax("export", dpo_run, *words) == 0
    written = json.loads(capsys.readouterr().out)
    assert [entry["kind"] for entry in written] == ["adapter"]
    summary = json.loads((dpo_run / "summary.json").read_text())
    assert {entry["kind"] for entry in summary["exports"]} == {"adapter", "merged"}
    if summary["best_step"] == 4:
        assert (dpo_run / "export/adapter/adapter_model.safetensors").read_bytes() == before


def test_report_as_json_and_for_people(dpo_run, capsys):
    capsys.readouterr()
    assert alignax("report", dpo_run, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"]
    page = (dpo_run / "report.html").read_text(encoding="utf-8")
    assert "<html" in page
    assert "http" not in page.replace("http://www.w3.org", "")
    assert alignax("report", dpo_run) == 0
    printed = capsys.readouterr()
    assert " ".join(report["verdict"].split())[:40] in " ".join(printed.out.split())


def test_env_as_json(capsys):
    assert alignax("env", "--json") == 0
    assert json.loads(capsys.readouterr().out)["packages"]["jax"] == jax.__version__


def test_data_check_and_show(tiny, capsys):
    words = ("--model", tiny / "model", "--data", tiny / "pairs.jsonl")
    assert alignax("data", "check", *words, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["rows"], report["kept"]) == (24, 24)
    assert alignax("data", "show", *words, "--json", "--limit", "2") == 0
    shown = json.loads(capsys.readouterr().out)
    assert len(shown) == 2
    scored = "".join(piece for _, piece, branch, in_loss in shown[0]["tokens"] if in_loss)
    first = pairs(24)[0]
    for side in ("chosen", "rejected"):
        assert first[side][0]["content"].replace(" ", "Ġ") + "<|im_end|>" in scored.replace(
            " ", "Ġ"
        )
    assert alignax("data", "show", *words) == 0
    assert "<|im_end|>" in capsys.readouterr().out


def test_sft_leaves_a_run_and_reports_perplexity(sft_run):
    assert (sft_run / "report.html").exists()
    summary = json.loads((sft_run / "summary.json").read_text())
    before, after = summary["before"], summary["after"]
    assert after["loss"] < before["loss"]
    assert after["perplexity"] == pytest.approx(math.exp(after["loss"]), rel=1e-4)
    assert "margin" not in after


def test_dpo_on_top_of_sft_is_compared_with_base_and_adapter(tiny, sft_run, capsys):
    run = tiny / "runs" / "stacked"
    words = ("--model", tiny / "model", "--adapter", sft_run, "--data", tiny / "pairs.jsonl")
    assert alignax("dpo", *words, "--output", run, *without(QUICK, "--lora.rank")) == 0
    held_out = eval_lines(run)[0]
    assert held_out["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert held_out["margin"] == pytest.approx(0, abs=1e-6)
    assert losses(run)[0] == pytest.approx(math.log(2), abs=1e-5)
    marks = json.loads((run / "fingerprints.json").read_text())
    assert marks["adapter"] is not None
    assert marks["adapter"][:16] in marks["reference"]
    assert marks["base"][:16] in marks["reference"]
    # The recipe of the run names the adapter's own shape, not the defaults.
    assert marks["settings"]["lora.rank"] == 4
    # Outside the run the same reference is found: base + the SFT adapter.
    capsys.readouterr()
    assert alignax("evaluate", "heldout", "--model", run, "--json") == 0
    values = json.loads(capsys.readouterr().out)
    after = json.loads((run / "summary.json").read_text())["after"]
    assert values["loss"] == pytest.approx(after["loss"], abs=1e-5)


def test_dpo_against_the_base_below_an_adapter_says_so(tiny, sft_run, capsys):
    run = tiny / "runs" / "against_base"
    words = ("--model", tiny / "model", "--adapter", sft_run, "--data", tiny / "pairs.jsonl")
    quick = without(QUICK, "--lora.rank")
    capsys.readouterr()
    assert alignax("dpo", *words, "--output", run, *quick, "--reference.start", "base") == 0
    printed = capsys.readouterr()
    assert "the reference is the base below the adapter, as asked" in printed.err
    assert abs(eval_lines(run)[0]["loss"] - math.log(2)) > 1e-4
    assert "adapter none" in json.loads((run / "fingerprints.json").read_text())["reference"]
    assert alignax("evaluate", "heldout", "--model", run, "--json") == 0
    values = json.loads(capsys.readouterr().out)
    after = json.loads((run / "summary.json").read_text())["after"]
    assert values["loss"] == pytest.approx(after["loss"], abs=1e-5)


def without(words, *flags):
    """Leave flags and their values out."""
    given = dict(zip(words[::2], words[1::2], strict=True))
    return [w for flag, value in given.items() if flag not in flags for w in (flag, value)]


def eval_lines(run):
    """Step → held-out values."""
    lines = read_lines(run / "metrics.jsonl")
    return {line["step"]: line for line in lines if line["kind"] == "eval"}


def test_full_fine_tuning(tiny, capsys):
    run = tiny / "runs" / "full"
    words = ("--model", tiny / "model", "--data", tiny / "pairs.jsonl", "--output", run)
    quick = without(QUICK, "--lora.rank", "--lora.dropout")
    capsys.readouterr()
    assert alignax("dpo", *words, *quick, "--lora.enabled", "false", "--loss.beta", "0.5") == 0
    assert losses(run)[0] == pytest.approx(math.log(2), abs=1e-5)
    summary = json.loads((run / "summary.json").read_text())
    assert [entry["kind"] for entry in summary["exports"]] == ["merged"]
    capsys.readouterr()
    # The run knows its base, its rows and its loss.
    assert alignax("evaluate", "heldout", "--model", run, "--json") == 0
    values = json.loads(capsys.readouterr().out)
    assert values["loss"] == pytest.approx(summary["after"]["loss"], abs=1e-4)
