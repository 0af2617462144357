# SPDX-License-Identifier: Apache-2.0
"""The Gemma 2 family: soft-capped scores and logits, norms on both sides, every second window."""

from typing import Any

from alignax.models.attention import AttentionSpec
from alignax.models.config import DecoderConfig
from alignax.models.families.family import Family
from alignax.models.families.fields import Fields, layer_types, to_json, window_of
from alignax.models.families.gemma import GELU, gemma_traits
from alignax.models.families.metadata import Metadata
from alignax.models.families.names import ROTARY_BUFFERS, tensor_names

UNDERSTOOD = (
    "sliding_window", "layer_types", "query_pre_attn_scalar", "attn_logit_softcapping",
    "final_logit_softcapping",
)  # fmt: skip
_LARGEST = 46
"""Layers of the one size whose scores are scaled by d_model / heads instead of the head's width."""


def scores_and_logits(fields: Fields) -> dict[str, Any]:
    """Read what is done to scores and to logits."""
    scale = fields.number("query_pre_attn_scalar", 256.0) ** -0.5
    return {
        "attention": AttentionSpec(scale, fields.cap("attn_logit_softcapping")),
        "logit_cap": fields.cap("final_logit_softcapping"),
    }


def read(fields: Fields) -> DecoderConfig:
    """Read a ``config.json``."""
    return fields.decoder(
        "gemma2",
        gate=("hidden_activation", (GELU,)),
        norms="both",
        windows=fields.windows(lambda layer: layer % 2 == 0),
        **(scores_and_logits(fields) | gemma_traits(fields.size("hidden_size"))),
    )


def gguf_scale(metadata: Metadata, largest: int) -> float:
    """Factor of scores, which GGUF files do not state: it follows from the size."""
    heads = metadata.size("attention.head_count")
    if metadata.size("block_count") == largest:
        return (metadata.size("embedding_length") / heads) ** -0.5
    return metadata.size("attention.key_length") ** -0.5


def read_gguf(metadata: Metadata) -> DecoderConfig:
    """Read the metadata of a GGUF file."""
    count, window = metadata.size("block_count"), metadata.size("attention.sliding_window")
    cap = metadata.cap("attn_logit_softcapping")
    return metadata.shape(
        "gemma2",
        norms="both",
        windows=tuple(None if layer % 2 else window for layer in range(count)),
        attention=AttentionSpec(gguf_scale(metadata, _LARGEST), cap),
        logit_cap=metadata.cap("final_logit_softcapping"),
        **gemma_traits(metadata.size("embedding_length")),
    )


def gemma_json(config: DecoderConfig, architecture: str, model_type: str) -> dict[str, Any]:
    """Write what Gemma 2 and 3 share."""
    # A power of a power: 168 must not come back as 168.00000000000003.
    scalar = float(f"{config.attention.scale_of(config.head_dim) ** -2:.12g}")
    return to_json(config, architecture, model_type) | {
        "hidden_activation": GELU,
        "query_pre_attn_scalar": int(scalar) if scalar.is_integer() else scalar,
        "attn_logit_softcapping": config.attention.soft_cap,
        "final_logit_softcapping": config.logit_cap,
        "sliding_window": window_of(config),
        "layer_types": layer_types(config),
    }


def to_hf(config: DecoderConfig) -> dict[str, Any]:
    """Write a ``config.json``."""
    return gemma_json(config, "Gemma2ForCausalLM", "gemma2")


GEMMA2 = Family(
    name="gemma2",
    model_types=("gemma2",),
    architectures=("Gemma2ForCausalLM",),
    read=read,
    to_hf=to_hf,
    tensor_names=tensor_names,
    understands=UNDERSTOOD,
    defaults={
        "vocab_size": 256_000, "hidden_size": 2304, "intermediate_size": 9216,
        "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
        "head_dim": 256, "tie_word_embeddings": True, "max_position_embeddings": 8192,
        "sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
        "query_pre_attn_scalar": 256,
    },
    gguf_architecture="gemma2",
    read_gguf=read_gguf,
    ignored=(ROTARY_BUFFERS,),
)  # fmt: skip
