# SPDX-License-Identifier: Apache-2.0
"""A trained decoder → a complete Hugging Face folder, its adapter folded in.

The folder holds safetensors (in shards above a size limit, with their index), ``config.json``,
``generation_config.json`` with every stop id, the tokenizer with its chat template, a model card,
and the manifest ``alignax.json``.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from qwix import QArray
from safetensors.numpy import save_file
from transformers import PreTrainedTokenizerBase

from alignax.export.card import RunFacts, model_card
from alignax.export.folder import new_folder, write_manifest
from alignax.export.peft import require_finite, tensors_hash
from alignax.export.reward import scoring_json, with_padding
from alignax.export.tokenizer import save_tokenizer
from alignax.files import write_json
from alignax.models.decoder import Decoder
from alignax.models.lora import merged
from alignax.models.weights import LoadedModel, export_tensors

SHARD_BYTES = 5 * 10**9
"""Size above which the weights are spread over several files."""


def write_merged(
    folder: Path,
    model: Decoder,
    loaded: LoadedModel,
    tokenizer: PreTrainedTokenizerBase,
    facts: RunFacts,
    *,
    stop_ids: Sequence[int],
    dtype: str,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write a complete model.

    Args:
        folder: Target; an earlier export of the same run is replaced.
        model: The trained decoder; an adapter that it carries is folded in.
        loaded: What training started from: configuration and generation configuration.
        tokenizer: Tokenizer with the chat template that was trained with.
        facts: What the card and the manifest say.
        stop_ids: Ids that end an answer, the template's own first.
        dtype: Dtype of the written weights.
        shard_bytes: Largest file of weights.

    Raises:
        RunError: The folder is taken, or the disk refused.
        ModelError: Values are not finite in this dtype.
    """
    tensors = export_tensors(folded(model, dtype))
    require_finite(tensors)
    stops = list(dict.fromkeys([*stop_ids, *loaded.stop_ids]))
    size = sum(tensor.nbytes for tensor in tensors.values())
    with new_folder(Path(folder), run=facts.run, weight_bytes=size) as partial:
        write_shards(partial, tensors, shard_bytes)
        config = config_json(loaded.hf_config, stops, dtype)
        if model.config.scores:
            tokenizer = with_padding(tokenizer, stops)
            config |= scoring_json(loaded.family, tokenizer)
        write_json(partial / "config.json", config)
        generation = generation_json(loaded, tokenizer, stops)
        write_json(partial / "generation_config.json", generation)
        save_tokenizer(partial, tokenizer)
        card = model_card(facts, "merged", dtype=dtype)
        (partial / "README.md").write_text(card, encoding="utf-8")
        identity = {"kind": "merged", "dtype": dtype, "tensors_hash": tensors_hash(tensors)}
        write_manifest(partial, facts.to_json() | identity | {"stop_ids": stops})


def folded(model: Decoder, dtype: str) -> Decoder:
    """Fold the adapter in and round once, to the dtype that is exported.

    Weights that are kept as codes are read back in float32 for it.
    """
    wide = cast(model, "float32") if dtype == "float32" else model
    return cast(merged(wide, jnp.dtype(dtype)), dtype)


def cast(model: Decoder, dtype: str) -> Decoder:
    """Copy a decoder with its weights in another dtype; codes and an adapter stay as they are."""
    graphdef, weights, rest = nnx.split(model, nnx.Param, ...)

    def of_dtype(leaf: Any) -> Any:
        return leaf if isinstance(leaf, QArray) else leaf.astype(jnp.dtype(dtype))

    weights = jax.tree.map(of_dtype, weights, is_leaf=lambda leaf: isinstance(leaf, QArray))
    return nnx.merge(graphdef, weights, rest)


def write_shards(folder: Path, tensors: Mapping[str, np.ndarray], shard_bytes: int) -> None:
    """Write one safetensors file, or several with an index."""
    shards: list[dict[str, np.ndarray]] = [{}]
    filled = 0
    for name, tensor in tensors.items():
        if shards[-1] and filled + tensor.nbytes > shard_bytes:
            shards.append({})
            filled = 0
        shards[-1][name] = tensor
        filled += tensor.nbytes
    if len(shards) == 1:
        save_file(shards[0], folder / "model.safetensors", metadata={"format": "pt"})
        return
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(shard, file)
    total = {"total_size": sum(tensor.nbytes for tensor in tensors.values())}
    index = {"metadata": total, "weight_map": dict(sorted(places.items()))}
    write_json(folder / "model.safetensors.index.json", index)


def config_json(base: Mapping[str, Any], stops: Sequence[int], dtype: str) -> dict[str, Any]:
    """Take over the base's configuration; dtype and stop ids are those of the export."""
    kept = {key: value for key, value in base.items() if key != "_name_or_path"}
    # Readers of transformers 4 look for the older key.
    return kept | {"dtype": dtype, "torch_dtype": dtype} | _stops(stops)


def generation_json(
    loaded: LoadedModel, tokenizer: PreTrainedTokenizerBase, stops: Sequence[int]
) -> dict[str, Any]:
    """Take over the base's generation settings, with every stop id."""
    named = {"bos_token_id": tokenizer.bos_token_id, "pad_token_id": tokenizer.pad_token_id}
    defaults = {key: value for key, value in named.items() if value is not None}
    return defaults | loaded.generation_config | _stops(stops)


def _stops(stops: Sequence[int]) -> dict[str, Any]:
    """Write stop ids as configurations do: a number, or a list."""
    if not stops:
        return {}
    return {"eos_token_id": stops[0] if len(stops) == 1 else list(stops)}
