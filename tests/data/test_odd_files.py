# SPDX-License-Identifier: Apache-2.0
"""Files and rows as strangers have them: read right, or refused with cause, place and way out."""

import bz2
import gzip
import json

import pytest

from alignax.data.formats import detect, parse_row
from alignax.data.readers import Broken, read_files
from alignax.data.sources import open_rows
from alignax.errors import DataError
from alignax.records import Dropped
from tests.data.toys import assistant, user

ROWS = [
    {"prompt": [user(f"q{i} é")], "chosen": [assistant("yes")], "rejected": [assistant("no")]}
    for i in range(4)
]
LINES = "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS)
CSV = "prompt, chosen ,rejected\nq é,yes,no\n"


def read(tmp_path, name, content):
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return [row for _, _, row in read_files([file])]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("byte order mark.jsonl", b"\xef\xbb\xbf" + LINES.encode()),
        ("other line ends.jsonl", LINES.replace("\n", "\r\n")),
        ("old line ends.jsonl", LINES.replace("\n", "\r")),
        ("wide.jsonl", LINES.encode("utf-16")),
        ("wide and packed.jsonl.gz", gzip.compress(LINES.encode("utf-16"))),
        ("packed by another name.jsonl", gzip.compress(LINES.encode())),
        ("not packed.jsonl.gz", LINES),
        ("pretty.json", json.dumps(ROWS, indent=2)),
        ("in an object.json", json.dumps({"version": 1, "data": ROWS})),
        ("turns as text.jsonl", "\n".join(
            json.dumps({name: json.dumps(turns) for name, turns in row.items()}) for row in ROWS)),
        ("turns as Python wrote them.jsonl", "\n".join(
            json.dumps({name: str(turns) for name, turns in row.items()}) for row in ROWS)),
    ],
)  # fmt: skip
def test_the_same_rows_however_they_are_stored(tmp_path, name, content):
    rows = read(tmp_path, name, content)
    form = detect("auto", rows, kind="pair", source=name)
    for row, expected in zip(rows, ROWS, strict=True):
        example = parse_row(form, row, kind="pair", row_id="1", place="p", detected=True)
        assert list(example.prompt) == expected["prompt"]
        assert [list(side) for side in example.answers] == [
            expected["chosen"], expected["rejected"]
        ]  # fmt: skip


def test_turns_in_a_list_for_each_key(tmp_path):
    """What ``datasets`` makes of a sequence of structs."""
    rows = [
        {name: {key: [turn[key] for turn in turns] for key in turns[0]}
         for name, turns in row.items()}
        for row in ROWS
    ]  # fmt: skip
    form = detect("auto", rows, kind="pair", source="rows")
    example = parse_row(form, rows[0], kind="pair", row_id="1", place="p")
    assert [list(part) for part in (example.prompt, *example.answers)] == list(ROWS[0].values())


def test_answers_that_are_json_stay_text():
    row = {"prompt": "Write JSON", "chosen": '{"from": "a", "to": "b"}', "rejected": "[1]"}
    example = parse_row("trl", row, kind="pair", row_id="1", place="p")
    assert (example.chosen, example.rejected) == (row["chosen"], row["rejected"])


@pytest.mark.parametrize("content", [CSV, CSV.encode("utf-16"), b"\xef\xbb\xbf" + CSV.encode()])
def test_csv_headers_may_have_spaces(tmp_path, content):
    expected = [{"prompt": "q é", "chosen": "yes", "rejected": "no"}]
    assert read(tmp_path, "rows.csv", content) == expected


