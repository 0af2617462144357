# SPDX-License-Identifier: Apache-2.0
"""The first Gemma family: norms with an offset of 1, embeddings times √width, a GELU gate."""

import math
from typing import Any

from alignax.models.config import DecoderConfig
from alignax.models.families.family import Family
from alignax.models.families.fields import Fields, to_json
from alignax.models.families.metadata import Metadata
from alignax.models.families.names import ROTARY_BUFFERS, tensor_names

GELU = "gelu_pytorch_tanh"


def gemma_traits(width: int) -> dict[str, Any]:
    """What all Gemmas share."""
    return {"activation": "gelu_tanh", "norm_offset": 1.0, "embedding_scale": math.sqrt(width)}


def read(fields: Fields) -> DecoderConfig:
    """Read a ``config.json``; its first releases said ``gelu`` and meant the approximation."""
    stated = fields.config.get("hidden_activation") or fields.config.get("hidden_act") or GELU
    if stated not in (GELU, "gelu"):
        fields.problems.append(f"hidden_act {stated!r} is not supported ({GELU} is)")
    return fields.decoder("gemma", gate=("", (GELU,)), **gemma_traits(fields.size("hidden_size")))


def read_gguf(metadata: Metadata) -> DecoderConfig:
    """Read the metadata of a GGUF file."""
    return metadata.shape("gemma", **gemma_traits(metadata.size("embedding_length")))


def to_hf(config: DecoderConfig) -> dict[str, Any]:
    """Write a ``config.json``."""
    return to_json(config, "GemmaForCausalLM", "gemma") | {"hidden_activation": GELU}


GEMMA = Family(
    name="gemma",
    model_types=("gemma",),
    architectures=("GemmaForCausalLM",),
    read=read,
    to_hf=to_hf,
    tensor_names=tensor_names,
    defaults={"head_dim": 256, "tie_word_embeddings": True, "max_position_embeddings": 8192},
    gguf_architecture="gemma",
    read_gguf=read_gguf,
    ignored=(ROTARY_BUFFERS,),
)
