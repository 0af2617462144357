# SPDX-License-Identifier: Apache-2.0
"""What strangers hand us is read, or refused by an error of our own; nothing else comes out.

``make fuzz`` runs thousands of inputs for each reader, the test suite a few dozen.
"""

import json
import struct
from contextlib import suppress
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from alignax.data import chat
from alignax.data.chat import ChatTemplate
from alignax.data.formats import FORMATS, detect, parse_row
from alignax.data.formats.turns import RowProblem
from alignax.data.readers import Broken, read_files
from alignax.errors import AlignaxError
from alignax.models.families import FAMILIES
from alignax.models.folder import INDEX, SINGLE, open_tensors, read_json
from alignax.models.gguf import read_gguf
from alignax.models.source import read_config_of
from tests.cli.tiny_model import CONFIG, byte_tokenizer, pairs

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["prompt", "chosen", "rejected", "role", "content", "score", "x"])
            | st.text(max_size=4),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
ROW_KEYS = (
    "prompt", "chosen", "rejected", "messages", "conversations", "instruction", "input", "output",
    "response", "completions", "question", "response_j", "response_k", "system", "label", "tools",
    "chosen_score", "rejected_score", "images", "answers", "text",
)  # fmt: skip
LINES = "\n".join(json.dumps(row) for row in pairs(3)).encode()


