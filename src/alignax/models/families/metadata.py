# SPDX-License-Identifier: Apache-2.0
"""Metadata of a GGUF file → what nearly all families say in the same words."""

from collections.abc import Mapping
from typing import Any

from alignax.models.config import DecoderConfig, RopeScaling
from alignax.models.families.fields import Fields
from alignax.models.families.rope import DEFAULT_THETA, yarn_magnitude
from alignax.models.gguf import GGUFFile


class Metadata(Fields):
    """The metadata of one architecture, its prefix taken off the keys."""

    def __init__(self, file: GGUFFile, architecture: str, problems: list[str]):
        """Take an open file."""
        prefix = f"{architecture}."
        config: dict[str, Any] = {
            key.removeprefix(prefix): value
            for key, value in file.metadata.items()
            if key.startswith(prefix)
        }
        config.setdefault("vocab_size", len(file.metadata.get("tokenizer.ggml.tokens", ())))
        super().__init__(config, problems)
        self.file = file
        self.tensors: Mapping[str, Any] = file.tensors

    def shape(self, family: str, *, scaling: RopeScaling | None = None, **further: Any) -> Any:
        """Read what all families share; ``further`` are fields that the family read itself."""
        d_model = self.size("embedding_length")
        heads = self.size("attention.head_count")
        keys = self.size("attention.head_count_kv", default=heads)
        width = self.config.get("rope.dimension_count") or (d_model // heads if heads else None)
        head_dim = self.size("attention.key_length", default=width)
        if self.config.get("rope.dimension_count", head_dim) != head_dim:
            turned = self.config["rope.dimension_count"]
            self.problems.append(f"rope.dimension_count {turned} is not {head_dim}")
        if self.config.get("expert_count"):
            count = self.config["expert_count"]
            self.problems.append(
                f"expert_count {count}: mixtures of experts are not read from GGUF"
            )
        biased, output = (
            f"blk.0.{name}.bias" in self.tensors for name in ("attn_q", "attn_output")
        )
        shared: dict[str, Any] = {
            "vocab_size": self.size("vocab_size"),
            "d_model": d_model,
            "mlp_dim": self.size("feed_forward_length"),
            "layer_count": self.size("block_count"),
            "head_count": heads,
            "kv_head_count": keys,
            "head_dim": head_dim,
            "norm_eps": decimal(self.number("attention.layer_norm_rms_epsilon", 1e-5)),
            "rope_theta": self.number("rope.freq_base", DEFAULT_THETA),
            "rope_scaling": self.scaling() if scaling is None else scaling,
            "tie_embeddings": "output.weight" not in self.tensors,
            "attention_bias": biased,
            "output_bias": None if output == biased else output,
            "mlp_bias": "blk.0.ffn_gate.bias" in self.tensors,
            "max_positions": self.size("context_length", default=2048),
        }
        return DecoderConfig(family=family, **(shared | further))

    def scaling(self) -> RopeScaling | None:
        """Read the rotary scaling that the metadata state."""
        kind = self.config.get("rope.scaling.type", "none")
        if kind == "none":
            return None
        factor = self.number("rope.scaling.factor", 1.0)
        if kind == "linear":
            return RopeScaling("linear", factor)
        if kind == "yarn":
            original = self.size(
                "rope.scaling.original_context_length",
                default=self.config.get("context_length"),
            )
            return RopeScaling(
                "yarn",
                factor,
                original_positions=original,
                magnitude=yarn_magnitude({}, factor),
            )
        self.problems.append(
            f"rope.scaling.type {kind!r} is not supported (linear, yarn and llama3 are)"
        )
        return None


def decimal(value: float) -> float:
    """Undo the float32 noise of a short decimal number: 9.9999997e-06 → 1e-05."""
    return float(f"{value:.6g}")
