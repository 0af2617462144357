# SPDX-License-Identifier: Apache-2.0
"""What a model family is: ways to read its configuration, and a table of tensor names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from alignax.models.config import DecoderConfig
from alignax.models.gguf import GGUFFile

Config = Mapping[str, Any]
"""Content of a ``config.json``."""


@dataclass(frozen=True)
class TensorName:
    """One tensor of the decoder and its names in files; ``{l}`` stands for the layer.

    Attributes:
        param: Dotted path in the decoder; tensors of all layers are stacked under one path.
        hf: Name in safetensors files.
        gguf: Name in GGUF files.
        transposed: Files store (out, in), the decoder (in, out).
        rotary_heads: GGUF files interleave the rows of these heads.
    """

    param: str
    hf: str
    gguf: str
    transposed: bool = False
    rotary_heads: Literal["query", "key"] | None = None

    @property
    def stacked(self) -> bool:
        """Whether every layer has one."""
        return "{l}" in self.hf


@dataclass(frozen=True)
class Family:
    """Everything that loading and export need to know about one family.

    Attributes:
        name: Key of ``FAMILIES``.
        model_types: Values of ``model_type`` in ``config.json``.
        architectures: Values of ``architectures`` in ``config.json``.
        gguf_architecture: Value of ``general.architecture`` in GGUF files.
        from_hf: ``config.json`` → decoder configuration; adds what is wrong to the given list.
        from_gguf: The same for a GGUF file.
        to_hf: Decoder configuration → ``config.json``.
        tensor_names: Tensors of a decoder of this configuration.
        ignored: Patterns (regular expressions) of names in files that hold no weights of ours.
    """

    name: str
    model_types: tuple[str, ...]
    architectures: tuple[str, ...]
    gguf_architecture: str
    from_hf: Callable[[Config, list[str]], DecoderConfig | None]
    from_gguf: Callable[[GGUFFile, list[str]], DecoderConfig | None]
    to_hf: Callable[[DecoderConfig], dict[str, Any]]
    tensor_names: Callable[[DecoderConfig], list[TensorName]]
    ignored: tuple[str, ...] = ()


def read_size(config: Config, key: str, problems: list[str], *, default: int | None = None) -> int:
    """Read a positive whole number; 0 and a problem otherwise."""
    value = config.get(key)
    if value is None:
        value = default
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    problems.append(f"{key} must be a positive whole number, got {value!r}")
    return 0


def read_number(config: Config, key: str, default: float, problems: list[str]) -> float:
    """Read a positive number; the default and a problem otherwise."""
    value = config.get(key)
    if value is None:
        return default
    if isinstance(value, int | float) and value > 0:
        return float(value)
    problems.append(f"{key} must be a positive number, got {value!r}")
    return default
