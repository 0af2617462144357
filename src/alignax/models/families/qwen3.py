# SPDX-License-Identifier: Apache-2.0
"""The Qwen 3 family: Llama's architecture with norms of each query and key head."""

from typing import Any

from alignax.models.config import DecoderConfig
from alignax.models.families.family import Family
from alignax.models.families.fields import Fields, to_json
from alignax.models.families.metadata import Metadata
from alignax.models.families.names import ROTARY_BUFFERS, tensor_names
from alignax.models.families.qwen2 import upper_windows, windows_json


def read(fields: Fields) -> DecoderConfig:
    """Read a ``config.json``."""
    return fields.decoder("qwen3", windows=upper_windows(fields), qk_norm="head")


def read_gguf(metadata: Metadata) -> DecoderConfig:
    """Read the metadata of a GGUF file."""
    return metadata.shape("qwen3", qk_norm="head")


def to_hf(config: DecoderConfig) -> dict[str, Any]:
    """Write a ``config.json``."""
    return to_json(config, "Qwen3ForCausalLM", "qwen3") | windows_json(config)


QWEN3 = Family(
    name="qwen3",
    model_types=("qwen3",),
    architectures=("Qwen3ForCausalLM",),
    read=read,
    to_hf=to_hf,
    tensor_names=tensor_names,
    understands=("sliding_window", "layer_types"),
    defaults={"sliding_window": 4096, "head_dim": 128},
    gguf_architecture="qwen3",
    read_gguf=read_gguf,
    ignored=(ROTARY_BUFFERS,),
)
