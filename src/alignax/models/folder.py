# SPDX-License-Identifier: Apache-2.0
"""Hugging Face folder → its JSON files and its safetensors tensors, one file or many shards.

Only headers are read until a tensor is asked for. All that can be wrong with the files themselves
is found here; whether the tensors fit the configuration is for ``models.weights``.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from alignax.errors import ModelError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
FLOATS = ("F32", "BF16", "F16", "F64")
"""Storage types that hold plain weights."""


@dataclass(frozen=True)
class FolderTensor:
    """One tensor of a safetensors file.

    Attributes:
        name: Name in the file.
        shape: Axes as stored, (out, in) for projections.
        kind: Storage type, for example ``BF16``.
        file: The open file.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    file: Any

    def load(self) -> tuple[np.ndarray, np.ndarray]:
        """Read (values in the stored dtype, stored bytes)."""
        values = self.file.get_tensor(self.name)
        return values, values.reshape(-1).view(np.uint8)


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ModelError: The file is no JSON object.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"cannot read {file}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{file} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{file} must hold a JSON object, got {type(content).__name__}")
    return content


def read_config(folder: Path) -> dict[str, Any]:
    """Read ``config.json``; say what else the folder may be when there is none."""
    file = folder / "config.json"
    if file.exists():
        return read_json(file)
    hint = "name a folder with config.json and *.safetensors, or a .gguf file"
    gguf_files = sorted(folder.glob("*.gguf"))
    if gguf_files:
        hint = f"name the GGUF file itself: {gguf_files[0]}"
    elif (folder / "adapter_config.json").exists():
        hint = "this is an adapter: name its base as model.path and this folder as model.adapter"
    raise ModelError(f"model folder {folder} has no config.json", hint=hint)


def read_generation_config(folder: Path) -> dict[str, Any]:
    """Read ``generation_config.json``; empty when there is none."""
    file = folder / "generation_config.json"
    return read_json(file) if file.exists() else {}


def open_tensors(folder: Path) -> dict[str, FolderTensor]:
    """Open the weights of a folder: ``model.safetensors``, or the shards that the index lists.

    Raises:
        ModelError: No weights, a bad index, missing or damaged shards.
    """
    if (folder / SINGLE).exists():
        return _open_file(folder / SINGLE)
    if not (folder / INDEX).exists():
        found = sorted(file.name for file in folder.iterdir() if file.is_file())
        pickled = any(name.endswith((".bin", ".pt", ".pth")) for name in found)
        raise ModelError(
            f"model folder {folder} has neither {SINGLE} nor {INDEX}; it has "
            f"{', '.join(found) or 'no files'}",
            hint="convert pickled weights to safetensors (save_pretrained of transformers does)"
            if pickled
            else None,
        )
    return _open_shards(folder)


def _open_shards(folder: Path) -> dict[str, FolderTensor]:
    """Open every shard of the index; problems with them are raised at once."""
    index = read_json(folder / INDEX)
    names = index.get("weight_map")
    if not isinstance(names, Mapping) or not all(isinstance(v, str) for v in names.values()):
        raise ModelError(
            f"{folder / INDEX} has no usable 'weight_map' (tensor name → file)",
            hint="fetch the index file again",
        )
    problems: list[str] = []
    tensors: dict[str, FolderTensor] = {}
    for shard in sorted(set(names.values())):
        if not _lies_within(shard):
            # An index is a stranger's text: it must not make us open files of its choice.
            problems.append(f"shard {shard!r} would lie outside the folder; it was not opened")
            continue
        if not (folder / shard).is_file():
            count = sum(value == shard for value in names.values())
            problems.append(f"shard {shard} ({count} tensors) is missing")
            continue
        try:
            tensors |= _open_file(folder / shard)
        except ModelError as error:
            problems.append(error.message)
    if problems:
        raise ModelError(
            f"the weights in {folder} are incomplete", hint="fetch these files again",
            problems=problems,
        )  # fmt: skip
    return tensors


def _lies_within(name: str) -> bool:
    """Tell whether a relative path stays below its folder, by its text alone.

    Links inside a folder are fine: the hub's own cache consists of them.
    """
    path = PurePosixPath(name.replace("\\", "/"))
    return bool(name) and "\0" not in name and not path.is_absolute() and ".." not in path.parts


def _open_file(path: Path) -> dict[str, FolderTensor]:
    """Open one safetensors file."""
    try:
        file = safe_open(path, framework="numpy")
        views = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"{path} ({path.stat().st_size} bytes) is damaged or cut short: {error}",
            hint="fetch the file again and compare its size with the source's",
        ) from error
    return {
        name: FolderTensor(name, tuple(view.get_shape()), view.get_dtype(), file)
        for name, view in views.items()
    }
