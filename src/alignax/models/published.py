# SPDX-License-Identifier: Apache-2.0
"""A decoder's stacked arrays → their names in published checkpoints, for messages."""

from alignax.models.config import DecoderConfig
from alignax.models.families import FAMILIES
from alignax.models.lora import BLOCKS

SIDES = {"lora_a": "lora_A", "lora_b": "lora_B"}


def published_name(config: DecoderConfig, path: str, layer: int | None) -> str:
    """Name one array, or one layer of a stacked one, as checkpoints do.

    ``layers.attention.q_proj.lora_a`` of layer 3 is ``model.layers.3.self_attn.q_proj.lora_A``.

    Args:
        config: The decoder's shape.
        path: Dotted path in the decoder.
        layer: The layer, for an array that holds all of them.
    """
    *_, projection, leaf = path.split(".")
    if leaf in SIDES and projection in BLOCKS:
        return f"model.layers.{layer}.{BLOCKS[projection]}.{projection}.{SIDES[leaf]}"
    for name in FAMILIES[config.family].tensor_names(config):
        if name.param == path:
            return name.hf.format(l=layer, e="*")
    return path if layer is None else f"{path} of layer {layer}"
