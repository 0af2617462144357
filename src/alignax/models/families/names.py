# SPDX-License-Identifier: Apache-2.0
"""Decoder configuration → the table of tensor names that nearly all families share."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from alignax.models.config import DecoderConfig
from alignax.models.families.family import TensorName

ROTARY_BUFFERS = r".*rotary_emb\.inv_freq"
"""What old folders hold beside the weights."""

GGUF_ROTARY = (r"rope_freqs\.weight", r"rope_factors_.*")
"""What GGUF files hold beside the weights."""

_NORMS = {
    "before": (
        ("input_norm", "input_layernorm", "attn_norm"),
        ("post_norm", "post_attention_layernorm", "ffn_norm"),
    ),
    "after": (
        ("attention_out_norm", "post_attention_layernorm", "post_attention_norm"),
        ("mlp_out_norm", "post_feedforward_layernorm", "post_ffw_norm"),
    ),
    "both": (
        ("input_norm", "input_layernorm", "attn_norm"),
        ("attention_out_norm", "post_attention_layernorm", "post_attention_norm"),
        ("post_norm", "pre_feedforward_layernorm", "ffn_norm"),
        ("mlp_out_norm", "post_feedforward_layernorm", "post_ffw_norm"),
    ),
}
_QK_NORMS = (
    ("attention.q_norm", "self_attn.q_norm", "attn_q_norm"),
    ("attention.k_norm", "self_attn.k_norm", "attn_k_norm"),
)
_ATTENTION = (("q_proj", "attn_q"), ("k_proj", "attn_k"), ("v_proj", "attn_v"))
_MLP = (("gate_proj", "ffn_gate"), ("up_proj", "ffn_up"))
_ROTARY: dict[str, Any] = {"q_proj": "query", "k_proj": "key"}


def tensor_names(config: DecoderConfig) -> list[TensorName]:
    """List the tensors of a decoder whose projections are files' tensors, one each."""
    names = [*outer_names(config), *norm_names(config)]
    for ours, gguf in _ATTENTION:
        names += projection_names(config, ours, f"self_attn.{ours}", gguf)
    names += projection_names(config, "o_proj", "self_attn.o_proj", "attn_output")
    if config.experts is not None:
        return names
    for ours, gguf in _MLP:
        names += projection_names(config, ours, f"mlp.{ours}", gguf)
    return names + projection_names(config, "down_proj", "mlp.down_proj", "ffn_down")


def interleaved(config: DecoderConfig) -> list[TensorName]:
    """The same for families whose GGUF files interleave the rows of rotary heads."""
    return [
        replace(name, rotary_heads=_ROTARY.get(name.param.split(".")[-2]))
        for name in tensor_names(config)
    ]


def outer_names(config: DecoderConfig) -> list[TensorName]:
    """Embedding, last norm and head."""
    names = [
        TensorName("embed.weight", "model.embed_tokens.weight", "token_embd.weight"),
        TensorName(
            "final_norm.scale",
            "model.norm.weight",
            "output_norm.weight",
            gguf_shift=config.norm_offset,
        ),
    ]
    if config.scores:
        names.append(TensorName("score.weight", "score.weight", "cls.output.weight"))
    elif not config.tie_embeddings:
        names.append(TensorName("lm_head.weight", "lm_head.weight", "output.weight"))
    return names


def norm_names(config: DecoderConfig) -> list[TensorName]:
    """The norms of a layer; GGUF files hold their whole factor, the offset included."""
    norms = _NORMS[config.norms] + (_QK_NORMS if config.qk_norm else ())
    return [
        TensorName(
            f"layers.{ours}.scale",
            f"model.layers.{{l}}.{hf}.weight",
            f"blk.{{l}}.{gguf}.weight",
            gguf_shift=config.norm_offset,
        )
        for ours, hf, gguf in norms
    ]


def projection_names(
    config: DecoderConfig, ours: str, hf: str, gguf: str, rows: tuple[int, int, int] | None = None
) -> list[TensorName]:
    """Kernel and bias of one projection."""
    block = "attention" if ours in ("q_proj", "k_proj", "v_proj", "o_proj") else "mlp"
    where, stem, other = f"layers.{block}.{ours}", f"model.layers.{{l}}.{hf}", f"blk.{{l}}.{gguf}"
    kernel = TensorName(
        f"{where}.kernel", f"{stem}.weight", f"{other}.weight", transposed=True, rows=rows
    )
    if not config.has_bias(ours):
        return [kernel]
    return [kernel, TensorName(f"{where}.bias", f"{stem}.bias", f"{other}.bias", rows=rows)]


def expert_names(block: str, parts: Mapping[str, str]) -> list[TensorName]:
    """Router and experts, under the block's name and the names of the experts' projections."""
    stem = f"model.layers.{{l}}.{block}"
    router = TensorName(
        "layers.mlp.router.kernel",
        f"{stem}.gate.weight",
        "blk.{l}.ffn_gate_inp.weight",
        transposed=True,
    )
    return [router] + [
        TensorName(
            f"layers.mlp.{ours}.kernel",
            f"{stem}.experts.{{e}}.{theirs}.weight",
            f"blk.{{l}}.ffn_{ours.removeprefix('expert_')}_exps.weight",
            transposed=True,
        )
        for ours, theirs in parts.items()
    ]
