# SPDX-License-Identifier: Apache-2.0
"""The Qwen 3 family with a mixture of experts in place of every MLP."""

from typing import Any

from alignax.models.config import DecoderConfig, Experts
from alignax.models.families.family import Family, TensorName
from alignax.models.families.fields import Fields, to_json, window_of
from alignax.models.families.names import ROTARY_BUFFERS, expert_names, tensor_names


def read(fields: Fields) -> DecoderConfig:
    """Read a ``config.json``; all layers have experts, and a window if it is switched on."""
    count = fields.size("num_experts", default=fields.config.get("num_local_experts") or 128)
    chosen = fields.size("num_experts_per_tok", default=8)
    if chosen > count:
        fields.problems.append(f"num_experts_per_tok {chosen} is more than the {count} experts")
    sliding = fields.flag("use_sliding_window") and fields.config["sliding_window"] is not None
    return fields.decoder(
        "qwen3_moe",
        qk_norm="head",
        mlp_dim=fields.size("moe_intermediate_size", default=768),
        windows=fields.windows(lambda _: sliding),
        experts=Experts(count, chosen, fields.flag("norm_topk_prob")),
    )


def to_hf(config: DecoderConfig) -> dict[str, Any]:
    """Write a ``config.json``."""
    assert config.experts is not None
    return to_json(config, "Qwen3MoeForCausalLM", "qwen3_moe") | {
        "moe_intermediate_size": config.mlp_dim,
        "num_experts": config.experts.count,
        "num_experts_per_tok": config.experts.chosen,
        "norm_topk_prob": config.experts.renormalised,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "use_sliding_window": window_of(config) is not None,
        "sliding_window": window_of(config),
    }


def names(config: DecoderConfig) -> list[TensorName]:
    """List the tensors."""
    parts = {"expert_gate": "gate_proj", "expert_up": "up_proj", "expert_down": "down_proj"}
    return tensor_names(config) + expert_names("mlp", parts)


QWEN3_MOE = Family(
    name="qwen3_moe",
    model_types=("qwen3_moe",),
    architectures=("Qwen3MoeForCausalLM",),
    read=read,
    to_hf=to_hf,
    tensor_names=names,
    understands=("sliding_window", "num_local_experts", "num_experts"),
    defaults={"sliding_window": 4096, "num_key_value_heads": 4},
    ignored=(ROTARY_BUFFERS,),
)
