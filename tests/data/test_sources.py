# SPDX-License-Identifier: Apache-2.0
"""Rows come out of every kind of file exactly as they went in, with their line numbers."""

import csv
import gzip
import json

import pyarrow
import pytest
from pyarrow import parquet

from alignax.data.readers import Broken
from alignax.data.sources import open_rows
from alignax.errors import DataError

ROWS = [
    {"prompt": "Grüße\u2028 😀", "chosen": "a\nb", "rejected": None, "n": 1},
    {"prompt": "", "chosen": ["mixed", {"types": 1.5}], "extra": {"only": "here"}},
    {"prompt": "NaN", "chosen": "\ud800", "rejected": True},
]
LINES = "\n".join(map(json.dumps, ROWS))


def read(tmp_path, name, content):
    path = tmp_path / name
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return open_rows(str(path), cache_dir=tmp_path / "cache")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", LINES),
        ("a.jsonl.gz", LINES),
        ("a.json", LINES),
        ("a.ndjson", LINES + "\n"),
        ("a.JSONL", LINES),
        ("a.jsonl", "\n".join([json.dumps(ROWS[0], ensure_ascii=False), *LINES.split("\n")[1:]])),
        ("a.jsonl", "\ufeff" + LINES),
        ("a.jsonl", LINES.replace("\n", "\r\n")),
        ("a.json", json.dumps(ROWS)),
        ("a.json.gz", "\n " + json.dumps(ROWS, indent=2)),
        ("a.json", json.dumps({"version": 1, "data": ROWS})),
        ("a.json", json.dumps({"version": 1, "data": ROWS}, indent=1)),
    ],
)
def test_json_in_its_many_forms(tmp_path, name, content):
    rows = read(tmp_path, name, content)
    assert [rows[i] for i in range(len(rows))] == ROWS
    assert rows.batch(range(1, 3)) == ROWS[1:]
    assert rows.place(2).endswith(f"{name}:3")


def test_one_object_is_one_row(tmp_path):
    row = {"messages": [{"role": "user", "content": "x"}]}
    for content in (json.dumps(row), json.dumps(row, indent=2)):
        rows = read(tmp_path, "a.json", content)
        assert (len(rows), rows[0]) == (1, row)


def test_blank_lines_count_in_places(tmp_path):
    rows = read(tmp_path, "a.jsonl", '\n{"a": 1}\n\n{"a": 2}\n\n')
    assert [rows.place(i).rsplit(":", 1)[1] for i in range(2)] == ["2", "4"]


def test_lines_that_are_not_json(tmp_path):
    few = [json.dumps({"n": n}) for n in range(100)]
    with pytest.raises(DataError, match=r"not JSON at line 4 \(3 of 103 lines\)"):
        read(tmp_path, "many.jsonl", "\n".join([*few[:3], "{oops", "}", "x", *few[3:]]))
    rows = read(tmp_path, "few.jsonl", "\n".join([*few[:3], "{oops", *few[3:]]))
    assert isinstance(rows[3], Broken)
    assert "line 4" in rows[3].error
    assert rows[4] == {"n": 3}
    with pytest.raises(DataError, match="not JSON at line 2"):
        read(tmp_path, "list.json", '[{"a": 1},\n{"a": }]')


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"a": "\xff"}', "not UTF-8"),
        ("a.jsonl", "", "no rows"),
        ("a.json", "[]", "no rows"),
        ("a.txt", "x", "cannot tell the kind"),
        ("a.parquet", "PAR1 nothing of the kind", "as Parquet"),
        ("a.csv", "prompt,chosen\nq\n", "number of cells"),
        ("a.csv", "prompt,chosen\nq,a,b\n", "number of cells"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, name, content, message):
    with pytest.raises(DataError, match=message) as caught:
        read(tmp_path, name, content)
    assert name in str(caught.value)


def test_a_torn_archive_is_named(tmp_path):
    whole = gzip.compress(LINES.encode() * 50)
    for name, data in (("cut.jsonl.gz", whole[:-40]), ("head.jsonl.gz", whole[:9])):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError, match=f"cannot read .*{name}"):
            open_rows(str(tmp_path / name), cache_dir=tmp_path / "cache")


