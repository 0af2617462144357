# SPDX-License-Identifier: Apache-2.0
"""The Granite 3 family: Llama's architecture with four multipliers."""

from typing import Any

from alignax.models.attention import AttentionSpec
from alignax.models.config import DecoderConfig
from alignax.models.families.family import Family
from alignax.models.families.fields import Fields, to_json
from alignax.models.families.names import ROTARY_BUFFERS, tensor_names

_MULTIPLIERS = (
    "embedding_multiplier",
    "attention_multiplier",
    "residual_multiplier",
    "logits_scaling",
)


def read(fields: Fields) -> DecoderConfig:
    """Read a ``config.json``; ``logits_scaling`` divides."""
    embedding, attention, residual, logits = (fields.number(key, 1.0) for key in _MULTIPLIERS)
    return fields.decoder(
        "granite",
        embedding_scale=embedding,
        attention=AttentionSpec(attention, None),
        residual_scale=residual,
        logit_divisor=logits,
    )


def to_hf(config: DecoderConfig) -> dict[str, Any]:
    """Write a ``config.json``."""
    attention = config.attention.scale_of(config.head_dim)
    values = (config.embedding_scale, attention, config.residual_scale, config.logit_divisor)
    written = to_json(config, "GraniteForCausalLM", "granite") | {"mlp_bias": config.mlp_bias}
    return written | dict(zip(_MULTIPLIERS, values, strict=True))


GRANITE = Family(
    name="granite",
    model_types=("granite",),
    architectures=("GraniteForCausalLM",),
    read=read,
    to_hf=to_hf,
    tensor_names=tensor_names,
    understands=_MULTIPLIERS,
    ignored=(ROTARY_BUFFERS,),
)
