# SPDX-License-Identifier: Apache-2.0
"""Compute logits of tiny random Llamas with transformers and torch, for the parity tests.

Needs torch, which alignax does not: run it in an environment of its own, from the repository root,

    python tests/parity/make_llama.py

and commit ``llama.npz`` and ``llama.json`` beside it. Weights are rounded to float16, so that the
files stay small; the arithmetic is float32.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

FOLDER = Path(__file__).parent
SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "tied": {
        "num_key_value_heads": 2,
        "head_dim": 8,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
    },
    "llama3": {
        "num_key_value_heads": 1,
        "head_dim": 8,
        "attention_bias": True,
        "mlp_bias": True,
        "rope_parameters": LLAMA3,
    },
    "linear": {
        "num_key_value_heads": 4,
        "attention_bias": True,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0},
    },
}


def randomise(model: LlamaForCausalLM, seed: int) -> None:
    """Give every parameter a float16 value that matters; norms lie around 1."""
    generator = np.random.default_rng(seed)
    for name, parameter in model.named_parameters():
        drawn = generator.standard_normal(tuple(parameter.shape)) * 0.3 + ("norm" in name)
        parameter.data = torch.from_numpy(drawn.astype(np.float16).astype(np.float32))
    model.tie_weights()


def main() -> None:
    """Write the two files."""
    arrays: dict[str, np.ndarray] = {}
    configs: dict[str, Any] = {}
    for seed, (variant, settings) in enumerate(VARIANTS.items()):
        config = LlamaConfig(**SIZES, **settings)
        config.architectures = ["LlamaForCausalLM"]
        model = LlamaForCausalLM(config).float().eval()
        randomise(model, seed)
        ids_bt = np.random.default_rng(100 + seed).integers(0, SIZES["vocab_size"], (2, 24))
        with torch.no_grad():
            logits_btv = model(torch.from_numpy(ids_bt)).logits
        configs[variant] = json.loads(config.to_json_string())
        arrays[f"{variant}/ids"] = ids_bt.astype(np.int32)
        arrays[f"{variant}/logits"] = logits_btv.numpy()
        for name, parameter in model.named_parameters():
            arrays[f"{variant}/weights/{name}"] = parameter.data.numpy().astype(np.float16)
    np.savez_compressed(FOLDER / "llama.npz", **arrays)
    text = json.dumps(configs, indent=1, sort_keys=True)
    (FOLDER / "llama.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
