# SPDX-License-Identifier: Apache-2.0
"""What `data show` and `data check` print: tokens of each branch, what is scored, counts."""

import json

import pytest
from rich.console import Console

from alignax.data.dataset import build_dataset
from alignax.data.inspect import explain, render_report, render_rows
from tests.data.toys import assistant, chatml, encoder, example, user


def printed(renderable):
    console = Console(width=200, color_system=None)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def squeezed(text):
    return " ".join(text.replace("│", " ").split())


@pytest.fixture
def enc():
    return encoder(chatml(), max_length=40)


def row(chosen="yes", rejected="no"):
    return {
        "prompt": [user("hi")], "chosen": [assistant(chosen)], "rejected": [assistant(rejected)],
    }  # fmt: skip


def test_explain_lists_every_token_with_its_branch(enc):
    encoded = enc.encode(example(row()))
    tokens = explain(encoded, enc.tokenizer)
    assert [t[0] for t in tokens] == [
        *encoded.prompt.tolist(), *encoded.answers[0].tolist(), *encoded.answers[1].tolist(),
    ]  # fmt: skip
    assert [t for t in tokens if t[2] == "chosen"] == [
        (ord("y"), "y", "chosen", True),
        (ord("e"), "e", "chosen", True),
        (ord("s"), "s", "chosen", True),
        (201, "<|end|>", "chosen", True),
    ]
    assert {t[3] for t in tokens if t[2] == "prompt"} == {False}


def test_explain_calls_a_single_answer_answer(enc):
    tokens = explain(enc.encode(example(row(), kind="sft")), enc.tokenizer)
    assert {t[2] for t in tokens} == {"prompt", "answer"}


def test_a_row_shows_counts_edges_and_cuts(enc):
    encoded = enc.encode(example(row(chosen="[b]long[/b] " * 9)))
    shown = printed(render_rows(encoded, enc.tokenizer))
    assert f"row {encoded.row_id}" in shown
    assert f"chosen: {len(encoded.answers[0])} tokens, in the loss" in shown
    assert f"prompt: {len(encoded.prompt)} tokens, not in the loss" in shown
    assert "[b]long[/b]" in shown  # markup of the text is text
    assert "201='<|end|>'" in shown
    assert f"chosen cut by {encoded.answer_cut[0]} tokens, so it has no stop token" in shown
    assert "rejected cut" not in shown


def test_a_report_shows_what_happened(enc, tmp_path):
    file = tmp_path / "[i]rows.jsonl"
    rows = [row(chosen=f"yes {i}") for i in range(3)] + [row("same", "same"), row("y" * 50)]
    file.write_text("\n".join(json.dumps(r | {"extra [x]": 1}) for r in rows))
    _, report = build_dataset(
        str(file), format="auto", split="train", encoder=enc, kind="pair", cache_dir=tmp_path
    )
    shown = printed(render_report(report))
    assert "[i]rows.jsonl: format trl" in shown
    assert f"cut: chosen_cut 1 ({report.cut['chosen_cut']['tokens']} tokens)" in squeezed(shown)
    assert "dropped: identical" in shown
    assert "stop token in the loss: 3 of 3" in shown
    assert "extra [x]" in shown
    assert "encoded anew" in shown
    json.dumps(report.to_json())
