# SPDX-License-Identifier: Apache-2.0
"""`alignax data`: rows are audited, filtered, split and converted without a model."""

import json

import pytest

from alignax.cli.main import run
from alignax.errors import RunError, UsageError
from tests.data.test_survey import good


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("ALIGNAX_CACHE", str(tmp_path / "cache"))
    rows = [*map(good, range(30)), good(2), {**good(40), "rejected": ""}]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_check_writes_rows_by_reason_and_a_page(file, tmp_path, capsys):
    out, page = tmp_path / "o" / "audit.json", tmp_path / "audit.html"
    assert run(["data", "check", str(file), "--json", str(out), "--html", str(page)]) == 0
    audit = json.loads(out.read_text())
    assert (audit["rows"], audit["kept"]) == (32, 31)
    assert audit["reasons"] == {
        "exact_duplicate": [30], "duplicate_prompt": [30], "empty_rejected": [31],
    }  # fmt: skip
    assert audit["statistics"]["diversity"]["n"] == 31
    assert any("repeat an earlier row" in sentence for sentence in audit["advice"])
    assert "exact_duplicate" in capsys.readouterr().out
    text = page.read_text(encoding="utf-8")
    assert "empty_rejected" in text
    assert "http" not in text
    again = tmp_path / "again.json"
    assert run(["data", "check", str(file), "--json", str(again), "--workers", "2"]) == 0
    first, second = audit, json.loads(again.read_text())
    assert first | {"seconds": 0} == second | {"seconds": 0}


def test_filter_keeps_every_row_somewhere(file, tmp_path, capsys):
    out = tmp_path / "kept.jsonl"
    words = ["data", "filter", str(file), "--output", str(out)]
    assert run([*words, "--data.filters", "exact_duplicate=drop"]) == 0
    assert json.loads(capsys.readouterr().out)["dropped"] == 2
    dropped = lines(tmp_path / "dropped.jsonl")
    assert [(d["row"], d["reason"]) for d in dropped] == [
        (30, "exact_duplicate"), (31, "empty_rejected"),
    ]  # fmt: skip
    assert [*lines(out), *(d["data"] for d in dropped)] == lines(file)
    with pytest.raises(RunError, match="exists"):
        run(words)
    with pytest.raises(UsageError, match="did you mean 'exact_duplicate'"):
        run([*words, "--force", "--data.filters", "exact_duplicat=drop"])


def test_split_never_parts_a_first_turn(file, tmp_path, capsys):
    words = ["data", "split", str(file), "--output", str(tmp_path / "s"), "--fraction", "0.3"]
    assert run(words) == 0
    counts = json.loads(capsys.readouterr().out)
    train, held = (lines(tmp_path / "s" / f"{name}.jsonl") for name in ("train", "eval"))
    assert (len(train), len(held), counts["leaked"]) == (counts["train"], counts["eval"], 0)
    assert len(train) + len(held) == 31
    assert not {r["prompt"] for r in train} & {r["prompt"] for r in held}


@pytest.mark.parametrize("form", ["trl", "alignax", "llamafactory"])
def test_what_was_converted_reads_the_same(form, file, tmp_path):
    out = tmp_path / "c" / f"{form}.jsonl"
    assert run(["data", "convert", str(file), "--to", form, "--output", str(out)]) == 0
    again = tmp_path / "again" / "rows.jsonl"
    assert run(["data", "convert", str(out), "--to", "trl", "--output", str(again)]) == 0
    texts = [json.dumps(row) for row in lines(again)]
    assert len(texts) == 31
    for row, text in zip(map(good, range(30)), texts, strict=False):
        assert all(row[name] in text for name in ("prompt", "chosen", "rejected"))


def test_rated_answers_stay_rated(tmp_path, monkeypatch):
    monkeypatch.setenv("ALIGNAX_CACHE", str(tmp_path / "cache"))
    rows = [
        {"prompt": f"q{i}?", "completion": f"answer {i}", "label": i % 2 == 0} for i in range(6)
    ]
    file, out = tmp_path / "kto.jsonl", tmp_path / "o" / "out.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    assert run(["data", "convert", str(file), "--to", "trl", "--output", str(out)]) == 0
    assert [row["label"] for row in lines(out)] == [row["label"] for row in rows]


def test_masks_replace_personal_data(tmp_path, monkeypatch):
    monkeypatch.setenv("ALIGNAX_CACHE", str(tmp_path / "cache"))
    file, out = tmp_path / "rows.jsonl", tmp_path / "o" / "out.jsonl"
    file.write_text(json.dumps({**good(1), "chosen": "Write to jo@post.example.org."}))
    assert run(["data", "convert", str(file), "--mask", "--output", str(out)]) == 0
    assert lines(out)[0]["chosen"] == "Write to [e-mail]."
