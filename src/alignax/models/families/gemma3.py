# SPDX-License-Identifier: Apache-2.0
"""The text part of the Gemma 3 family, alone or in a multimodal folder.

Five layers with a window and a rotary base of their own, then one without; norms before and after,
and of each query and key head. Of a multimodal folder the language model is read and exported; the
tensors of its other parts are left out.
"""

from collections.abc import Mapping
from typing import Any

from alignax.models.attention import AttentionSpec
from alignax.models.config import DecoderConfig
from alignax.models.families.family import Family
from alignax.models.families.fields import Fields
from alignax.models.families.gemma import GELU, gemma_traits
from alignax.models.families.gemma2 import UNDERSTOOD, gemma_json, gguf_scale, scores_and_logits
from alignax.models.families.metadata import Metadata
from alignax.models.families.names import ROTARY_BUFFERS, tensor_names
from alignax.models.families.rope import scaling_json

PATTERN = 6
"""Every sixth layer has no window."""
LOCAL_THETA = 10_000.0
_LARGEST = 62


def read(fields: Fields) -> DecoderConfig:
    """Read a ``config.json``."""
    fields, local = _split_rope(fields)
    pattern = fields.size("sliding_window_pattern", default=PATTERN)
    windows = fields.windows(lambda layer: bool((layer + 1) % (pattern or 1)))
    return fields.decoder(
        "gemma3",
        gate=("hidden_activation", (GELU,)),
        norms="both",
        qk_norm="head",
        windows=windows,
        local_rope_theta=local if windows else None,
        **(scores_and_logits(fields) | gemma_traits(fields.size("hidden_size"))),
    )


def _split_rope(fields: Fields) -> tuple[Fields, float]:
    """Take the rotary settings by kind of layer apart: those without a window, and a base."""
    config = dict(fields.config)
    nested = config.get("rope_parameters")
    if not isinstance(nested, Mapping) or "full_attention" not in nested:
        return fields, fields.number("rope_local_base_freq", LOCAL_THETA)
    local = nested.get("sliding_attention") or {}
    if local.get("rope_type", "default") != "default":
        fields.problems.append(f"rope_parameters of sliding_attention {local} are not supported")
    config["rope_parameters"] = nested["full_attention"]
    reader = Fields({"rope_theta": config.get("rope_local_base_freq")} | dict(local), [])
    theta = reader.number("rope_theta", LOCAL_THETA)
    fields.problems.extend(reader.problems)
    return Fields(config, fields.problems), theta


def read_gguf(metadata: Metadata) -> DecoderConfig:
    """Read the metadata of a GGUF file, which states neither the pattern nor the local base."""
    count, window = metadata.size("block_count"), metadata.size("attention.sliding_window")
    windows = tuple(window if (layer + 1) % PATTERN else None for layer in range(count))
    return metadata.shape(
        "gemma3",
        norms="both",
        qk_norm="head",
        windows=windows,
        local_rope_theta=metadata.number("rope.freq_base_swa", LOCAL_THETA),
        attention=AttentionSpec(gguf_scale(metadata, _LARGEST), None),
        logit_cap=metadata.cap("final_logit_softcapping"),
        **gemma_traits(metadata.size("embedding_length")),
    )


def to_hf(config: DecoderConfig) -> dict[str, Any]:
    """Write a ``config.json``, the rotary settings in both spellings."""
    whole = scaling_json(config.rope_scaling) | {"rope_theta": config.rope_theta}
    local = {"rope_type": "default", "rope_theta": config.local_rope_theta or LOCAL_THETA}
    return gemma_json(config, "Gemma3ForCausalLM", "gemma3_text") | {
        "rope_parameters": {"full_attention": whole, "sliding_attention": local},
        "rope_local_base_freq": local["rope_theta"],
    }


GEMMA3 = Family(
    name="gemma3",
    model_types=("gemma3_text", "gemma3"),
    architectures=("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    read=read,
    to_hf=to_hf,
    tensor_names=tensor_names,
    understands=UNDERSTOOD,
    defaults={
        "vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216,
        "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
        "head_dim": 256, "tie_word_embeddings": True, "max_position_embeddings": 131_072,
        "sliding_window": 4096, "query_pre_attn_scalar": 256, "rope_theta": 1_000_000.0,
    },
    gguf_architecture="gemma3",
    read_gguf=read_gguf,
    ignored=(ROTARY_BUFFERS, r"(model\.)?(vision_tower|multi_modal_projector)\..*"),
    inner="text_config",
    renamed=(
        ("language_model.model.", "model."),
        ("model.language_model.", "model."),
        ("language_model.lm_head.", "lm_head."),
    ),
    scores_as="Gemma3TextForSequenceClassification",
)  # fmt: skip
