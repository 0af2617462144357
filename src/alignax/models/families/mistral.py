# SPDX-License-Identifier: Apache-2.0
"""The Mistral family: Llama's architecture, where every layer may see a window only.

Its GGUF files call themselves ``llama`` and are read as such.
"""

from typing import Any

from alignax.models.config import DecoderConfig
from alignax.models.families.family import Family
from alignax.models.families.fields import Fields, to_json, window_of
from alignax.models.families.names import ROTARY_BUFFERS, tensor_names


def read(fields: Fields) -> DecoderConfig:
    """Read a ``config.json``."""
    window = fields.config.get("sliding_window")
    return fields.decoder("mistral", windows=fields.windows(lambda _: window is not None))


def to_hf(config: DecoderConfig) -> dict[str, Any]:
    """Write a ``config.json``."""
    written = to_json(config, "MistralForCausalLM", "mistral")
    return written | {"sliding_window": window_of(config)}


MISTRAL = Family(
    name="mistral",
    model_types=("mistral",),
    architectures=("MistralForCausalLM",),
    read=read,
    to_hf=to_hf,
    tensor_names=tensor_names,
    understands=("sliding_window",),
    defaults={"sliding_window": 4096},
    ignored=(ROTARY_BUFFERS,),
)