@pytest.mark.parametrize(
    ("name", "content", "needles"),
    [
        ("a.jsonl", LINES + "\n" + "[" * 100_000, ("line 5", "nested too deeply")),
        ("a.json", '[{"a": ' + "[" * 100_000, ("nested too deeply",)),
        ("a.jsonl", '{"prompt": "a", "prompt": "b"}', ("line 1", "'prompt' is there twice")),
        ("a.json", '[{"prompt": "a", "prompt": "b"}]', ("'prompt' is there twice",)),
        ("a.json", json.dumps({"train": ROWS, "test": ROWS}), ("several lists", "train, test")),
        ("a.json", json.dumps({"chosen": ["a"], "rejected": ["b"]}), ("columns", "records")),
        ("a.json", json.dumps({"chosen": {"0": "a"}, "rejected": {"0": "b"}}), ("columns",)),
        ("a.json", json.dumps(ROWS)[:-9], ("not JSON at line 1", "one JSON object a line")),
        ("a.jsonl", bz2.compress(LINES.encode()), ("bzip2", "gzip")),
        ("a.jsonl", b"\x28\xb5\x2f\xfd 1", ("zstd", "gzip")),
        ("a.jsonl", b"PK\x03\x04 1", ("ZIP", "unpack")),
        ("a.jsonl", b"PAR1 1", ("Parquet", ".parquet")),
        ("a.jsonl", "version https://git-lfs.github.com/spec/v1\n", ("LFS", "git lfs pull")),
        ("a.jsonl", "é".encode("latin-1"), ("not UTF-8", "0xe9")),
        ("a.jsonl", LINES.encode("utf-16")[:-1], ("not UTF-8", "truncated")),
        ("a.jsonl.gz", gzip.compress(LINES.encode())[:-9], ("cannot read", "end-of-stream")),
        ("a.csv", "prompt,chosen,chosen\na,b,c\n", ("'chosen' more than once",)),
        ("a.csv", "prompt;chosen;rejected\na;b;c\n", ("parted by ';'", "commas")),
        ("a.csv", "prompt\tchosen\trejected\na\tb\tc\n", ("parted by '\\t'", "commas")),
        ("a.csv", "prompt,chosen,rejected\na,b\n", ("line 2", "number of cells", "quotes")),
        ("a.csv", 'prompt,chosen,rejected\na,"b,c\n', ("line 2", "not CSV")),
        ("a.parquet", b"\x80\x04hello", ("as Parquet",)),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path, name, content, needles):
    with pytest.raises(DataError) as caught:
        read(tmp_path, name, content)
    text = str(caught.value)
    assert [needle for needle in (name, *needles) if needle not in text] == [], text


def test_a_repeated_key_with_one_value_does_no_harm(tmp_path):
    assert read(tmp_path, "a.jsonl", '{"a": 1, "a": 1}') == [{"a": 1}]


ASKED = [user("q")]
TOOL = {"role": "tool", "content": "7"}


def call(arguments):
    return assistant(None, tool_calls=[{"function": {"name": "f", "arguments": arguments}}])


def pair(**changes):
    return {"prompt": ASKED, "chosen": [assistant("a")], "rejected": [assistant("b")]} | changes


@pytest.mark.parametrize(
    ("row", "outcome"),
    [
        (pair(prompt=[{"role": None, "content": "q"}]), "wrong_type: prompt has role None"),
        (pair(prompt=[{"content": "q"}]),
         "missing_field: prompt has a turn without role (keys: content)"),
        (pair(prompt=[None, *ASKED]), "wrong_type: prompt holds NoneType"),
        (pair(prompt={"text": "q"}), "missing_field: prompt has a turn without role (keys: text)"),
        (pair(chosen={"bytes": 2}), "missing_field: chosen has a turn without role (keys: bytes)"),
        (pair(prompt=[{"role": "User ", "text": "q"}]), ASKED),
        (pair(prompt=[user(3)]), "wrong_type: prompt has content of int"),
        (pair(prompt=[*ASKED, call("{bad"), TOOL]), "wrong_type: prompt: arguments are not JSON"),
        (pair(prompt=[*ASKED, call("[1]"), TOOL]), "wrong_type: prompt: the arguments of f are no"),
        (pair(chosen=[assistant("a", tool_calls=[])]), ASKED),
        (pair(tools=["[]"]), "wrong_type: tools holds NoneType"),
        (pair(system=["s"]), "wrong_type: system is list"),
        (pair(system=float("nan")), ASKED),
        (pair(chosen=[SYSTEM := {"role": "system", "content": "s"}, *ASKED, assistant("a")],
              rejected=[SYSTEM, *ASKED, assistant("b")]), [SYSTEM, *ASKED]),
        (pair(chosen=[user("other"), assistant("a")], rejected=[user("other"), assistant("b")]),
         "prompt_differs: the sides begin with another prompt"),
        ({"conversations": [{"speaker": "human", "value": "q"}], "chosen": "a", "rejected": "b"},
         "missing_field: conversations has a turn without role (keys: speaker, value)"),
        ({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "z"}],
          "chosen": "a", "rejected": "b"},
         "roles_not_alternating: the prompt's last turn is the assistant's"),
        ({"question": "q", "chosen": [assistant("a")], "rejected": [assistant("b")]}, ASKED),
        ({"question": "q", "history": 3, "chosen": "a", "rejected": "b"},
         "wrong_type: history is int"),
        *[({side: f"\n\n{u}: q\n\n{a}: {text}" for side, text in (("chosen", "a"),
                                                                 ("rejected", "b"))}, ASKED)
          for u, a in (("Human", "Assistant"), ("human", "assistant"), ("User", "Assistant"),
                       ("USER", "ASSISTANT"), ("H", "A"))],
    ],
)  # fmt: skip
def test_odd_rows_are_read_right_or_named(row, outcome):
    form = detect("auto", [row], kind="pair", source="rows.jsonl")
    example = parse_row(form, row, kind="pair", row_id="1", place="p")
    if isinstance(outcome, str):
        assert isinstance(example, Dropped), example
        assert f"{example.reason}: {example.detail}".startswith(outcome)
        return
    assert list(example.prompt) == outcome
    assert example.answers == ((assistant("a"),), (assistant("b"),))


