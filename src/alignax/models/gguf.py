# SPDX-License-Identifier: Apache-2.0
"""GGUF file → metadata and tensors in PyTorch's axis order, dequantised to float32 on request.

The header is read here, with every length checked against the file, so that a damaged file is
told apart from an unknown one; block formats are decoded by the ``gguf`` package. Tensor bytes
stay memory-mapped until they are asked for.
"""

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

from alignax.errors import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""GGUF value type → struct code; 8 is a string and 9 an array."""
_STRING, _ARRAY = 8, 9
_LONGEST_NAME = 65_535
_MOST_AXES = 4
_DEEPEST = 8
"""Lists in lists of metadata; real files have none."""


@dataclass(frozen=True)
class GGUFTensor:
    """One tensor of a GGUF file.

    Attributes:
        name: Name in the file, for example ``blk.0.attn_q.weight``.
        shape: Axes in PyTorch's order (out, in); the file has them reversed.
        kind: Name of the storage type, for example ``Q4_1``.
        raw: The stored bytes, memory-mapped.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    raw: np.ndarray

    def load(self) -> tuple[np.ndarray, np.ndarray]:
        """Read (values, stored bytes)."""
        return self.dequantised(), self.raw

    def dequantised(self) -> np.ndarray:
        """Decode to float32; quantised blocks through the ``gguf`` package."""
        rows = self.raw.reshape(*self.shape[:-1], -1)
        try:
            values = dequantize(rows, GGMLQuantizationType[self.kind])
        except NotImplementedError as error:
            raise ModelError(
                f"tensor {self.name} is stored as {self.kind}, which cannot be dequantised",
                hint="convert the file to another type, for example Q8_0 or F16",
            ) from error
        return values.reshape(self.shape)


