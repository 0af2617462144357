# SPDX-License-Identifier: Apache-2.0
"""The shape of a decoder, whatever its family: what differs between families is data."""

from dataclasses import dataclass
from typing import Literal

from alignax.models.attention import PLAIN, AttentionSpec


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the length of pre-training.

    Attributes:
        kind: ``"linear"`` (positions divided by ``factor``) or ``"llama3"`` (low frequencies
            divided, high ones kept, a smooth passage between).
        factor: The stretch.
        low_freq_factor: llama3: wavelengths above ``original / low`` are divided.
        high_freq_factor: llama3: wavelengths below ``original / high`` are kept.
        original_positions: llama3: length of pre-training.
    """

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 8192


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes and switches of a decoder-only transformer.

    Attributes:
        family: Key of ``models.families.FAMILIES``.
        vocab_size: Rows of the embedding.
        d_model: Width of the residual stream.
        mlp_dim: Width of the gated MLP.
        layer_count: Layers.
        head_count: Query heads.
        kv_head_count: Key/value heads; divides ``head_count``.
        head_dim: Width of a head.
        norm_eps: Added to the mean square in every norm.
        rope_theta: Base of the rotary frequencies.
        rope_scaling: Stretch of the rotary frequencies, or None.
        tie_embeddings: Whether the output head is the embedding.
        attention_bias: Whether q, k, v and o have a bias.
        mlp_bias: Whether gate, up and down have a bias.
        max_positions: Longest sequence that the model was made for.
        windows: How far back each layer attends, the token itself included; None for a layer
            without limit. Empty: no layer has one.
        attention: What is done to the scores.
    """

    family: str
    vocab_size: int
    d_model: int
    mlp_dim: int
    layer_count: int
    head_count: int
    kv_head_count: int
    head_dim: int
    norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    tie_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    max_positions: int = 2048
    windows: tuple[int | None, ...] = ()
    attention: AttentionSpec = PLAIN

    @property
    def projections(self) -> dict[str, tuple[int, int]]:
        """Name → (width in, width out) of every linear projection of a layer."""
        query, key = self.head_count * self.head_dim, self.kv_head_count * self.head_dim
        return {
            "q_proj": (self.d_model, query),
            "k_proj": (self.d_model, key),
            "v_proj": (self.d_model, key),
            "o_proj": (query, self.d_model),
            "gate_proj": (self.d_model, self.mlp_dim),
            "up_proj": (self.d_model, self.mlp_dim),
            "down_proj": (self.mlp_dim, self.d_model),
        }

    @property
    def body_parameters(self) -> int:
        """Weights of all projections: the matrix-multiply work of a token is twice this."""
        return self.layer_count * sum(i * o for i, o in self.projections.values())
