# SPDX-License-Identifier: Apache-2.0
"""The shape of a decoder, whatever its family: what differs between families is data."""

from dataclasses import dataclass, replace
from typing import Literal

from alignax.models.attention import PLAIN, AttentionSpec


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the length of pre-training.

    Attributes:
        kind: ``"linear"`` (positions divided by ``factor``), ``"llama3"`` (low frequencies
            divided, high ones kept, a smooth passage between), ``"yarn"`` (the same with a passage
            along the dimensions: Peng et al. 2023), ``"dynamic"`` (the base grows with a sequence
            that is longer than ``original_positions``) or ``"longrope"`` (each frequency divided
            by its own factor, of two sets: Ding et al. 2024).
        factor: The stretch.
        low_freq_factor: llama3: wavelengths above ``original / low`` are divided.
        high_freq_factor: llama3: wavelengths below ``original / high`` are kept.
        original_positions: Length of pre-training; unused by linear.
        beta_fast: yarn: what turns more often than this within the original length is kept.
        beta_slow: yarn: what turns less often than this is divided.
        truncate: yarn: whether the passage begins and ends at whole dimensions.
        short_factors: longrope: divisors for sequences up to the original length.
        long_factors: longrope: divisors for longer sequences.
        magnitude: yarn, longrope: factor of cosines and sines.
    """

    kind: Literal["linear", "dynamic", "yarn", "llama3", "longrope"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    magnitude: float = 1.0

    @property
    def by_length(self) -> bool:
        """Whether frequencies depend on how long a sequence is."""
        return self.kind in ("dynamic", "longrope")


@dataclass(frozen=True)
class Experts:
    """A mixture of experts in place of the MLP; ``mlp_dim`` is the width of one.

    Attributes:
        count: Experts of a layer.
        chosen: Experts that a token passes.
        renormalised: Whether the weights of the chosen ones are scaled to sum to 1.
    """

    count: int
    chosen: int
    renormalised: bool = True


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
        attention_bias: Whether q, k and v have a bias.
        output_bias: Whether o has a bias; None: as the other three.
        mlp_bias: Whether gate, up and down have a bias.
        max_positions: Longest sequence that the model was made for.
        windows: How far back each layer attends, the token itself included; None for a layer
            without limit. Empty: no layer has one.
        attention: What is done to the scores.
        local_rope_theta: Base of the rotary frequencies, unstretched, of layers with a window; None
            for the same as in the others.
        rotary_layers: Whether each layer rotates queries and keys. Empty: all do.
        rotary_dim: Leading entries of a head that are rotated; None for all.
        activation: Of the gate.
        norms: Where the norms of attention and MLP are: before each, after, or both.
        norm_offset: Added to the scale of every norm.
        qk_norm: Norms of queries and keys: over each head, over all heads at once, or none.
        embedding_scale: Factor of the embeddings.
        residual_scale: Factor of what attention and MLP add.
        logit_divisor: Logits are divided by it.
        logit_cap: Logits become cap · tanh(logits / cap); None for none.
        experts: Mixture of experts; None for one MLP.
        scores: Whether a scalar head takes the place of the output head: a reward model.
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
    output_bias: bool | None = None
    mlp_bias: bool = False
    max_positions: int = 2048
    windows: tuple[int | None, ...] = ()
    attention: AttentionSpec = PLAIN
    local_rope_theta: float | None = None
    rotary_layers: tuple[bool, ...] = ()
    rotary_dim: int | None = None
    activation: Literal["silu", "gelu", "gelu_tanh"] = "silu"
    norms: Literal["before", "after", "both"] = "before"
    norm_offset: float = 0.0
    qk_norm: Literal["head", "width"] | None = None
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_divisor: float = 1.0
    logit_cap: float | None = None
    experts: Experts | None = None
    scores: bool = False

    @property
    def projections(self) -> dict[str, tuple[int, int]]:
        """Name → (width in, width out) of every linear projection of a layer (of an expert)."""
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

    def has_bias(self, projection: str) -> bool:
        """Whether a projection has a bias."""
        if projection == "o_proj" and self.output_bias is not None:
            return self.output_bias
        attends = projection in ("q_proj", "k_proj", "v_proj", "o_proj")
        return self.attention_bias if attends else self.mlp_bias

    @property
    def body_parameters(self) -> int:
        """Weights that a token meets in projections: its matrix-multiply work is twice this."""
        times = 1 if self.experts is None else self.experts.chosen
        sizes = {name: i * o for name, (i, o) in self.projections.items()}
        mlp = sum(sizes[name] for name in ("gate_proj", "up_proj", "down_proj"))
        router = 0 if self.experts is None else self.d_model * self.experts.count
        return self.layer_count * (sum(sizes.values()) + (times - 1) * mlp + router)

    def with_layers(self, count: int) -> "DecoderConfig":
        """Keep the first layers."""
        return replace(
            self,
            layer_count=count,
            windows=self.windows[:count],
            rotary_layers=self.rotary_layers[:count],
        )
