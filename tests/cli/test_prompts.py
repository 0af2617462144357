# SPDX-License-Identifier: Apache-2.0
"""Files of prompts: what is asked, or what is wrong with the file, and where."""

import json

import pytest

from alignax.cli.prompts import read_prompts
from alignax.errors import AlignaxError, DataError
from tests.cli.tiny_model import alignax

ASKED = {"role": "user", "content": "Is tea hot?"}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {}}}


def written(tmp_path, name, content):
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(file)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "Is tea hot?\r\n\n"),
        ("a", b"\xef\xbb\xbf" + b'{"prompt": "Is tea hot?"}'),
        ("a.txt", '{"prompt": "Is tea hot?"}'),
        ("a.jsonl", '{"messages": [{"from": "human", "value": "Is tea hot?"}]}'),
        ("a.jsonl", '{"messages": null, "prompt": [{"role": "user", "content": "Is tea hot?"}]}'),
        ("a.json", '[{"instruction": "Is tea hot?"}]'),
        ("a.json", '["Is tea hot?"]'),
        ("a.csv", "prompt,n\nIs tea hot?,1\n"),
        ("a.jsonl", '{"prompt": "Is tea hot?"}'.encode("utf-16")),
    ],
)
def test_one_question_in_many_files(tmp_path, name, content):
    prompts = read_prompts(written(tmp_path, name, content))
    assert [p.turns for p in prompts] == [(ASKED,)]


def test_a_text_keeps_its_own_line_marks_and_system_and_tools_come_along(tmp_path):
    assert read_prompts(written(tmp_path, "a.txt", "one\u2028two"))[0].said == "one\u2028two"
    row = {"prompt": "Is tea hot?", "system": "Be brief", "tools": [TOOL]}
    prompt = read_prompts(written(tmp_path, "a.jsonl", json.dumps(row)))[0]
    assert prompt.turns == ({"role": "system", "content": "Be brief"}, ASKED)
    assert prompt.tools == (TOOL,)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "\n \n", "holds no prompts"),
        ("a.json", "[]", "holds no prompts"),
        ("a.txt", b"\xff\xfeI\x00", "not UTF-8"),
        ("a.txt", "ok\n{bad\n", r"a\.txt:2: not JSON"),
        (
            "a.jsonl",
            '{"prompt": "ok"}\n{"text": "q"}\n',
            r"a\.jsonl:2: no prompt \(columns: text\)",
        ),
        ("a.jsonl", '{"prompt": 3}', "prompt is int"),
        ("a.jsonl", '{"messages": ["q"]}', "holds str, a turn expected"),
        ("a.jsonl", '{"messages": [{"role": "assistant", "content": "q"}]}', "the assistant's"),
        ("a.jsonl", "3\n", "a prompt is text or an object, got int"),
    ],
)
def test_what_is_no_prompt_is_said_with_its_place(tmp_path, name, content, message):
    with pytest.raises(DataError, match=message):
        read_prompts(written(tmp_path, name, content))


def test_a_missing_file_and_a_folder(tmp_path):
    for path in (tmp_path / "none.txt", tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(DataError, match="cannot read"):
            read_prompts(str(path))


def test_answers_in_the_form_of_alpaca_eval(dpo_run, tmp_path):
    file = tmp_path / "model_outputs.json"
    words = ("generate", "--model", dpo_run, "--prompt", "Is tea hot?", "--max-new-tokens", "2")
    assert alignax(*words, "--form", "alpaca-eval", "--output", file) == 0
    (record,) = json.loads(file.read_text())
    assert record["instruction"] == "Is tea hot?"
    assert record["generator"] == dpo_run.name
    assert set(record) == {"instruction", "output", "generator"}
    for wrong in (("--form", "alpaca-eval"), ("--generator", "x", "--output", tmp_path / "o")):
        with pytest.raises(AlignaxError):
            alignax(*words, *wrong)
