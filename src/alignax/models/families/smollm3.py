# SPDX-License-Identifier: Apache-2.0
"""The SmolLM 3 family: Llama's architecture, where some layers do not rotate queries and keys."""

from typing import Any

from alignax.models.config import DecoderConfig
from alignax.models.families.family import Family
from alignax.models.families.fields import Fields, layer_types, to_json, window_of
from alignax.models.families.names import ROTARY_BUFFERS, tensor_names


def read(fields: Fields) -> DecoderConfig:
    """Read a ``config.json``."""
    count = fields.size("num_hidden_layers")
    turning = fields.config.get("no_rope_layers")
    if turning is None:
        every = fields.size("no_rope_layer_interval", default=4) or 1
        turning = [int((layer + 1) % every != 0) for layer in range(count)]
    if not isinstance(turning, list) or len(turning) < count:
        fields.problems.append(f"no_rope_layers must list {count} flags, got {turning!r}")
        turning = [1] * count
    windows: tuple[int | None, ...] = ()
    if fields.flag("use_sliding_window") and fields.config.get("sliding_window") is not None:
        windows = fields.windows(lambda layer: not turning[layer])
    turns = tuple(map(bool, turning[:count]))
    return fields.decoder("smollm3", windows=windows, rotary_layers=() if all(turns) else turns)


def to_hf(config: DecoderConfig) -> dict[str, Any]:
    """Write a ``config.json``."""
    turning = config.rotary_layers or (True,) * config.layer_count
    return to_json(config, "SmolLM3ForCausalLM", "smollm3") | {
        "mlp_bias": config.mlp_bias,
        "no_rope_layers": [int(turns) for turns in turning],
        "use_sliding_window": window_of(config) is not None,
        "sliding_window": window_of(config),
        "layer_types": layer_types(config),
    }


SMOLLM3 = Family(
    name="smollm3",
    model_types=("smollm3",),
    architectures=("SmolLM3ForCausalLM",),
    read=read,
    to_hf=to_hf,
    tensor_names=tensor_names,
    understands=("no_rope_layers", "sliding_window", "layer_types"),
    defaults={"tie_word_embeddings": True, "rope_theta": 2_000_000.0},
    ignored=(ROTARY_BUFFERS,),
)
