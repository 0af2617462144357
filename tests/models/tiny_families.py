# SPDX-License-Identifier: Apache-2.0
"""Tiny random models of every family with known logits, as folders and as GGUF files."""

import functools
import json
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from alignax.models.families import FAMILIES
from tests.models.tiny_llama import interleave

PARITY = Path(__file__).parents[1] / "parity"
CONFIGS = json.loads((PARITY / "families.json").read_text(encoding="utf-8"))
VARIANTS = tuple(CONFIGS)


def family_of(variant):
    """The variant's family."""
    kind = CONFIGS[variant]["model_type"]
    return next(family for family in FAMILIES.values() if kind in family.model_types)


def decoder_config(variant, **changes):
    """The variant's decoder configuration; ``changes`` are of its config.json."""
    problems = []
    config = family_of(variant).from_hf(CONFIGS[variant] | changes, problems)
    assert not problems, problems
    return config


@functools.cache
def arrays_of(variant):
    """Token ids, expected logits and weights (float32)."""
    with np.load(PARITY / "families.npz") as stored:
        mine = {
            n.removeprefix(f"{variant}/"): stored[n] for n in stored if n.startswith(f"{variant}/")
        }
    weights = {
        name.removeprefix("weights/"): values.astype(np.float32)
        for name, values in mine.items()
        if name.startswith("weights/")
    }
    return mine["ids"], mine["logits"], weights


def write_folder(folder, variant, *, shards=1, dtype=np.float32, edit=dict, prefix=""):
    """Write a Hugging Face folder; ``edit`` changes the tensors before they are written."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIGS[variant]), encoding="utf-8")
    weights = {prefix + n: v.astype(dtype) for n, v in edit(arrays_of(variant)[2]).items()}
    if shards == 1:
        save_file(weights, folder / "model.safetensors")
        return folder
    index = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = sorted(weights)[shard::shards]
        save_file({name: weights[name] for name in part}, folder / file)
        index |= dict.fromkeys(part, file)
    text = json.dumps({"metadata": {}, "weight_map": index})
    (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")
    return folder


def write_gguf(path, variant, *, metadata=()):
    """Write the variant as llama.cpp's converter does: offset norms whole, llama's rows paired."""
    config, family = decoder_config(variant), family_of(variant)
    writer = gguf.GGUFWriter(path, family.gguf_architecture)
    writer.add_vocab_size(config.vocab_size)
    writer.add_embedding_length(config.d_model)
    writer.add_feed_forward_length(config.mlp_dim)
    writer.add_block_count(config.layer_count)
    writer.add_head_count(config.head_count)
    writer.add_head_count_kv(config.kv_head_count)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_context_length(config.max_positions)
    writer.add_eos_token_id(2)
    for add, *arguments in metadata:
        getattr(writer, add)(*arguments)
    weights = arrays_of(variant)[2]
    for name in family.tensor_names(config):
        heads = {"query": config.head_count, "key": config.kv_head_count}.get(name.rotary_heads)
        for layer in range(config.layer_count if name.stacked else 1):
            values = weights[name.hf.format(l=layer)] + np.float32(name.gguf_shift)
            values = interleave(values, heads) if heads else values
            writer.add_tensor(name.gguf.format(l=layer), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Path(path)


DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
