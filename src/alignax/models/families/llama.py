# SPDX-License-Identifier: Apache-2.0
"""The Llama family: Llama 1 to 3.x, SmolLM, TinyLlama and others of the same architecture.

``config.json`` is understood in the old spelling (``rope_theta``, ``rope_scaling``) and in the one
of transformers 5 (``rope_parameters``). GGUF files do not state the parameters of Llama 3's rotary
scaling but carry the resulting factors, from which they are recovered.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from alignax.models.config import DecoderConfig, RopeScaling
from alignax.models.families.family import Config, Family, TensorName, read_number, read_size
from alignax.models.gguf import GGUFFile

_DEFAULT_THETA = 10_000.0
_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "d_model",
    "intermediate_size": "mlp_dim",
    "num_hidden_layers": "layer_count",
    "num_attention_heads": "head_count",
}
_ROPE_FACTORS = "rope_freqs.weight"


def from_hf(config: Config, problems: list[str]) -> DecoderConfig | None:
    """Read a ``config.json``; None when problems were found."""
    before = len(problems)
    sizes: dict[str, Any] = {ours: read_size(config, key, problems) for key, ours in _SIZES.items()}
    heads = sizes["head_count"]
    sizes["kv_head_count"] = read_size(config, "num_key_value_heads", problems, default=heads)
    sizes["head_dim"] = read_size(
        config, "head_dim", problems, default=sizes["d_model"] // heads if heads else None
    )
    sizes["max_positions"] = read_size(config, "max_position_embeddings", problems, default=2048)
    if sizes["kv_head_count"] and heads % sizes["kv_head_count"]:
        problems.append(
            f"num_attention_heads {heads} is not a multiple of "
            f"num_key_value_heads {sizes['kv_head_count']}"
        )
    if sizes["head_dim"] % 2:
        problems.append(f"head_dim must be even for rotary positions, got {sizes['head_dim']}")
    if (activation := config.get("hidden_act", "silu")) not in ("silu", "swish"):
        problems.append(f"hidden_act {activation!r} is not supported (silu is)")
    if config.get("quantization_config"):
        problems.append("quantization_config: quantised folders are not supported; dequantise it")
    norm_eps = read_number(config, "rms_norm_eps", 1e-6, problems)
    theta, scaling = _read_rope(config, sizes["max_positions"], problems)
    if len(problems) > before:
        return None
    return DecoderConfig(
        family="llama",
        norm_eps=norm_eps,
        rope_theta=theta,
        rope_scaling=scaling,
        tie_embeddings=bool(config.get("tie_word_embeddings", False)),
        attention_bias=bool(config.get("attention_bias", False)),
        mlp_bias=bool(config.get("mlp_bias", False)),
        **sizes,
    )


def _read_rope(
    config: Config, max_positions: int, problems: list[str]
) -> tuple[float, RopeScaling | None]:
    """Read base and stretch of the rotary frequencies, in either spelling."""
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    nested = config.get("rope_parameters") or {}
    if not isinstance(rope, Mapping) or not isinstance(nested, Mapping):
        problems.append(f"rope_scaling or rope_parameters must be an object, got {rope!r}")
        return _DEFAULT_THETA, None
    merged = dict(config) | {k: v for k, v in {**nested, **rope}.items() if v is not None}
    theta = read_number(merged, "rope_theta", _DEFAULT_THETA, problems)
    if (partial := merged.get("partial_rotary_factor") or 1.0) != 1.0:
        problems.append(f"partial_rotary_factor {partial} is not supported (1 is)")
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return theta, None
    if kind not in ("linear", "llama3"):
        problems.append(f"rope type {kind!r} is not supported (default, linear and llama3 are)")
        return theta, None
    wanted = ["factor"] + ["low_freq_factor", "high_freq_factor"] * (kind == "llama3")
    if missing := [key for key in wanted if rope.get(key) is None]:
        problems.append(f"rope type {kind!r} needs {', '.join(missing)}, got {dict(rope)}")
        return theta, None
    factor, *bounds = (read_number(rope, key, 1.0, problems) for key in wanted)
    if kind == "linear":
        return theta, RopeScaling("linear", factor)
    key = "original_max_position_embeddings"
    original = read_size(rope, key, problems, default=max_positions or 1)
    return theta, RopeScaling("llama3", factor, bounds[0], bounds[1], original)


def to_hf(config: DecoderConfig) -> dict[str, Any]:
    """Write the configuration as a ``config.json`` that old and new readers understand."""
    rope: dict[str, Any] = {"rope_type": "default"}
    if scaling := config.rope_scaling:
        rope = {"rope_type": scaling.kind, "factor": scaling.factor}
        if scaling.kind == "llama3":
            rope |= {
                "low_freq_factor": scaling.low_freq_factor,
                "high_freq_factor": scaling.high_freq_factor,
                "original_max_position_embeddings": scaling.original_positions,
            }
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": config.mlp_dim,
        "num_hidden_layers": config.layer_count,
        "num_attention_heads": config.head_count,
        "num_key_value_heads": config.kv_head_count,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": rope if config.rope_scaling else None,
        "rope_parameters": rope | {"rope_theta": config.rope_theta},
        "attention_bias": config.attention_bias,
        "attention_dropout": 0.0,
        "mlp_bias": config.mlp_bias,
        "tie_word_embeddings": config.tie_embeddings,
        "initializer_range": 0.02,
        "use_cache": True,
    }


def from_gguf(file: GGUFFile, problems: list[str]) -> DecoderConfig | None:
    """Read the metadata of a GGUF file; None when problems were found."""
    before = len(problems)
    meta = {
        key.removeprefix("llama."): value
        for key, value in file.metadata.items()
        if key.startswith("llama.")
    }
    meta.setdefault("vocab_size", len(file.metadata.get("tokenizer.ggml.tokens", ())))
    keys = ("vocab_size", "embedding_length", "feed_forward_length", "block_count")
    vocab_size, d_model, mlp_dim, layer_count = (read_size(meta, key, problems) for key in keys)
    heads = read_size(meta, "attention.head_count", problems)
    kv_heads = read_size(meta, "attention.head_count_kv", problems, default=heads)
    width = meta.get("rope.dimension_count") or (d_model // heads if heads else None)
    head_dim = read_size(meta, "attention.key_length", problems, default=width)
    if meta.get("rope.dimension_count", head_dim) != head_dim:
        problems.append(f"rope.dimension_count {meta['rope.dimension_count']} is not {head_dim}")
    if meta.get("expert_count"):
        problems.append(f"expert_count {meta['expert_count']}: mixtures of experts")
    theta = read_number(meta, "rope.freq_base", _DEFAULT_THETA, problems)
    norm_eps = read_number(meta, "attention.layer_norm_rms_epsilon", 1e-5, problems)
    scaling = _gguf_scaling(file, meta, theta, head_dim, problems)
    if len(problems) > before:
        return None
    return DecoderConfig(
        family="llama",
        vocab_size=vocab_size,
        d_model=d_model,
        mlp_dim=mlp_dim,
        layer_count=layer_count,
        head_count=heads,
        kv_head_count=kv_heads,
        head_dim=head_dim,
        norm_eps=_decimal(norm_eps),
        rope_theta=theta,
        rope_scaling=scaling,
        tie_embeddings="output.weight" not in file.tensors,
        attention_bias="blk.0.attn_q.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
        max_positions=read_size(meta, "context_length", [], default=2048),
    )


def _decimal(value: float) -> float:
    """Undo the float32 noise of a short decimal number: 9.9999997e-06 → 1e-05."""
    return float(f"{value:.6g}")


def _gguf_scaling(
    file: GGUFFile, meta: Config, theta: float, head_dim: int, problems: list[str]
) -> RopeScaling | None:
    """Read the rotary scaling: linear from metadata, llama3 from the tensor of its factors."""
    if _ROPE_FACTORS in file.tensors:
        factors = file.tensors[_ROPE_FACTORS].dequantised()
        scaling = RopeScaling("llama3", _decimal(float(factors.max())))
        if not np.allclose(factors, llama3_divisors(scaling, theta, head_dim), rtol=1e-3):
            problems.append(f"tensor {_ROPE_FACTORS} holds factors other than Llama 3's")
        return scaling
    kind = meta.get("rope.scaling.type", "none")
    if kind == "linear":
        return RopeScaling("linear", read_number(meta, "rope.scaling.factor", 1.0, problems))
    if kind != "none":
        problems.append(f"rope.scaling.type {kind!r} is not supported (linear and llama3 are)")
    return None


def llama3_divisors(scaling: RopeScaling, theta: float, head_dim: int) -> np.ndarray:
    """What Llama 3's scaling divides each rotary frequency by: 1 for fast, ``factor`` for slow."""
    wavelength = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    keep = np.clip((scaling.original_positions / wavelength - low) / (high - low), 0, 1)
    return 1 / ((1 - keep) / scaling.factor + keep)


