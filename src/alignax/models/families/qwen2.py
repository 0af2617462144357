# SPDX-License-Identifier: Apache-2.0
"""The Qwen 2 and 2.5 family: Llama's architecture with biases of query, key and value.

Upper layers may see a window only (``use_sliding_window``).
"""

from typing import Any

from alignax.models.config import DecoderConfig
from alignax.models.families.family import Family
from alignax.models.families.fields import Fields, layer_types, to_json, window_of
from alignax.models.families.metadata import Metadata
from alignax.models.families.names import ROTARY_BUFFERS, tensor_names


def upper_windows(fields: Fields) -> tuple[int | None, ...]:
    """Read which layers see a window: none unless it is switched on."""
    if not fields.flag("use_sliding_window") or fields.config.get("sliding_window") is None:
        return ()
    first = fields.config.get("max_window_layers", 28)
    if not isinstance(first, int):
        fields.problems.append(f"max_window_layers must be a whole number, got {first!r}")
        return ()
    return fields.windows(lambda layer: layer >= first)


def read(fields: Fields) -> DecoderConfig:
    """Read a ``config.json``; the biases are not among its fields."""
    windows = upper_windows(fields)
    return fields.decoder("qwen2", windows=windows, attention_bias=True, output_bias=False)


def read_gguf(metadata: Metadata) -> DecoderConfig:
    """Read the metadata of a GGUF file."""
    return metadata.shape("qwen2")


def windows_json(config: DecoderConfig) -> dict[str, Any]:
    """Write which layers see a window."""
    kinds = layer_types(config)
    sliding = "sliding_attention" in kinds
    first = kinds.index("sliding_attention") if sliding else config.layer_count
    return {
        "use_sliding_window": sliding,
        "sliding_window": window_of(config),
        "max_window_layers": first,
        "layer_types": kinds,
    }


def to_hf(config: DecoderConfig) -> dict[str, Any]:
    """Write a ``config.json``."""
    return to_json(config, "Qwen2ForCausalLM", "qwen2") | windows_json(config)


QWEN2 = Family(
    name="qwen2",
    model_types=("qwen2",),
    architectures=("Qwen2ForCausalLM",),
    read=read,
    to_hf=to_hf,
    tensor_names=tensor_names,
    understands=("sliding_window", "layer_types"),
    defaults={"sliding_window": 4096},
    gguf_architecture="qwen2",
    read_gguf=read_gguf,
    ignored=(ROTARY_BUFFERS,),
)
