# SPDX-License-Identifier: Apache-2.0
"""The Phi 3 and 4 family: Llama's architecture with long-context rotary factors.

Files hold query, key and value in one tensor, and gate and up in another; here they are apart, and
together again in an export.
"""

from collections.abc import Mapping
from typing import Any

from alignax.models.config import DecoderConfig
from alignax.models.families.family import Family, TensorName
from alignax.models.families.fields import Fields, to_json, window_of
from alignax.models.families.names import (
    ROTARY_BUFFERS,
    norm_names,
    outer_names,
    projection_names,
)

_ORIGINAL = "original_max_position_embeddings"


def read(fields: Fields) -> DecoderConfig:
    """Read a ``config.json``; the length of pre-training stands outside the rotary settings."""
    config = dict(fields.config)
    for key in ("rope_scaling", "rope_parameters"):
        if isinstance(config.get(key), Mapping):
            config[key] = dict(config[key]) | {_ORIGINAL: config[_ORIGINAL]}
    fields = Fields(config, fields.problems)
    window = config.get("sliding_window")
    return fields.decoder(
        "phi3",
        ropes=("longrope",),
        partial=True,
        windows=fields.windows(lambda _: window is not None),
    )


def to_hf(config: DecoderConfig) -> dict[str, Any]:
    """Write a ``config.json``."""
    scaling = config.rope_scaling
    original = config.max_positions if scaling is None else scaling.original_positions
    written = to_json(config, "Phi3ForCausalLM", "phi3")
    return written | {"sliding_window": window_of(config), _ORIGINAL: original}


def tensor_names(config: DecoderConfig) -> list[TensorName]:
    """List the tensors; several of ours are rows of one in the files."""
    names = [*outer_names(config), *norm_names(config)]
    for file_name, gguf, parts in (
        ("self_attn.qkv_proj", "attn_qkv", ("q_proj", "k_proj", "v_proj")),
        ("mlp.gate_up_proj", "ffn_up", ("gate_proj", "up_proj")),
    ):
        widths = [config.projections[part][1] for part in parts]
        first = 0
        for part, width in zip(parts, widths, strict=True):
            rows = (first, first + width, sum(widths))
            names += projection_names(config, part, file_name, gguf, rows)
            first += width
    names += projection_names(config, "o_proj", "self_attn.o_proj", "attn_output")
    return names + projection_names(config, "down_proj", "mlp.down_proj", "ffn_down")


PHI3 = Family(
    name="phi3",
    model_types=("phi3",),
    architectures=("Phi3ForCausalLM",),
    read=read,
    to_hf=to_hf,
    tensor_names=tensor_names,
    understands=("sliding_window",),
    defaults={_ORIGINAL: 4096, "rms_norm_eps": 1e-5, "max_position_embeddings": 4096},
    ignored=(ROTARY_BUFFERS,),
)
