# SPDX-License-Identifier: Apache-2.0
"""LoRA adapter ↔ a folder in PEFT's layout.

Written folders load in PEFT as they are; folders that PEFT wrote are read as long as they are
LoRA on known projections; ranks and alphas of single modules are brought to one. What they adapt is
taken from the tensor names, not from the patterns of the configuration.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from transformers import PreTrainedTokenizerBase

from alignax.errors import ModelError
from alignax.export.card import RunFacts, model_card
from alignax.export.folder import new_folder, read_manifest, write_manifest
from alignax.export.patterns import levelled, ranks_of
from alignax.export.tokenizer import save_tokenizer
from alignax.files import write_json
from alignax.models.decoder import Decoder
from alignax.models.lora import BLOCKS, LoraSpec, adapted, adapter_to_peft

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PLAIN = {
    "peft_type": "LORA", "bias": "none", "fan_in_fan_out": False, "use_dora": False,
    "lora_bias": False, "modules_to_save": None,
    "layers_to_transform": None, "layer_replication": None, "trainable_token_indices": None,
    "target_parameters": None,
}  # fmt: skip
"""Configuration keys whose other values change what an adapter computes, and what we take."""
_NAME = re.compile(
    r"base_model\.model\.model\.layers\.\d+\.(?P<block>\w+)\.(?P<name>\w+)\.lora_[AB]\.weight"
)


def write_adapter(
    folder: Path,
    model: Decoder,
    lora: LoraSpec,
    tokenizer: PreTrainedTokenizerBase,
    facts: RunFacts,
    *,
    stop_ids: Sequence[int] = (),
) -> None:
    """Write a model's adapter.

    Args:
        folder: Target; an earlier export of the same run is replaced.
        model: Decoder that carries the adapter.
        lora: Shape of the adapter.
        tokenizer: Written beside it, with the chat template that it was trained with.
        facts: What the card and the manifest say.
        stop_ids: Ids that end an answer, for the manifest.

    Raises:
        RunError: The folder is taken, or the disk refused.
        ModelError: The model has no adapter, or values in it are not finite.
    """
    tensors = adapter_to_peft(model)
    if not tensors:
        raise ModelError("the model has no adapter to export")
    require_finite(tensors)
    size = sum(tensor.nbytes for tensor in tensors.values())
    with new_folder(Path(folder), run=facts.run, weight_bytes=size) as partial:
        save_file(tensors, partial / WEIGHTS, metadata={"format": "pt"})
        named = replace(lora, targets=tuple(adapted(model)))
        write_json(partial / CONFIG, adapter_config(named, facts.base))
        save_tokenizer(partial, tokenizer)
        card = model_card(facts, "adapter", dtype="float32")
        (partial / "README.md").write_text(card, encoding="utf-8")
        identity = {"kind": "adapter", "adapter_hash": tensors_hash(tensors)}
        write_manifest(partial, facts.to_json() | identity | {"stop_ids": list(stop_ids)})


def adapter_config(lora: LoraSpec, base: str) -> dict[str, Any]:
    """Describe an adapter as PEFT does."""
    alpha = int(lora.alpha) if float(lora.alpha).is_integer() else lora.alpha
    return PLAIN | {
        "rank_pattern": {},
        "alpha_pattern": {},
        "auto_mapping": None,
        "base_model_name_or_path": base,
        "inference_mode": True,
        "init_lora_weights": True,
        "layers_pattern": None,
        "lora_alpha": alpha,
        "lora_dropout": lora.dropout,
        "r": lora.rank,
        "revision": None,
        "target_modules": sorted(lora.names),
        "task_type": "CAUSAL_LM",
        "use_rslora": lora.rslora,
    }


def read_adapter(folder: str | Path) -> tuple[dict[str, np.ndarray], LoraSpec, str | None]:
    """Read an adapter that alignax or PEFT wrote.

    Returns:
        Tensors by PEFT name (float32), the adapter's shape, and the hash of the weights it was
        trained on (None when the folder does not say).

    Raises:
        ModelError: Files are missing or damaged, names are not PEFT's, or the adapter is of a kind
            that is not supported; all problems at once.
    """
    folder = Path(folder)
    config = _read_config(folder)
    tensors = _read_tensors(folder)
    problems = [
        f"{key} is {config[key]!r}, supported is {plain!r}"
        for key, plain in PLAIN.items()
        if config.get(key) and config[key] != plain
    ]
    ranks = ranks_of(config, tensors)
    unmatched = [name for name in sorted(tensors) if not _known(name)]
    problems += [f"not a PEFT name of a known projection: {name}" for name in unmatched]
    if not tensors:
        problems.append(f"{WEIGHTS} holds no tensors")
    problems += [
        f"{name} is {list(tensor.shape)}, {CONFIG} says rank {ranks[name]}"
        for name, tensor in sorted(tensors.items())
        if tensor.ndim != 2 or tensor.shape[0 if ".lora_A." in name else 1] != ranks[name]
    ]
    if problems:
        raise ModelError(f"adapter {folder} cannot be used", problems=problems)
    tensors, rank = levelled(config, tensors)
    alpha = float(config.get("lora_alpha", config["r"]))
    found = {match["name"] for name in tensors if (match := _NAME.fullmatch(name))}
    targets = tuple(name for name in BLOCKS if name in found)
    dropout, rslora = float(config.get("lora_dropout", 0.0)), bool(config.get("use_rslora"))
    spec = LoraSpec(rank, alpha, dropout, targets, rslora)
    base = read_manifest(folder).get("base", {})
    return tensors, spec, base.get("weights_hash")


def _known(name: str) -> bool:
    """Whether a tensor name is PEFT's for a projection of ours."""
    match = _NAME.fullmatch(name)
    return match is not None and BLOCKS.get(match["name"]) == match["block"]


