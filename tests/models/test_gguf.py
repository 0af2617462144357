# SPDX-License-Identifier: Apache-2.0
"""GGUF files: blocks by hand, damaged headers, the row order of rotary heads."""

import gguf
import numpy as np
import pytest

from alignax.errors import ModelError
from alignax.models.gguf import is_gguf, read_gguf, unpermute_rotary
from tests.models.tiny_llama import interleave, write_gguf


def write(path, tensors, **texts):
    """Write a file of quantised or plain tensors: name → (values, storage type)."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in texts.items():
        writer.add_string(key, value)
    for name, (values, kind) in tensors.items():
        writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_q4_1_block_by_hand(tmp_path):
    """A block is scale, offset and 16 bytes: low nibbles first, then high ones."""
    path = write(
        tmp_path / "a.gguf", {"w": (np.zeros((2, 32), np.float32), gguf.GGMLQuantizationType.Q4_1)}
    )
    file = read_gguf(path)
    raw = np.zeros((2, 20), np.uint8)
    raw[0, :4] = np.array([0.5, -1.0], np.float16).view(np.uint8)
    raw[0, 4:] = np.arange(16) + 16 * np.arange(16)[::-1]
    content = bytearray(path.read_bytes())
    content[-64:-24] = raw.tobytes()
    path.write_bytes(content)
    values = read_gguf(path).tensors["w"].dequantised()
    expected = np.concatenate([np.arange(16), np.arange(16)[::-1]]) * 0.5 - 1.0
    assert file.tensors["w"].shape == (2, 32)
    np.testing.assert_array_equal(values[0], expected.astype(np.float32))
    np.testing.assert_array_equal(values[1], 0)


@pytest.mark.parametrize(
    ("kind", "error"), [("F32", 0), ("F16", 2e-3), ("BF16", 2e-2), ("Q8_0", 3e-2)]
)
def test_values_survive_storage(tmp_path, kind, error):
    """Rows, order of axes and values come back within the precision of the type."""
    values = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)
    other = np.arange(32, dtype=np.float32)
    kind = gguf.GGMLQuantizationType[kind]
    plain = gguf.GGMLQuantizationType.F32
    file = read_gguf(write(tmp_path / "a.gguf", {"w": (values, kind), "v": (other, plain)}))
    np.testing.assert_allclose(file.tensors["w"].dequantised(), values, rtol=0, atol=error)
    np.testing.assert_array_equal(file.tensors["v"].dequantised(), other)
    assert file.architecture == "llama"


def test_metadata_of_every_type(tmp_path):
    """Numbers, texts, flags and lists of them, and lists of lists of texts."""
    path = tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    wanted = {"u8": 200, "i8": -3, "u16": 40_000, "i16": -5, "u32": 3_000_000_000, "i32": -7}
    wanted |= {"u64": 2**60, "i64": -(2**60), "f32": 0.25, "f64": 0.1, "yes": True, "no": False}
    adders = ["uint8", "int8", "uint16", "int16", "uint32", "int32"]
    adders += ["uint64", "int64", "float32", "float64", "bool", "bool"]
    for (key, value), adder in zip(wanted.items(), adders, strict=True):
        getattr(writer, f"add_{adder}")(key, value)
    lists = {"texts": ["a", "", "ü 漢"], "numbers": [1, -2, 3], "reals": [0.5, 1.5]}
    for key, value in lists.items():
        writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    metadata = read_gguf(path).metadata
    assert {key: metadata[key] for key in wanted} == wanted
    assert {key: metadata[key] for key in lists} == lists


def test_every_cut_is_reported_as_damage(tmp_path):
    """Wherever the file ends early, the error names it and its size."""
    whole = write_gguf(tmp_path / "whole.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in [*range(1, 1400, 13), len(whole) // 2, len(whole) - 1200]:
        cut.write_bytes(whole[:size])
        with pytest.raises(ModelError, match=rf"\({size} bytes\) is damaged or cut short"):
            read_gguf(cut)
    cut.write_bytes(b"")
    with pytest.raises(ModelError, match="cannot read GGUF file"):
        read_gguf(cut)


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (0, b"GGML", "starts with b'GGML'"),
        (4, b"\x00\x00\x00\x03", "version 50331648"),
        (16, b"\xff" * 8, "expected at byte"),
        (24, b"\xff" * 8, "expected at byte"),
    ],
)
def test_damaged_header_is_reported(tmp_path, place, value, reason):
    """Wrong magic, the other byte order, and absurd counts."""
    content = bytearray(write_gguf(tmp_path / "a.gguf").read_bytes())
    content[place : place + len(value)] = value
    (tmp_path / "b.gguf").write_bytes(content)
    with pytest.raises(ModelError, match=reason):
        read_gguf(tmp_path / "b.gguf")


def test_part_of_a_split_file_is_refused(tmp_path):
    """The way out is to join the parts."""
    path = write_gguf(tmp_path / "a.gguf", metadata=[("add_uint16", "split.count", 3)])
    with pytest.raises(ModelError, match="one of 3 parts"):
        read_gguf(path)


def test_files_are_known_by_suffix_or_content(tmp_path):
    """A GGUF file may have any name; a folder is none."""
    path = write_gguf(tmp_path / "a.gguf")
    assert is_gguf(path)
    assert is_gguf(path.rename(tmp_path / "blob"))
    (tmp_path / "note.txt").write_text("GG")
    assert not is_gguf(tmp_path / "note.txt")
    assert not is_gguf(tmp_path)


@pytest.mark.parametrize("shape", [(12,), (12, 5)])
def test_rotary_rows_are_put_back(shape):
    """Head by head, for weights and biases."""
    weight = np.arange(np.prod(shape)).reshape(shape)
    assert interleave(weight, 2).reshape(-1)[0] == 0
    np.testing.assert_array_equal(unpermute_rotary(interleave(weight, 2), 2), weight)
    assert not np.array_equal(interleave(weight, 2), weight)


def test_storage_that_holds_no_weights_is_refused(tmp_path):
    """Integers are data of another kind; the tensor and its type are named."""
    extra = {"counts": np.arange(4, dtype=np.int32)}
    tensor = read_gguf(write_gguf(tmp_path / "a.gguf", tensors=extra)).tensors["counts"]
    with pytest.raises(ModelError, match="tensor counts is stored as I32"):
        tensor.dequantised()
