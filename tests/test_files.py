# SPDX-License-Identifier: Apache-2.0
"""Files are written whole or not at all, and what is damaged is named."""

import pytest

from alignax.errors import RunError
from alignax.files import read_json, read_lines, write_json, write_lines, write_text


def test_what_is_written_is_read_back(tmp_path):
    value = {"text": "a\u2028b\x85c\r\n\u00e9\ud800", "n": [1, 2.5, None]}
    write_json(tmp_path / "one.json", value)
    assert read_json(tmp_path / "one.json") == value
    write_lines(tmp_path / "new" / "many.jsonl", [value, {"n": 2}])
    assert read_lines(tmp_path / "new" / "many.jsonl") == [value, {"n": 2}]
    assert read_lines(tmp_path / "absent.jsonl") == []


def test_a_refused_write_leaves_the_old_file_and_nothing_else(tmp_path):
    file = tmp_path / "one.txt"
    write_text(file, "old")
    with pytest.raises(RunError, match=r"cannot write .*gone/one\.txt: No such file"):
        write_text(tmp_path / "gone" / "one.txt", "new")
    (tmp_path / ".one.txt.tmp").mkdir()
    with pytest.raises(RunError, match=r"cannot write .*one\.txt: Is a directory"):
        write_text(file, "new")
    assert file.read_text() == "old"


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "it is not JSON"), ("[1]", "must hold a JSON object, got list"), (None, "cannot read")],
)
def test_damaged_json_is_named(tmp_path, content, message):
    file = tmp_path / "one.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(RunError, match=message) as caught:
        read_json(file)
    assert str(file) in str(caught.value)


def test_only_a_last_line_may_be_cut(tmp_path):
    file = tmp_path / "lines.jsonl"
    file.write_text('{"a": 1}\n\n{"a": 2}\n{"a": \n')
    assert read_lines(file) == [{"a": 1}, {"a": 2}]
    file.write_text('{"a": 1}\n{"a": \n{"a": 3}\n')
    with pytest.raises(RunError, match=r"lines\.jsonl:2 is not JSON"):
        read_lines(file)
