# SPDX-License-Identifier: Apache-2.0
"""The Mixtral family: Mistral's architecture with a mixture of experts in place of the MLP."""

from typing import Any

from alignax.models.config import DecoderConfig, Experts
from alignax.models.families.family import Family, TensorName
from alignax.models.families.fields import Fields, to_json, window_of
from alignax.models.families.names import ROTARY_BUFFERS, expert_names, tensor_names


def read(fields: Fields) -> DecoderConfig:
    """Read a ``config.json``."""
    window = fields.config.get("sliding_window")
    count = fields.size("num_local_experts", default=fields.config.get("num_experts") or 8)
    chosen = fields.size("num_experts_per_tok", default=2)
    if chosen > count:
        fields.problems.append(f"num_experts_per_tok {chosen} is more than the {count} experts")
    return fields.decoder(
        "mixtral",
        windows=fields.windows(lambda _: window is not None),
        experts=Experts(count, chosen),
    )


def to_hf(config: DecoderConfig) -> dict[str, Any]:
    """Write a ``config.json``."""
    assert config.experts is not None
    return to_json(config, "MixtralForCausalLM", "mixtral") | {
        "sliding_window": window_of(config),
        "num_local_experts": config.experts.count,
        "num_experts_per_tok": config.experts.chosen,
    }


def names(config: DecoderConfig) -> list[TensorName]:
    """List the tensors; w1 is the gate, w3 goes up, w2 down."""
    parts = {"expert_gate": "w1", "expert_up": "w3", "expert_down": "w2"}
    return tensor_names(config) + expert_names("block_sparse_moe", parts)


MIXTRAL = Family(
    name="mixtral",
    model_types=("mixtral",),
    architectures=("MixtralForCausalLM",),
    read=read,
    to_hf=to_hf,
    tensor_names=names,
    understands=("sliding_window", "num_local_experts", "num_experts"),
    defaults={"rope_theta": 1_000_000.0, "rms_norm_eps": 1e-5, "num_key_value_heads": 8},
    ignored=(ROTARY_BUFFERS,),
)