def test_csv_cells_are_text_and_turns(tmp_path):
    turns = [{"role": "user", "content": "it's"}]
    table = [
        {"prompt": "NA", "chosen": "None", "rejected": "007", "score": "1.50"},
        {"prompt": json.dumps(turns), "chosen": repr(turns), "rejected": '[{"a": 1}]', "score": ""},
        {"prompt": "two\nlines, a comma", "chosen": '"quoted"', "rejected": "{from}", "score": ""},
    ]  # fmt: skip
    path = tmp_path / "a.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, table[0])
        writer.writeheader()
        writer.writerows(table)
    rows = open_rows(str(path), cache_dir=tmp_path / "cache")
    table[1] |= {"prompt": turns, "chosen": turns}
    assert [rows[i] for i in range(3)] == table
    assert rows.place(2).endswith(":5")


def test_parquet_keeps_nested_columns(tmp_path):
    from datasets import Dataset

    table = [{"chosen": [{"role": "user", "content": "x"}], "score": 0.5, "b": b"bytes"},
             {"chosen": [], "score": None, "b": None}]  # fmt: skip
    path = tmp_path / "a [1].parquet"
    Dataset.from_list(table).to_parquet(str(path))
    rows = open_rows(str(path), cache_dir=tmp_path / "cache")
    assert [rows[i] for i in range(2)] == [{**table[0], "b": "bytes"}, table[1]]


def test_globs_folders_and_several_files(tmp_path):
    for name in ("b.jsonl", "a.jsonl", "train-0.jsonl", "train-1.jsonl", "test.jsonl"):
        (tmp_path / name).write_text(json.dumps({"from": name}))
    (tmp_path / "README.md").write_text("words")
    (tmp_path / "dataset_info.json").write_text("{}")
    cache = tmp_path.parent / f"{tmp_path.name}-cache"

    def names(paths, **settings):
        rows = open_rows(paths, cache_dir=cache, **settings)
        assert [rows.place(i) for i in range(len(rows))] == [f"{file}:1" for file in rows.files]
        return [rows[i]["from"] for i in range(len(rows))]

    assert names(str(tmp_path / "[ab]*")) == ["a.jsonl", "b.jsonl"]
    assert names(str(tmp_path / "[bR]*")) == ["b.jsonl"]
    assert names([str(tmp_path / "b.jsonl"), str(tmp_path / "a.jsonl")]) == ["b.jsonl", "a.jsonl"]
    assert names(str(tmp_path)) == ["train-0.jsonl", "train-1.jsonl"]
    assert names(str(tmp_path), split="test") == ["test.jsonl"]
    assert len(names(str(tmp_path), split="validation")) == 5
    for missing in (str(tmp_path / "no*"), str(tmp_path / "no.jsonl"), str(tmp_path / "no")):
        with pytest.raises(DataError, match="does not exist|no file matches"):
            open_rows(missing, cache_dir=cache)
    with pytest.raises(DataError, match="some/name does not exist"):
        open_rows([str(tmp_path / "b.jsonl"), "some/name"], cache_dir=cache)


def test_a_hub_id_without_network_is_a_clear_error(tmp_path):
    with pytest.raises(DataError, match="nobody/nothing is neither a file nor a data set"):
        open_rows("nobody/nothing", cache_dir=tmp_path)


def test_content_decides_the_hash(tmp_path):
    first = read(tmp_path, "a.jsonl", LINES).content_hash
    assert read(tmp_path, "b.jsonl", LINES).content_hash == first
    assert read(tmp_path, "c.jsonl", LINES + " ").content_hash != first


def test_bytes_in_a_table_are_text_or_nothing(tmp_path):
    file = tmp_path / "rows.parquet"
    columns = {"prompt": ["q", "q"], "chosen": [b"\xff\xfe", "é".encode()], "rejected": ["a", "b"]}
    parquet.write_table(pyarrow.table(columns), file)
    rows = open_rows(str(file), cache_dir=tmp_path / "cache")
    assert [row["chosen"] for row in rows.batch(range(2))] == [{"bytes": 2}, "é"]


def test_a_table_without_rows(tmp_path):
    file = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.table({"prompt": pyarrow.array([], pyarrow.string())}), file)
    with pytest.raises(DataError, match="no rows in"):
        open_rows(str(file), cache_dir=tmp_path / "cache")
