# SPDX-License-Identifier: Apache-2.0
"""Compute logits of tiny random models of every family with transformers and torch.

Needs torch, which alignax does not: run it in an environment of its own, from the repository root,

    python -m tests.parity.make_families

and commit ``families.npz`` and ``families.json`` beside it. Every feature is on: windows and
scalings shorter than the sequences, biases that are not 0, norms that are not 1. Weights are
rounded to float16, so that the files stay small; the arithmetic is float32.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

FOLDER = Path(__file__).parent
SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LENGTH = 40
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 200.0,
    "short_factor": [1.0, 1.5, 2.0],
    "long_factor": [1.5, 3.0, 6.0],
    "original_max_position_embeddings": 16,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "llama-yarn": {
        "model_type": "llama",
        "head_dim": 8,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 200.0, "factor": 4.0, "beta_fast": 4.0,
            "original_max_position_embeddings": 16,
        },
    },
    "llama-dynamic": {
        "model_type": "llama",
        "head_dim": 8,
        "max_position_embeddings": 24,
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 3.0},
    },
    "mistral": {
        "model_type": "mistral",
        "head_dim": 8,
        "sliding_window": 6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
    },
    "qwen2": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 6,
        "max_window_layers": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 200.0},
    },
    "qwen2-yarn": {
        "model_type": "qwen2",
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1000.0, "factor": 2.0,
            "original_max_position_embeddings": 32,
        },
    },
    "qwen3": {
        "model_type": "qwen3",
        "head_dim": 6,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
    },
    "qwen3-biased": {
        "model_type": "qwen3",
        "head_dim": 8,
        "attention_bias": True,
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 2,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 300.0, "factor": 2.0},
    },
    "gemma": {
        "model_type": "gemma",
        "head_dim": 6,
        "num_key_value_heads": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
    },
    "gemma2": {
        "model_type": "gemma2",
        "head_dim": 8,
        "sliding_window": 6,
        "query_pre_attn_scalar": 8,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
    },
    "gemma3": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 7,
        "head_dim": 8,
        "sliding_window": 6,
        "query_pre_attn_scalar": 8,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 1000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    },
    "gemma3-stretched": {
        "model_type": "gemma3_text",
        "head_dim": 8,
        "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "query_pre_attn_scalar": 5,
        "final_logit_softcapping": 4.0,
        "attention_bias": True,
        "tie_word_embeddings": False,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        },
    },
    "smollm3": {
        "model_type": "smollm3",
        "no_rope_layer_interval": 2,
        "num_hidden_layers": 4,
        "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
    },
    "smollm3-windowed": {
        "model_type": "smollm3",
        "no_rope_layers": [1, 0, 1],
        "use_sliding_window": True,
        "sliding_window": 6,
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": False,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 300.0, "factor": 2.0,
            "original_max_position_embeddings": 16,
        },
    },
    "olmo2": {
        "model_type": "olmo2",
        "attention_bias": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
    },
    "phi3": {
        "model_type": "phi3",
        "sliding_window": 12,
        "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
    },
    "phi3-longrope": {
        "model_type": "phi3",
        "hidden_size": 32,
        "tie_word_embeddings": True,
        "original_max_position_embeddings": 16,
        "rope_parameters": LONGROPE | {"partial_rotary_factor": 0.75},
    },
    "phi3-short": {
        "model_type": "phi3",
        "hidden_size": 24,
        "original_max_position_embeddings": 128,
        "rope_parameters": LONGROPE | {"original_max_position_embeddings": 128},
    },
    "mixtral": {
        "model_type": "mixtral",
        "head_dim": 8,
        "sliding_window": 6,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
    },
    "qwen3-moe": {
        "model_type": "qwen3_moe",
        "head_dim": 8,
        "moe_intermediate_size": 12,
        "num_experts": 5,
        "num_experts_per_tok": 3,
        "norm_topk_prob": True,
        "attention_bias": True,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
    },
    "qwen3-moe-plain": {
        "model_type": "qwen3_moe",
        "head_dim": 8,
        "moe_intermediate_size": 12,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "norm_topk_prob": False,
        "use_sliding_window": True,
        "sliding_window": 6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
    },
    "granite": {
        "model_type": "granite",
        "attention_bias": True,
        "mlp_bias": True,
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.2,
        "residual_multiplier": 0.4,
        "logits_scaling": 1.7,
        "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
    },
}  # fmt: skip


def build(variant: str, seed: int) -> Any:
    """Make a model whose every parameter matters; norms lie around 1, those with an offset at 0."""
    settings = dict(VARIANTS[variant])
    config = AutoConfig.for_model(settings.pop("model_type"), **{**SIZES, **settings})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    config.architectures = [type(model).__name__]
    generator = np.random.default_rng(seed)
    offset = config.model_type.startswith("gemma")
    for name, parameter in model.named_parameters():
        drawn = generator.standard_normal(tuple(parameter.shape)) * 0.3
        drawn += ("norm" in name) and not offset
        parameter.data = torch.from_numpy(drawn.astype(np.float16).astype(np.float32))
    model.tie_weights()
    return model


def logits_of(model: Any, ids_bt: np.ndarray) -> np.ndarray:
    """Logits of plain sequences."""
    with torch.no_grad():
        return model(torch.from_numpy(ids_bt.astype(np.int64)), use_cache=False).logits.numpy()


def written(model: Any, folder: Path) -> dict[str, np.ndarray]:
    """The tensors that ``save_pretrained`` writes, which for experts are not the model's own."""
    from safetensors.numpy import load_file

    model.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def main() -> None:
    """Write the two files."""
    import tempfile

    arrays: dict[str, np.ndarray] = {}
    configs: dict[str, Any] = {}
    for seed, variant in enumerate(VARIANTS):
        model = build(variant, seed)
        ids_bt = np.random.default_rng(100 + seed).integers(3, SIZES["vocab_size"], (2, LENGTH))
        configs[variant] = json.loads(model.config.to_json_string())
        arrays[f"{variant}/ids"] = ids_bt.astype(np.int32)
        arrays[f"{variant}/logits"] = logits_of(model, ids_bt)
        with tempfile.TemporaryDirectory() as folder:
            for name, values in written(model, Path(folder)).items():
                arrays[f"{variant}/weights/{name}"] = values.astype(np.float16)
    np.savez_compressed(FOLDER / "families.npz", **arrays)
    text = json.dumps(configs, indent=1, sort_keys=True)
    (FOLDER / "families.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