def _read_config(folder: Path) -> dict[str, Any]:
    """Read ``adapter_config.json``."""
    file = folder / CONFIG
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"cannot read the adapter's {file}: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"{file} is not JSON: {error}") from error
    if not isinstance(config, dict) or not isinstance(config.get("r"), int) or config["r"] < 1:
        raise ModelError(f"{file} names no rank ('r' must be a positive whole number)")
    return config


def _read_tensors(folder: Path) -> dict[str, np.ndarray]:
    """Read ``adapter_model.safetensors`` as float32."""
    file = folder / WEIGHTS
    if not file.exists():
        found = ", ".join(sorted(path.name for path in folder.iterdir()))
        hint = "save it as safetensors (PEFT's default)" if "adapter_model.bin" in found else None
        raise ModelError(f"adapter {folder} has no {WEIGHTS}; it has {found}", hint=hint)
    try:
        tensors = load_file(file)
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"{file} ({file.stat().st_size} bytes) is damaged or cut short: {error}",
            hint="export or fetch the adapter again",
        ) from error
    return {name: tensor.astype(np.float32) for name, tensor in tensors.items()}


def tensors_hash(tensors: Mapping[str, np.ndarray]) -> str:
    """SHA-256 over names, shapes, types and bytes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, tensor.dtype.name, list(tensor.shape)]).encode())
        digest.update(np.ascontiguousarray(tensor).tobytes())
    return digest.hexdigest()


def require_finite(tensors: Mapping[str, np.ndarray]) -> None:
    """Refuse to write infinities and NaN.

    Raises:
        ModelError: Some tensors are not finite; all are listed.
    """
    problems = [
        f"{name} has values that are not finite"
        for name, tensor in tensors.items()
        if not np.isfinite(tensor.astype(np.float32, copy=False)).all()
    ]
    if problems:
        raise ModelError(
            f"{len(problems)} tensors cannot be exported",
            problems=problems,
            hint="training diverged, or the weights are out of range of float16 "
            "(--export.dtype bfloat16)",
        )