@dataclass(frozen=True)
class GGUFFile:
    """Metadata and tensors of one file.

    Attributes:
        path: Where it lies.
        metadata: Key → number, text, flag or list.
        tensors: Name → tensor.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GGUFTensor]

    @property
    def architecture(self) -> str:
        """What the file says it is, for example ``llama``."""
        return str(self.metadata.get("general.architecture", ""))

    def require(self, key: str) -> Any:
        """Look up a metadata key that must be there.

        Raises:
            ModelError: It is not.
        """
        if key not in self.metadata:
            raise ModelError(f"GGUF file {self.path} has no metadata key {key!r}")
        return self.metadata[key]


def is_gguf(path: str | Path) -> bool:
    """Tell whether a path is a file that ends in ``.gguf`` or starts like one."""
    path = Path(path)
    if not path.is_file():
        return False
    if path.suffix == ".gguf":
        return True
    with path.open("rb") as file:
        return file.read(4) == MAGIC


def read_gguf(path: str | Path) -> GGUFFile:
    """Read the header of a GGUF file and map its tensors.

    Raises:
        ModelError: The file cannot be read, is damaged, or is one part of several.
    """
    path = Path(path)
    try:
        data = np.memmap(path, np.uint8, mode="r")
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read GGUF file {path}: {error}") from error
    try:
        metadata, tensors = _parse(data)
    except (_Damaged, UnicodeDecodeError) as error:
        raise ModelError(
            f"GGUF file {path} ({len(data)} bytes) is damaged or cut short: {error}",
            hint="fetch the file again and compare its size with the source's",
        ) from error
    parts = metadata.get("split.count", 1)
    if isinstance(parts, int) and parts > 1:
        raise ModelError(
            f"GGUF file {path} is one of {parts} parts",
            hint="join the parts first (llama-gguf-split --merge)",
        )
    return GGUFFile(path, metadata, tensors)


def unpermute_rotary(weight: np.ndarray, head_count: int) -> np.ndarray:
    """Undo the row order that ``llama`` files store query and key projections in.

    Such files keep the two halves of each rotary pair next to each other; the model rotates the
    first half of a head against the second. Works on weights (out, in) and biases (out,).
    """
    rows = weight.shape[0]
    paired = weight.reshape(head_count, rows // head_count // 2, 2, *weight.shape[1:])
    return paired.swapaxes(1, 2).reshape(weight.shape)


class _Damaged(Exception):
    """The header does not add up."""


class _Cursor:
    """Reads little-endian values one after another; refuses to read past the end."""

    def __init__(self, data: np.ndarray):
        self.view = data.data
        self.at = 0
        self.depth = 0

    def take(self, count: int) -> memoryview:
        if count > len(self.view) - self.at:
            raise _Damaged(f"{count} bytes expected at byte {self.at}")
        self.at += count
        return self.view[self.at - count : self.at]

    def number(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))[0]

    def text(self) -> str:
        return str(self.take(self.number("Q")), "utf-8")

    def reader(self, kind: int) -> Callable[[], Any]:
        if kind in _SCALARS:
            return partial(self.number, _SCALARS[kind])
        if kind == _STRING:
            return self.text
        if kind == _ARRAY:
            return self.array
        raise _Damaged(f"unknown value type {kind} at byte {self.at}")

    def array(self) -> list[Any]:
        kind, count = self.number("I"), self.number("Q")
        if self.depth == _DEEPEST:
            raise _Damaged(f"lists lie {_DEEPEST} deep at byte {self.at}")
        if count > len(self.view) - self.at:
            raise _Damaged(f"a list of {count} values is said to begin at byte {self.at}")
        if kind in _SCALARS:
            code = np.dtype(_SCALARS[kind]).newbyteorder("<")
            return np.frombuffer(self.take(count * code.itemsize), code).tolist()
        read = self.reader(kind)
        self.depth += 1
        values = [read() for _ in range(count)]
        self.depth -= 1
        return values


def _parse(data: np.ndarray) -> tuple[dict[str, Any], dict[str, GGUFTensor]]:
    """Read metadata, tensor table and data section."""
    cursor = _Cursor(data)
    magic = bytes(cursor.take(4))
    if magic != MAGIC:
        raise _Damaged(f"it starts with {magic!r} instead of {MAGIC!r}")
    version = cursor.number("I")
    if version not in VERSIONS:
        raise _Damaged(f"version {version} is not one of {VERSIONS}")
    tensor_count, key_count = cursor.number("Q"), cursor.number("Q")
    metadata: dict[str, Any] = {}
    for _ in range(key_count):
        key = cursor.text()
        metadata[key] = cursor.reader(cursor.number("I"))()
    entries = [_tensor_entry(cursor) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise _Damaged(f"general.alignment is {alignment!r}")
    start = math.ceil(cursor.at / alignment) * alignment
    tensors: dict[str, GGUFTensor] = {}
    for name, shape, kind, offset, size in entries:
        raw = data[start + offset : start + offset + size]
        if len(raw) < size:
            raise _Damaged(f"tensor {name} ends at byte {start + offset + size}")
        tensors[name] = GGUFTensor(name, shape, kind, raw)
    return metadata, tensors


def _tensor_entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], str, int, int]:
    """Read one row of the tensor table: name, shape, storage type, offset and size in bytes."""
    name = cursor.text()
    axes = cursor.number("I")
    if not 1 <= axes <= _MOST_AXES or len(name) > _LONGEST_NAME:
        raise _Damaged(f"tensor {name[:40]!r} has {axes} axes")
    shape = tuple(cursor.number("Q") for _ in range(axes))[::-1]
    number, offset = cursor.number("I"), cursor.number("Q")
    try:
        kind = GGMLQuantizationType(number)
    except ValueError as error:
        raise _Damaged(f"tensor {name} has the unknown storage type {number}") from error
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if shape[-1] % block or 0 in shape:
        raise _Damaged(f"tensor {name} {shape} is no whole number of {kind.name} blocks")
    return name, shape, kind.name, offset, math.prod(shape) // block * block_bytes