@st.composite
def damaged(draw, content):
    """Bytes that were cut, overwritten, doubled or filled at a few places."""
    found = bytearray(content)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, max(len(found) - 1, 0)))
        kind = draw(st.sampled_from(["set", "cut", "insert", "number", "double"]))
        if kind == "set":
            found[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
        elif kind == "cut":
            del found[at : at + draw(st.integers(1, 64))]
        elif kind == "insert":
            found[at:at] = draw(st.binary(max_size=16))
        elif kind == "number":
            found[at : at + 8] = struct.pack(
                "<Q", draw(st.sampled_from([0, 1, 2**31, 2**63, 2**64 - 1]))
            )
        else:
            found[at:at] = found[at : at + draw(st.integers(1, 64))]
    return bytes(found)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


@given(
    content=damaged(LINES) | damaged(b"prompt,chosen,rejected\nq,yes,no\n") | st.binary(),
    suffix=st.sampled_from([".jsonl", ".json", ".csv", ".json.gz", ".parquet"]),
)
def test_row_files(folder, content, suffix):
    file = folder / f"rows{suffix}"
    file.write_bytes(content)
    try:
        for _, line, _row in read_files([file]):
            assert line > 0
    except AlignaxError as error:
        assert str(file) in str(error)


@given(row=st.dictionaries(st.sampled_from(ROW_KEYS), JSON, max_size=5) | JSON)
def test_rows(row):
    for kind in ("pair", "sft"):
        with suppress(AlignaxError):
            detect("auto", [row], kind=kind, source="rows.jsonl")
    for name, form in FORMATS.items():
        with suppress(AlignaxError):
            parse_row(name, row, kind=form.kind, row_id="0", place="rows.jsonl:1")
    assert not isinstance(row, Broken)


@cache
def weights():
    """A small safetensors file."""
    return save({"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(4, np.float16)})


@given(content=damaged(weights()) | st.binary())
def test_safetensors(folder, content):
    where = folder / "safetensors"
    where.mkdir(exist_ok=True)
    (where / SINGLE).unlink(missing_ok=True)
    (where / SINGLE).write_bytes(content)
    try:
        for tensor in open_tensors(where).values():
            tensor.load()
    except AlignaxError as error:
        assert str(where) in str(error)


@given(
    index=JSON
    | st.dictionaries(
        st.text(max_size=4),
        st.sampled_from(["../x.safetensors", "/etc/passwd", "a/../../x", "..\\x", "\0", "", "."])
        | st.text(max_size=8),
        max_size=4,
    ).map(lambda names: {"weight_map": names})
)
def test_shard_indices(folder, index):
    where = folder / "shards"
    where.mkdir(exist_ok=True)
    (where / INDEX).write_text(json.dumps(index))
    try:
        assert open_tensors(where) == {}
    except AlignaxError as error:
        assert str(where) in str(error)


@pytest.mark.parametrize(
    "shard", ["../outside.safetensors", "{absolute}", "a/../../outside.safetensors"]
)
def test_an_index_cannot_point_out_of_its_folder(tmp_path, shard):
    outside = tmp_path / "outside.safetensors"
    outside.write_bytes(weights())
    model = tmp_path / "model"
    (model / "a").mkdir(parents=True)
    name = shard.format(absolute=outside)
    (model / INDEX).write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(AlignaxError, match="are incomplete") as caught:
        open_tensors(model)
    assert "outside the folder; it was not opened" in str(caught.value)


def gguf_file():
    """A small GGUF file: numbers, texts and lists of metadata, and two tensors."""

    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    def entry(key, kind, value):
        return text(key) + struct.pack("<I", kind) + value

    metadata = [
        entry("general.architecture", 8, text("llama")),
        entry("general.alignment", 4, struct.pack("<I", 32)),
        entry("llama.block_count", 4, struct.pack("<I", 2)),
        entry("list", 9, struct.pack("<IQ", 8, 2) + text("a") + text("b")),
        entry("numbers", 9, struct.pack("<IQ3f", 6, 3, 1.0, 2.0, 3.0)),
        entry("lists", 9, struct.pack("<IQIQI", 9, 1, 4, 1, 7)),
    ]
    tensors = [
        text("x") + struct.pack("<IQQIQ", 2, 4, 2, 0, 0),
        text("y") + struct.pack("<IQIQ", 1, 32, 8, 32),
    ]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    body = head + b"".join(metadata) + b"".join(tensors)
    return body + bytes(-len(body) % 32) + bytes(96)


@given(content=damaged(gguf_file()) | st.binary(min_size=1).map(lambda tail: b"GGUF" + tail))
def test_gguf(folder, content):
    file = folder / "model.gguf"
    file.unlink(missing_ok=True)
    file.write_bytes(content)
    try:
        for tensor in read_gguf(file).tensors.values():
            if tensor.raw.size < 1 << 16:
                tensor.load()
        read_config_of(file)
    except AlignaxError as error:
        assert str(file) in str(error) or "dequantise" in str(error)


def test_the_small_gguf_file_is_read(folder):
    (folder / "whole.gguf").write_bytes(gguf_file())
    file = read_gguf(folder / "whole.gguf")
    assert file.metadata["lists"] == [[7]]
    assert [tensor.load()[0].shape for tensor in file.tensors.values()] == [(2, 4), (32,)]


@pytest.mark.parametrize("deep", [9, 5000])
def test_lists_in_lists_end(folder, deep):
    nested = struct.pack("<Q", 1) + b"k" + struct.pack("<I", 9)
    nested += struct.pack("<IQ", 9, 1) * deep + struct.pack("<IQ", 4, 0)
    (folder / "deep.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + nested)
    with pytest.raises(AlignaxError, match="lists lie 8 deep"):
        read_gguf(folder / "deep.gguf")


@given(
    family=st.sampled_from(sorted(set(FAMILIES) - {"mixtral", "qwen3_moe"})),  # CONFIG is dense
    changes=st.dictionaries(st.integers(0, 60), JSON, max_size=3),
    dropped=st.sets(st.integers(0, 60), max_size=3),
)
def test_configurations(folder, family, changes, dropped):
    where = folder / "config"
    where.mkdir(exist_ok=True)
    content = FAMILIES[family].to_hf(CONFIG)
    content["model_type"] = FAMILIES[family].model_types[0]
    names = sorted(content)
    for place, value in changes.items():
        content[names[place % len(names)]] = value
    for place in dropped:
        content.pop(names[place % len(names)], None)
    (where / "config.json").write_text(json.dumps(content))
    try:
        read_config_of(where)
    except AlignaxError as error:
        assert str(where) in str(error)


def test_json_that_is_nested_too_deeply(tmp_path):
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(AlignaxError, match="is not JSON"):
        read_json(tmp_path / "config.json")


PIECES = st.sampled_from(
    [
        "{% for m in messages %}", "{% endfor %}", "{{ m.content }}", "{{ m['role'] }}",
        "{% if add_generation_prompt %}", "{% endif %}", "{% else %}", "{{ raise_exception('') }}",
        "{{ m.__class__.__mro__ }}", "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ 1 // 0 }}", "{{ messages[99].content }}", "{{ undefined.x.y }}", "{% set x = [1] %}",
        "{{ x.append(2) }}", "{% for i in range(10**9) %}", "{% for i in range(99999) %}",
        "{% macro f() %}", "{{ f() }}", "{% endmacro %}", "{{ cycler('a') }}", "{{ m | tojson }}",
        "{{ config }}", "{% include 'x' %}", "{% import 'os' as os %}", "{{ lipsum() }}",
        "{{ strftime_now('%Y') }}", "{{ 'a' * 4000000 }}", "{{ namespace(a=1).a }}", "<|im_start|>",
    ]
) | st.text(max_size=6)  # fmt: skip


LONG = "{% for i in range(99999) %}"


@cache
def templated():
    """A template to be changed, on one tokenizer."""
    return ChatTemplate(byte_tokenizer())


@given(pieces=st.lists(PIECES, max_size=8))
def test_templates(pieces):
    template = templated()
    template.tokenizer.chat_template = "".join(pieces) or "x"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chat, "RENDER_SECONDS", 0.3)
        try:
            text = template.render([chat.QUESTION, chat.ANSWER], generation=True)
        except (AlignaxError, RowProblem):
            return
    assert isinstance(text, str)
    assert "<class '" not in text


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        (LONG + LONG + "{% endfor %}{% endfor %}", "longer than"),
        ("{{ 'a' * 4000000 }}", "it makes 4000000 characters"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ ''.__class__.__base__.__subclasses__() }}", "unsafe|undefined"),
    ],
)  # fmt: skip
def test_templates_that_mean_ill(text, detail, monkeypatch):
    monkeypatch.setattr(chat, "RENDER_SECONDS", 0.3)
    template = ChatTemplate(byte_tokenizer(text))
    with pytest.raises(RowProblem) as caught:
        template.render([chat.QUESTION])
    assert any(part in caught.value.detail for part in detail.split("|"))
