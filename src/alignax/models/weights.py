# SPDX-License-Identifier: Apache-2.0
"""Hugging Face folder or GGUF file → ``Decoder`` with its weights, and back to named tensors.

Loading is strict: one error lists every missing, unexpected and mis-shaped tensor before any is
read. Each decoder parameter is filled layer by layer into an array of its final size, so the peak
is little more than the model; what is to be quantised is encoded tensor by tensor. The identity of
the weights is a SHA-256 over names, types, shapes and stored bytes, and over the quantisation; how
they are spread over shards does not matter, nor the dtype asked for.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from alignax.errors import ModelError
from alignax.models.codes import BLOCK
from alignax.models.config import DecoderConfig
from alignax.models.decoder import Decoder
from alignax.models.families import FAMILIES, TensorName
from alignax.models.folder import FLOATS
from alignax.models.gguf import unpermute_rotary
from alignax.models.quantize import Quantised, describe, encode_layers, keep_codes
from alignax.models.sharding import place_model
from alignax.models.source import Source, read_source, resolve_model, stop_ids_in, stop_ids_of

__all__ = [
    "LoadedModel",
    "export_tensors",
    "hf_config",
    "load_model",
    "resolve_model",
    "stop_ids_of",
]


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
        quantised: What is kept as codes; None for nothing.
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
    quantised: Quantised | None = None


def load_model(
    path: str | Path, *, dtype: str = "float32", mesh: jax.sharding.Mesh | None = None,
    quantize: str = "none",
) -> LoadedModel:  # fmt: skip
    """Load a decoder.

    Args:
        path: As for ``resolve_model``.
        dtype: Dtype of the weights in memory.
        mesh: Where the weights are placed; None: on the default device.
        quantize: Key of ``models.codes.SCHEMES`` for the projections of the layers, or ``"none"``.
            The weights then have another identity.

    Raises:
        ModelError: The folder or file is unusable (all problems at once), or the model cannot be
            quantised.
    """
    path = resolve_model(path)
    source = read_source(path)
    names = source.family.tensor_names(source.config)
    model = nnx.eval_shape(lambda: Decoder(source.config, dtype=jnp.dtype(dtype)))
    _check_tensors(path, source, names, _parameters(model))
    coded = {} if quantize == "none" else keep_codes(model, quantize)
    parameters = _parameters(model)
    digests: dict[str, bytes] = {}
    for name in names:
        variable, parts = parameters[name.param], _read(name, source, digests)
        if name.param in coded:
            variable.set_value(encode_layers(coded[name.param], parts))
            continue
        values = _fill(name, source, variable.get_value(), parts)
        variable.set_value(values if mesh is not None else jnp.asarray(values))
    notices = place_model(model, mesh) if mesh is not None else []
    return LoadedModel(
        model=model,
        config=source.config,
        hf_config=source.hf_config,
        family=source.family.name,
        weights_hash=_combine(digests, quantize),
        path=path,
        source=source.kind,
        stop_ids=stop_ids_in(source.generation_config, source.hf_config),
        generation_config=source.generation_config,
        notices=notices,
        quantised=describe(coded.values()) if coded else None,
    )


def export_tensors(model: Decoder) -> dict[str, np.ndarray]:
    """Name the weights as Hugging Face files do, one tensor a layer; a tied head is left out.

    Adapters take no part: merge them first.
    """
    config = model.config
    parameters = _parameters(model)
    tensors: dict[str, np.ndarray] = {}
    for name in FAMILIES[config.family].tensor_names(config):
        values = np.asarray(jax.device_get(parameters[name.param].get_value()))
        files = _names(name, name.hf, config)
        for file_name, part in zip(files, _parts(values, name.hf), strict=True):
            stored = part.swapaxes(-1, -2) if name.transposed else part
            if name.rows is None:
                tensors[file_name] = np.ascontiguousarray(stored)
                continue
            first, end, total = name.rows
            shape = (total, *stored.shape[1:])
            whole = tensors.setdefault(file_name, np.empty(shape, stored.dtype))
            whole[first:end] = stored
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


def _check_tensors(
    path: Path, source: Source, names: Iterable[TensorName], parameters: Mapping[str, nnx.Param]
) -> None:
    """Compare what the files hold with what the configuration needs."""
    expected: dict[str, tuple[int, ...]] = {}
    for name in names:
        shape = parameters[name.param].get_value().shape
        pattern = _pattern(name, source)
        shape = shape[("{l}" in pattern) + ("{e}" in pattern) :]
        if name.transposed:
            shape = (*shape[:-2], shape[-1], shape[-2])
        if name.rows is not None:
            shape = (name.rows[2], *shape[1:])
        expected |= dict.fromkeys(_names(name, pattern, source.config), shape)
    problems = [f"missing: {name}" for name in sorted(expected.keys() - source.tensors.keys())]
    for name, tensor in sorted(source.tensors.items()):
        if name not in expected:
            problems += _unexpected(name, source)
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


def _unexpected(name: str, source: Source) -> list[str]:
    """Judge a tensor without a place; known buffers and a copy of the tied head are no problem."""
    if any(re.fullmatch(pattern, name) for pattern in source.family.ignored):
        return []
    if name == "lm_head.weight" and source.config.scores:
        return []
    tensor = source.tensors[name]
    embedding = source.tensors.get("model.embed_tokens.weight")
    if name == "lm_head.weight" and source.config.tie_embeddings and embedding is not None:
        if np.array_equal(embedding.load()[0], tensor.load()[0]):
            return []
        return [
            f"unexpected: {name} differs from the embedding that tie_word_embeddings ties it to"
        ]
    return [f"unexpected: {name} {list(tensor.shape)}"]


def _pattern(name: TensorName, source: Source) -> str:
    """The name of one parameter in the files."""
    return name.hf if source.kind == "hf" else name.gguf


def _names(name: TensorName, pattern: str, config: DecoderConfig) -> list[str]:
    """The names of one parameter's parts in the files, in the order of layers and experts."""
    if not name.stacked:
        return [pattern]
    experts = config.experts.count if config.experts is not None and "{e}" in pattern else 1
    places = product(range(config.layer_count), range(experts))
    return [pattern.format(l=layer, e=expert) for layer, expert in places]


