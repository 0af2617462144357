# SPDX-License-Identifier: Apache-2.0
"""``config.json`` ↔ what nearly all families say in the same words.

A field that changes the computation is understood by the family or refused, never skipped.
"""

from collections.abc import Callable, Mapping
from typing import Any

from alignax.models.config import DecoderConfig
from alignax.models.families.rope import read_rope, rope_json

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}
"""Published name → ``DecoderConfig.activation``."""

WRITTEN = {"silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}
"""``DecoderConfig.activation`` → the name that is written."""


def _set(value: Any) -> bool:
    return value is not None and value is not False


def _not_one(value: Any) -> bool:
    return value is not None and value != 1


def _not_full(value: Any) -> bool:
    return bool(value) and any(kind != "full_attention" for kind in value)


def _some_zero(value: Any) -> bool:
    return bool(value) and not all(value)


FEATURES: dict[str, Callable[[Any], bool]] = {
    "attention_chunk_size": _set,
    "attention_multiplier": _not_one,
    "attn_logit_softcapping": _set,
    "clip_qkv": _set,
    "decoder_sparse_step": _not_one,
    "embedding_multiplier": _not_one,
    "final_logit_softcapping": _set,
    "layer_types": _not_full,
    "logits_scaling": _not_one,
    "mlp_only_layers": bool,
    "no_rope_layers": _some_zero,
    "num_experts": _set,
    "num_local_experts": _set,
    "qk_layernorm": bool,
    "query_pre_attn_scalar": _set,
    "residual_multiplier": _not_one,
    "router_jitter_noise": bool,
    "sliding_window": _set,
    "use_bidirectional_attention": bool,
    "use_qk_norm": bool,
}
"""Key that some family computes by → whether a value of it changes anything."""


class Fields:
    """A configuration, and what is wrong with it."""

    def __init__(self, config: Mapping[str, Any], problems: list[str]):
        """Take the content of a ``config.json``, defaults filled in."""
        self.config = config
        self.problems = problems

    def refuse_features(self, understood: tuple[str, ...]) -> None:
        """Note every feature that is switched on and not among those that are understood."""
        for key, active in FEATURES.items():
            value = self.config.get(key)
            if key not in understood and active(value):
                self.problems.append(f"{key} {value!r} is not supported in this family")
        if self.config.get("quantization_config"):
            self.problems.append(
                "quantization_config: quantised folders are not supported; dequantise it"
            )

    def size(self, key: str, *, default: int | None = None) -> int:
        """Read a positive whole number; 0 and a problem otherwise."""
        value = self.config.get(key)
        if value is None:
            value = default
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        self.problems.append(f"{key} must be a positive whole number, got {value!r}")
        return 0

    def number(self, key: str, default: float) -> float:
        """Read a positive number; the default and a problem otherwise."""
        value = self.config.get(key)
        if value is None:
            return default
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            return float(value)
        self.problems.append(f"{key} must be a positive number, got {value!r}")
        return default

    def cap(self, key: str) -> float | None:
        """Read a positive number that may be null."""
        return None if self.config.get(key) is None else self.number(key, 1.0)

    def flag(self, key: str, default: bool = False) -> bool:
        """Read a truth value."""
        value = self.config.get(key)
        return default if value is None else bool(value)

    def activation(self, key: str, known: tuple[str, ...]) -> Any:
        """Read the gate's activation."""
        value = self.config.get(key) or known[0]
        name = ACTIVATIONS.get(str(value))
        if name in [ACTIVATIONS[each] for each in known]:
            return name
        self.problems.append(f"{key} {value!r} is not supported ({', '.join(known)} is)")
        return "silu"

    def windows(self, sliding: Callable[[int], bool]) -> tuple[int | None, ...]:
        """Read which layers see ``sliding_window`` tokens: as listed, else as ``sliding`` says."""
        count = self.size("num_hidden_layers")
        kinds = self.config.get("layer_types")
        if kinds is None:
            kinds = ["sliding_attention" if sliding(i) else "full_attention" for i in range(count)]
        known = {"sliding_attention", "full_attention"}
        if not isinstance(kinds, list) or not set(kinds) <= known or len(kinds) < count:
            self.problems.append(
                f"layer_types must name {' or '.join(sorted(known))} {count} times"
            )
            return ()
        if "sliding_attention" not in kinds[:count]:
            return ()
        window = self.size("sliding_window")
        return tuple(window if kind == "sliding_attention" else None for kind in kinds[:count])

    def decoder(
        self,
        family: str,
        *,
        gate: tuple[str, tuple[str, ...]] = ("hidden_act", ("silu",)),
        ropes: tuple[str, ...] = ("linear", "dynamic", "yarn", "llama3"),
        partial: bool = False,
        **further: Any,
    ) -> DecoderConfig:
        """Read what all families share.

        Args:
            family: Key of ``FAMILIES``.
            gate: Key of the activation, and the values that are supported.
            ropes: Rotary scalings that the family uses.
            partial: Whether the family can rotate a part of a head.
            further: Fields of the decoder that the family read itself.
        """
        heads = self.size("num_attention_heads")
        width = self.size("hidden_size")
        keys = self.size("num_key_value_heads", default=heads)
        head_dim = self.size("head_dim", default=width // heads if heads else None)
        positions = self.size("max_position_embeddings", default=2048)
        if keys and heads % keys:
            self.problems.append(
                f"num_attention_heads {heads} is not a multiple of num_key_value_heads {keys}"
            )
        if head_dim % 2:
            self.problems.append(f"head_dim must be even for rotary positions, got {head_dim}")
        rope = read_rope(self, positions, head_dim, ropes)
        if rope.width is not None and not partial:
            share = rope.width / head_dim
            self.problems.append(f"partial_rotary_factor {share} is not supported (1 is)")
        shared: dict[str, Any] = {
            "vocab_size": self.size("vocab_size"),
            "d_model": width,
            "layer_count": self.size("num_hidden_layers"),
            "head_count": heads,
            "kv_head_count": keys,
            "head_dim": head_dim,
            "max_positions": positions,
            "activation": self.activation(*gate),
            "norm_eps": self.number("rms_norm_eps", 1e-6),
            "rope_theta": rope.theta,
            "rope_scaling": rope.scaling,
            "rotary_dim": rope.width,
            "tie_embeddings": self.flag("tie_word_embeddings"),
            "attention_bias": self.flag("attention_bias"),
            "mlp_bias": self.flag("mlp_bias"),
        }
        if "mlp_dim" not in further:
            shared["mlp_dim"] = self.size("intermediate_size")
        return DecoderConfig(family=family, **(shared | further))


def to_json(config: DecoderConfig, architecture: str, model_type: str) -> dict[str, Any]:
    """Write what all families share, as a ``config.json`` that old and new readers understand."""
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": config.mlp_dim,
        "num_hidden_layers": config.layer_count,
        "num_attention_heads": config.head_count,
        "num_key_value_heads": config.kv_head_count,
        "head_dim": config.head_dim,
        "hidden_act": WRITTEN[config.activation],
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.norm_eps,
        **rope_json(config),
        "attention_bias": config.attention_bias,
        "attention_dropout": 0.0,
        "tie_word_embeddings": config.tie_embeddings,
        "initializer_range": 0.02,
        "use_cache": True,
    }


def layer_types(config: DecoderConfig) -> list[str]:
    """Name the kind of each layer's attention."""
    windows = config.windows or (None,) * config.layer_count
    return ["full_attention" if window is None else "sliding_attention" for window in windows]


def window_of(config: DecoderConfig) -> int | None:
    """The window of the layers that have one; the same in all published families."""
    return next((window for window in config.windows if window is not None), None)