def tensor_names(config: DecoderConfig) -> list[TensorName]:
    """List the tensors of a decoder of this configuration."""
    names = [
        TensorName("embed.weight", "model.embed_tokens.weight", "token_embd.weight"),
        TensorName("final_norm.scale", "model.norm.weight", "output_norm.weight"),
    ]
    if not config.tie_embeddings:
        names.append(TensorName("lm_head.weight", "lm_head.weight", "output.weight"))
    for ours, hf, gguf in _NORMS:
        hf_name = f"model.layers.{{l}}.{hf}.weight"
        names.append(TensorName(f"{ours}.scale", hf_name, f"blk.{{l}}.{gguf}.weight"))
    for ours, hf, gguf, bias in _PROJECTIONS:
        heads = _ROTARY.get(ours)
        where, stem, other = ours, f"model.layers.{{l}}.{hf}", f"blk.{{l}}.{gguf}"
        kernel = TensorName(f"{where}.kernel", f"{stem}.weight", f"{other}.weight", True, heads)
        names.append(kernel)
        if config.attention_bias if bias == "attention" else config.mlp_bias:
            names.append(TensorName(f"{where}.bias", f"{stem}.bias", f"{other}.bias", False, heads))
    return names


_NORMS = (
    ("layers.input_norm", "input_layernorm", "attn_norm"),
    ("layers.post_norm", "post_attention_layernorm", "ffn_norm"),
)
_ROTARY: dict[str, Any] = {"layers.attention.q_proj": "query", "layers.attention.k_proj": "key"}
_PROJECTIONS = (
    ("layers.attention.q_proj", "self_attn.q_proj", "attn_q", "attention"),
    ("layers.attention.k_proj", "self_attn.k_proj", "attn_k", "attention"),
    ("layers.attention.v_proj", "self_attn.v_proj", "attn_v", "attention"),
    ("layers.attention.o_proj", "self_attn.o_proj", "attn_output", "attention"),
    ("layers.mlp.gate_proj", "mlp.gate_proj", "ffn_gate", "mlp"),
    ("layers.mlp.up_proj", "mlp.up_proj", "ffn_up", "mlp"),
    ("layers.mlp.down_proj", "mlp.down_proj", "ffn_down", "mlp"),
)

LLAMA = Family(
    name="llama",
    model_types=("llama",),
    architectures=("LlamaForCausalLM",),
    gguf_architecture="llama",
    from_hf=from_hf,
    from_gguf=from_gguf,
    to_hf=to_hf,
    tensor_names=tensor_names,
    ignored=(r".*rotary_emb\.inv_freq", r"rope_freqs\.weight", r"rope_factors_.*"),
)