def _parts(values: np.ndarray, pattern: str) -> np.ndarray:
    """View a parameter as a row of those parts."""
    axes = ("{l}" in pattern) + ("{e}" in pattern)
    return values.reshape(-1, *values.shape[axes:]) if axes else values[None]


def _read(
    name: TensorName, source: Source, digests: dict[str, bytes]
) -> Iterator[tuple[str, np.ndarray]]:
    """Read the parts of one parameter, in the axis order of files; note their hashes.

    Yields:
        Name in the file and values, one part after another.
    """
    config, pattern = source.config, _pattern(name, source)
    for file_name in _names(name, pattern, config):
        tensor = source.tensors[file_name]
        values, stored = tensor.load()
        if file_name not in digests:
            head = json.dumps([file_name, tensor.kind, list(tensor.shape)]).encode()
            digest = hashlib.sha256(head)
            digest.update(stored.data)
            digests[file_name] = digest.digest()
        if name.rows is not None:
            values = values[slice(*name.rows[:2])]
        if name.gguf_shift and source.kind == "gguf":
            values = values - np.float32(name.gguf_shift)
        if name.rotary_heads and source.kind == "gguf":
            heads = config.head_count if name.rotary_heads == "query" else config.kv_head_count
            values = unpermute_rotary(values, heads)
        yield file_name, values


def _fill(
    name: TensorName, source: Source, like: jax.ShapeDtypeStruct,
    parts: Iterable[tuple[str, np.ndarray]],
) -> np.ndarray:  # fmt: skip
    """Lay the parts of one parameter into an array of its size."""
    target = np.empty(like.shape, like.dtype)
    places = _parts(target, _pattern(name, source))
    for place, (_, values) in zip(places, parts, strict=True):
        place[...] = values.swapaxes(-1, -2) if name.transposed else values
    return target


def _combine(digests: Mapping[str, bytes], quantize: str) -> str:
    """Hash the tensors' hashes in the order of their names, and how they are quantised."""
    total = hashlib.sha256()
    for name in sorted(digests):
        total.update(digests[name])
    if quantize != "none":
        total.update(f"{quantize} in blocks of {BLOCK}".encode())
    return total.hexdigest()
