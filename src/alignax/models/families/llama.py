# SPDX-License-Identifier: Apache-2.0
"""The Llama family: Llama 1 to 3.x, SmolLM 1 and 2, TinyLlama and others of the same architecture.

GGUF files do not state the parameters of Llama 3's rotary scaling but carry the resulting factors,
from which they are recovered.
"""

import math
from typing import Any

import numpy as np

from alignax.models.config import DecoderConfig, RopeScaling
from alignax.models.families.family import Family
from alignax.models.families.fields import Fields, to_json
from alignax.models.families.metadata import Metadata, decimal
from alignax.models.families.names import GGUF_ROTARY, ROTARY_BUFFERS, interleaved
from alignax.models.families.rope import DEFAULT_THETA

_ROPE_FACTORS = "rope_freqs.weight"


def read(fields: Fields) -> DecoderConfig:
    """Read a ``config.json``."""
    return fields.decoder("llama")


def read_gguf(metadata: Metadata) -> DecoderConfig:
    """Read the metadata of a GGUF file."""
    if _ROPE_FACTORS not in metadata.tensors:
        return metadata.shape("llama")
    factors = metadata.tensors[_ROPE_FACTORS].dequantised()
    scaling = RopeScaling("llama3", decimal(float(factors.max())))
    config = metadata.shape("llama", scaling=scaling)
    theta = metadata.number("rope.freq_base", DEFAULT_THETA)
    expected = llama3_divisors(scaling, theta, 2 * len(factors))
    if not np.allclose(factors, expected, rtol=1e-3):
        metadata.problems.append(f"tensor {_ROPE_FACTORS} holds factors other than Llama 3's")
    return config


def llama3_divisors(scaling: RopeScaling, theta: float, head_dim: int) -> np.ndarray:
    """What Llama 3's scaling divides each rotary frequency by: 1 for fast, ``factor`` for slow."""
    wavelength = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    keep = np.clip((scaling.original_positions / wavelength - low) / (high - low), 0, 1)
    return 1 / ((1 - keep) / scaling.factor + keep)


def to_hf(config: DecoderConfig) -> dict[str, Any]:
    """Write a ``config.json``."""
    return to_json(config, "LlamaForCausalLM", "llama") | {"mlp_bias": config.mlp_bias}


LLAMA = Family(
    name="llama",
    model_types=("llama",),
    architectures=("LlamaForCausalLM",),
    read=read,
    to_hf=to_hf,
    tensor_names=interleaved,
    gguf_architecture="llama",
    read_gguf=read_gguf,
    ignored=(ROTARY_BUFFERS, *GGUF_ROTARY),
)