def test_calls_without_arguments_take_none():
    row = pair(prompt=[*ASKED, call(""), TOOL])
    example = parse_row("trl", row, kind="pair", row_id="1", place="p")
    assert example.prompt[1]["tool_calls"][0]["function"]["arguments"] == {}


def test_answers_that_differ_in_their_thoughts_differ():
    ours, theirs = (assistant("a", reasoning_content=text) for text in ("so", "thus"))
    row = pair(chosen=[ours], rejected=[theirs])
    example = parse_row("trl", row, kind="pair", row_id="1", place="p")
    assert example.answers == ((ours,), (theirs,))


def test_rows_of_another_format_are_not_guessed():
    """Among TRL's rows, a transcript would be read as plain text."""
    strangers = {
        "hh": {"chosen": "\n\nHuman: q\n\nAssistant: a",
               "rejected": "\n\nHuman: q\n\nAssistant: b"},
        "sharegpt": {"conversations": [{"from": "human", "value": "q"}], "chosen": "a",
                     "rejected": "b"},
        "alpaca-pairs": {"question": "q", "chosen": "a", "rejected": "b"},
    }  # fmt: skip
    for name, row in strangers.items():
        dropped = parse_row("trl", row, kind="pair", row_id="1", place="p", detected=True)
        assert dropped.reason == "other_format"
        assert f"format {name}" in dropped.detail
        own = parse_row(name, row, kind="pair", row_id="1", place="p", detected=True)
        assert not isinstance(own, Dropped)
        plain = parse_row("trl", ROWS[0], kind="pair", row_id="1", place="p", detected=True)
        assert not isinstance(plain, Dropped)
    named = parse_row("trl", strangers["hh"], kind="pair", row_id="1", place="p")
    assert isinstance(named.prompt, str)
    broken = {"chosen": "no speaker", "rejected": strangers["hh"]["rejected"]}
    assert parse_row("hh", broken, kind="pair", row_id="1", place="p", detected=True).reason == (
        "no_transcript"
    )


def test_a_prompt_that_is_a_transcript_stays_text_among_plain_rows():
    row = {"prompt": "\n\nHuman: q\n\nAssistant:", "chosen": " a", "rejected": " b"}
    kept = parse_row("trl", row, kind="pair", row_id="1", place="p", detected=True)
    assert (kept.prompt, *kept.answers) == (row["prompt"], " a", " b")


def test_a_damaged_escape_in_a_list_costs_its_row_only(tmp_path):
    rows = [json.dumps({"prompt": f"q{i}", "chosen": "a\\b", "rejected": "c"}) for i in range(60)]
    rows[7] = rows[7].replace("q7", r"\user@example.com")
    file = tmp_path / "rows.json"
    file.write_text("[" + ",\n".join(rows) + "]")
    found = open_rows(str(file), cache_dir=tmp_path / "c")
    assert len(found) == 60
    assert isinstance(found[7], Broken)
    assert found[8]["chosen"] == "a\\b"
