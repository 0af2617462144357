# SPDX-License-Identifier: Apache-2.0
"""Model argument → the folder or file it means, and what that says before any weights are read."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from alignax.errors import ModelError
from alignax.models.config import DecoderConfig
from alignax.models.demo import DEMOS
from alignax.models.families import FAMILIES, Family
from alignax.models.folder import open_tensors, read_config, read_generation_config
from alignax.models.gguf import GGUFFile, is_gguf, read_gguf

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_FILES = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model")
_ACCEPTED = (
    "a model is named by a Hugging Face folder (config.json, *.safetensors), a .gguf file, "
    "'demo', 'demo-gemma', or a hub id when online"
)
_NEW_FAMILY = (
    "a family is one file in alignax/models/families and a line in its registry; "
    "CONTRIBUTING.md has the recipe"
)


@runtime_checkable
class Stored(Protocol):
    """A tensor in a file."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Axes as stored."""
        ...

    @property
    def kind(self) -> str:
        """Storage type."""
        ...

    def load(self) -> tuple[np.ndarray, np.ndarray]:
        """Read (values, stored bytes)."""
        ...


@dataclass(frozen=True)
class Source:
    """What a folder or a GGUF file says.

    Attributes:
        family: Its family.
        config: Shape of the decoder.
        hf_config: A complete ``config.json``.
        generation_config: A ``generation_config.json``, or empty.
        kind: ``"hf"`` or ``"gguf"``.
        tensors: Name in the file → tensor.
    """

    family: Family
    config: DecoderConfig
    hf_config: dict[str, Any]
    generation_config: dict[str, Any]
    kind: Literal["hf", "gguf"]
    tensors: Mapping[str, Stored]


def resolve_model(path: str | Path) -> Path:
    """Find the folder or file that a model argument means.

    Args:
        path: A folder, a GGUF file, ``'demo'`` or ``'demo-gemma'`` (SmolLM2-135M-Instruct and
            Gemma 3 270M of the extra ``demo``), or a hub id, which is fetched unless it is in the
            local hub cache.

    Raises:
        ModelError: Nothing there, or the hub cannot be reached.
        MissingExtra: The demo model is not installed.
    """
    text = str(path)
    if text in DEMOS:
        return DEMOS[text]()
    if text and Path(text).exists():
        return Path(text)
    if not text or not _HUB_ID.fullmatch(text) or text.startswith("."):
        raise ModelError(f"no model at {text!r}: no such file or folder", hint=_ACCEPTED)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(text, allow_patterns=list(_HUB_FILES)))
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ModelError(
            f"no model at {text!r}: no such file or folder, and as a hub id it cannot be fetched "
            f"(offline, or not on the hub): {reason}",
            hint=_ACCEPTED,
        ) from error


def stop_ids_of(path: str | Path) -> tuple[int, ...]:
    """Ids that end an answer, without reading weights."""
    path = resolve_model(path)
    if is_gguf(path):
        return stop_ids_in(_gguf_special_ids(read_gguf(path)), {})
    return stop_ids_in(read_generation_config(path), read_config(path))


def read_source(path: Path) -> Source:
    """Read the configuration and the tensor headers of a folder or a GGUF file.

    Raises:
        ModelError: It is neither, is damaged, or is of an unsupported family.
    """
    return _read_gguf(path) if is_gguf(path) else _read_folder(path)


def read_config_of(path: Path) -> DecoderConfig:
    """Read the shape of a model from ``config.json`` or a GGUF header alone.

    Raises:
        ModelError: It is neither, is damaged, or is of an unsupported family.
    """
    return _read_gguf(path).config if is_gguf(path) else _folder_config(path)[1]


def _read_folder(folder: Path) -> Source:
    """Read configuration and tensor headers of a Hugging Face folder."""
    family, config, raw = _folder_config(folder)
    tensors = {family.our_name(name): tensor for name, tensor in open_tensors(folder).items()}
    return Source(family, config, raw, read_generation_config(folder), "hf", tensors)


def _folder_config(folder: Path) -> tuple[Family, DecoderConfig, dict[str, Any]]:
    """Read a folder's configuration: its family, the decoder's shape, and the file's content."""
    if not folder.is_dir():
        raise ModelError(f"{folder} is neither a folder nor a GGUF file", hint=_ACCEPTED)
    raw = read_config(folder)
    kind, classes = raw.get("model_type"), [str(c) for c in raw.get("architectures") or ()]
    family = next((f for f in FAMILIES.values() if kind in f.model_types), None)
    scores = family is not None and classes == [family.scoring_architecture]
    if family is None or not (scores or set(classes) <= set(family.architectures)):
        names = [(*f.architectures, f.scoring_architecture) for f in FAMILIES.values()]
        known = ", ".join(name for several in names for name in several)
        raise ModelError(
            f"{folder / 'config.json'} names model_type {kind!r}, architectures {classes}; "
            f"supported are: {known}",
            hint=_NEW_FAMILY,
        )
    raw = family.text_part(raw)
    problems: list[str] = []
    config = family.from_hf(raw, problems)
    labels = len(raw.get("id2label") or ()) or raw.get("num_labels", 2)
    if scores and labels != 1:
        problems.append(f"{labels} labels (id2label): a reward model has one")
    if config is None or problems:
        raise ModelError(f"{folder / 'config.json'} cannot be used", problems=problems)
    return family, replace(config, scores=scores), raw


def _read_gguf(path: Path) -> Source:
    """Read metadata and tensor headers of a GGUF file."""
    file = read_gguf(path)
    families = {f.gguf_architecture: f for f in FAMILIES.values() if f.gguf_architecture}
    family = families.get(file.architecture)
    if family is None:
        raise ModelError(
            f"GGUF file {path} is of architecture {file.architecture!r}; "
            f"supported are: {', '.join(families)}",
            hint=_NEW_FAMILY,
        )
    problems: list[str] = []
    config = family.from_gguf(file, problems)
    if config is None:
        raise ModelError(f"the metadata of GGUF file {path} cannot be used", problems=problems)
    special = _gguf_special_ids(file)
    return Source(family, config, family.to_hf(config) | special, special, "gguf", file.tensors)


def _gguf_special_ids(file: GGUFFile) -> dict[str, Any]:
    """Special token ids under the names of ``config.json``; several stop ids make a list."""
    keys = ("bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id", "padding_token_id")
    bos, eos, eot, eom, pad = (file.metadata.get(f"tokenizer.ggml.{key}") for key in keys)
    stops = [stop for stop in dict.fromkeys((eos, eot, eom)) if stop is not None]
    ids = {"bos_token_id": bos, "pad_token_id": pad}
    ids["eos_token_id"] = stops[0] if len(stops) == 1 else stops or None
    return {key: value for key, value in ids.items() if value is not None}


def stop_ids_in(*configs: Mapping[str, Any]) -> tuple[int, ...]:
    """Collect ``eos_token_id`` (a number or a list) of several configurations."""
    found: list[int] = []
    for config in configs:
        value = config.get("eos_token_id")
        found += value if isinstance(value, list) else [] if value is None else [value]
    return tuple(dict.fromkeys(found))
