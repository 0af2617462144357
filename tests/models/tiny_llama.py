# SPDX-License-Identifier: Apache-2.0
"""Tiny random Llamas with known logits, written as Hugging Face folders and as GGUF files."""

import json
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import save_file

from alignax.models.families import FAMILIES

PARITY = Path(__file__).parents[1] / "parity"
VARIANTS = ("tied", "llama3", "linear")


def config_of(variant):
    """The variant's config.json."""
    return json.loads((PARITY / "llama.json").read_text(encoding="utf-8"))[variant]


def arrays_of(variant):
    """Token ids, expected logits and weights (float32)."""
    with np.load(PARITY / "llama.npz") as stored:
        mine = {
            name.removeprefix(f"{variant}/"): stored[name]
            for name in stored
            if name.startswith(f"{variant}/")
        }
    weights = {
        name.removeprefix("weights/"): values.astype(np.float32)
        for name, values in mine.items()
        if name.startswith("weights/")
    }
    return mine["ids"], mine["logits"], weights


def write_folder(folder, variant="tied", *, shards=1, dtype=np.float32, changes=None, drop=()):
    """Write a Hugging Face folder; ``changes`` alter the configuration (None removes a key)."""
    folder.mkdir(exist_ok=True)
    config = config_of(variant) | (changes or {})
    config = {key: value for key, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    weights = {n: v.astype(dtype) for n, v in arrays_of(variant)[2].items() if n not in drop}
    if shards == 1:
        save_file(weights, folder / "model.safetensors")
        return folder
    names = sorted(weights)
    index = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = names[shard::shards]
        save_file({name: weights[name] for name in part}, folder / file)
        index |= dict.fromkeys(part, file)
    text = json.dumps({"metadata": {}, "weight_map": index})
    (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")
    return folder


def interleave(weight, head_count):
    """Store the rows of each head as llama.cpp does: (0, half, 1, half + 1, …)."""
    heads = np.split(weight, head_count)
    half = len(heads[0]) // 2
    order = [row for pair in range(half) for row in (pair, pair + half)]
    return np.concatenate([head[order] for head in heads])


def write_gguf(path, variant="tied", *, architecture="llama", metadata=(), tensors=None):
    """Write the variant as a GGUF file with float32 tensors."""
    hf = config_of(variant)
    config = FAMILIES["llama"].from_hf(hf, [])
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_vocab_size(config.vocab_size)
    writer.add_embedding_length(config.d_model)
    writer.add_feed_forward_length(config.mlp_dim)
    writer.add_block_count(config.layer_count)
    writer.add_head_count(config.head_count)
    writer.add_head_count_kv(config.kv_head_count)
    writer.add_key_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_context_length(config.max_positions)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(3)
    for add, *arguments in metadata:
        getattr(writer, add)(*arguments)
    weights = arrays_of(variant)[2]
    for name in FAMILIES["llama"].tensor_names(config):
        heads = {"query": config.head_count, "key": config.kv_head_count}.get(name.rotary_heads)
        for layer in range(config.layer_count if name.stacked else 1):
            values = weights[name.hf.format(l=layer)]
            values = interleave(values, heads) if heads else values
            writer.add_tensor(name.gguf.format(l=layer), values)
    for tensor, values in (tensors or {}).items():
        writer.add_tensor(tensor, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Path(path)
