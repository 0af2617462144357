# SPDX-License-Identifier: Apache-2.0
"""The OLMo 2 family: norms after attention and MLP only, and of whole queries and keys."""

from typing import Any

from alignax.models.config import DecoderConfig
from alignax.models.families.family import Family
from alignax.models.families.fields import Fields, to_json
from alignax.models.families.names import ROTARY_BUFFERS, tensor_names


def read(fields: Fields) -> DecoderConfig:
    """Read a ``config.json``."""
    return fields.decoder("olmo2", norms="after", qk_norm="width")


def to_hf(config: DecoderConfig) -> dict[str, Any]:
    """Write a ``config.json``."""
    return to_json(config, "Olmo2ForCausalLM", "olmo2")


OLMO2 = Family(
    name="olmo2",
    model_types=("olmo2",),
    architectures=("Olmo2ForCausalLM",),
    read=read,
    to_hf=to_hf,
    tensor_names=tensor_names,
    defaults={"rms_norm_eps": 1e-5},
    ignored=(ROTARY_BUFFERS,),
)
