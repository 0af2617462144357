# SPDX-License-Identifier: Apache-2.0
"""Recipe → weights, tokenizer, encoder and encoded rows; shared by all verbs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
from transformers import PreTrainedTokenizerBase

from alignax.cli import terminal
from alignax.cli.auditing import audit_rows, row_cache, shape_of
from alignax.cli.compiled import use_compilation_cache
from alignax.data.audit import DataReport
from alignax.data.chat import load_template
from alignax.data.dataset import EncodedDataset, build_dataset, split_by_prompt
from alignax.data.encode import EncodeOptions, Encoder
from alignax.errors import DataError, ModelError, UsageError
from alignax.export.folder import read_manifest
from alignax.export.peft import read_adapter
from alignax.files import cache_folder
from alignax.models.lora import LoraSpec, add_lora, peft_to_adapter
from alignax.models.reward import add_score
from alignax.models.sharding import build_mesh, place_model
from alignax.models.tokenizer import load_tokenizer
from alignax.models.weights import LoadedModel, load_model, resolve_model, stop_ids_of
from alignax.recipe import DataSection, LoraSection, MeshSection, ModelSection, Recipe
from alignax.train.reference import arrays_hash


@dataclass
class Policy:
    """A model ready to train or to run.

    Attributes:
        loaded: The base with its configuration; ``loaded.model`` carries the adapter, if any.
        tokenizer: The model's tokenizer.
        lora: Shape of the adapter, or None.
        adapter_hash: Hash of the adapter that was loaded; None for a fresh one or none.
        mesh: Device mesh.
    """

    loaded: LoadedModel
    tokenizer: PreTrainedTokenizerBase
    lora: LoraSpec | None
    adapter_hash: str | None
    mesh: jax.sharding.Mesh

    @property
    def model(self) -> Any:
        """The decoder."""
        return self.loaded.model


def load_policy(
    model: ModelSection,
    *,
    lora: LoraSection | None,
    mesh: MeshSection,
    seed: int,
    scores: bool | None = False,
) -> Policy:
    """Load the base, and the adapter that continues or a fresh one.

    Args:
        model: Which weights.
        lora: Settings of a fresh adapter; None: no fresh one.
        mesh: Devices along each axis.
        seed: Seed of a fresh adapter.
        scores: Whether a reward model is wanted, to be trained on; None: whatever it is.

    Raises:
        ModelError: A reward model where a language model is needed.
    """
    use_compilation_cache(cache_folder() / "xla")
    path = resolve_model(model.path)
    device_mesh = build_mesh(mesh.data, mesh.fsdp, mesh.tensor)
    loaded = load_model(path, dtype=model.dtype, mesh=device_mesh, quantize=model.quantize)
    if loaded.quantised is not None:
        terminal.say(str(loaded.quantised))
    for notice in loaded.notices:
        terminal.warn(notice)
    tokenizer = load_tokenizer(path)
    policy = Policy(loaded, tokenizer, None, None, device_mesh)
    if model.adapter is not None:
        _continue_adapter(policy, model, lora)
    elif lora is not None and lora.enabled:
        policy.lora = fresh_lora(lora)
        add_lora(loaded.model, policy.lora, key=jax.random.key(seed))
    if scores:
        add_score(loaded.model, beside_adapter=lora is not None and lora.enabled)
        loaded.config = loaded.model.config
    elif scores is False and loaded.config.scores:
        raise ModelError(
            f"{path} is a reward model: it scores answers and cannot write or weigh any",
            hint="use it as --judge reward:FOLDER, or with `alignax score`",
        )
    if scores or policy.lora is not None:
        place_model(loaded.model, device_mesh)
    return policy


def fresh_lora(lora: LoraSection) -> LoraSpec:
    """The shape of a fresh adapter."""
    targets: Any = lora.targets if isinstance(lora.targets, str) else tuple(lora.targets)
    return LoraSpec(lora.rank, lora.alpha, lora.dropout, targets, lora.rslora)


def adapter_folder(path: str) -> Path:
    """Find the adapter in a PEFT folder or in a run folder.

    Raises:
        ModelError: There is none.
    """
    folder = Path(path)
    for candidate in (folder, folder / "adapter", folder / "export" / "adapter"):
        if (candidate / "adapter_config.json").exists():
            return candidate
    raise ModelError(
        f"no adapter in {path} (looked for adapter_config.json)",
        hint="name a PEFT folder, or a run folder that exported one",
    )


def _continue_adapter(policy: Policy, model: ModelSection, lora: LoraSection | None) -> None:
    """Load an adapter onto the base it was trained on; explicit LoRA settings must agree."""
    folder = adapter_folder(str(model.adapter))
    tensors, spec, base_hash = read_adapter(folder)
    if base_hash is not None and base_hash != policy.loaded.weights_hash:
        trained = read_manifest(folder)["base"].get("quantize", "none")
        raise ModelError(
            f"adapter {folder} was trained on other weights: it names base {base_hash} "
            f"(model.quantize {trained}), {policy.loaded.path} is {policy.loaded.weights_hash} "
            f"(model.quantize {model.quantize})",
            hint=f"load it with --model.quantize {trained}"
            if trained != model.quantize
            else "load it on the model that it was trained on",
        )
    if lora is not None:
        given = {
            name: getattr(lora, name)
            for name in lora.model_fields_set & {"rank", "alpha", "rslora", "targets"}
        }
        have = {
            "rank": spec.rank, "alpha": spec.alpha, "rslora": spec.rslora,
            "targets": list(spec.targets),
        }  # fmt: skip
        differ = [
            f"lora.{name}: the adapter has {have[name]!r}, the recipe {value!r}"
            for name, value in given.items()
            if value != have[name] and not (name == "targets" and set(value) == set(have[name]))
        ]
        if differ:
            raise UsageError(
                "LoRA settings differ from the adapter that is continued", problems=differ
            )
        spec = replace(spec, dropout=lora.dropout)
        terminal.say(f"adapter {folder}: rank {spec.rank}, alpha {spec.alpha}, as it was trained")
    add_lora(policy.model, spec, key=jax.random.key(0))
    peft_to_adapter(policy.model, tensors)
    policy.lora = spec
    policy.adapter_hash = arrays_hash(tensors)


def build_encoder(policy: Policy, data: DataSection) -> Encoder:
    """Probe the template and make the encoder that training, scoring and generation share."""
    if data.chat_template:
        load_template(policy.tokenizer, data.chat_template)
    options = EncodeOptions.from_section(data)
    return Encoder(policy.tokenizer, options, stop_ids=policy.loaded.stop_ids)


def tokenizer_encoder(recipe: Recipe) -> tuple[PreTrainedTokenizerBase, Encoder]:
    """Make an encoder without loading weights, for verbs that look at rows only."""
    path = resolve_model(recipe.model.path)
    tokenizer = load_tokenizer(path)
    if recipe.data.chat_template:
        load_template(tokenizer, recipe.data.chat_template)
    options = EncodeOptions.from_section(recipe.data)
    return tokenizer, Encoder(tokenizer, options, stop_ids=stop_ids_of(path))


def load_rows(
    data: DataSection,
    encoder: Encoder,
    *,
    kind: str,
    paths: Any = None,
    strict: bool = True,
    excluded: Mapping[int, str] | None = None,
) -> tuple[EncodedDataset, DataReport]:
    """Read, audit and encode rows; ``strict`` refuses a set of which too much is dropped."""
    return build_dataset(
        paths if paths is not None else data.path,
        shape=shape_of(data),
        excluded=excluded or {},
        format=data.format,
        split=data.split,
        encoder=encoder,
        kind=kind,
        cache_dir=row_cache(data),
        max_rows=data.max_rows,
        max_bad_share=data.max_bad_share if strict else None,
        progress=terminal.counter("rows encoded"),
    )


def warn_of_positions(policy: Policy, rows: EncodedDataset | None) -> None:
    """Say so when rows are longer than the model was made for."""
    if rows is None or not len(rows):
        return
    longest = rows.lengths[:, 0] + rows.lengths[:, 1:].max(1)
    most = policy.loaded.config.max_positions
    if longest.max() > most:
        worst = int(longest.argmax())
        terminal.warn(
            f"{int((longest > most).sum())} rows have more tokens than the model's {most} "
            f"positions (most: {rows.places[worst]} with {longest.max()}), where it was never "
            f"trained; --data.max_length {most} cuts them"
        )


def load_train_and_eval(
    data: DataSection, encoder: Encoder, *, kind: str
) -> tuple[EncodedDataset, EncodedDataset | None, dict[str, Any]]:
    """Load the training rows and the held-out rows: a file of their own, or a split by prompt.

    Returns:
        Training rows, held-out rows (None for none), and the content of ``data_report.json``.
    """
    audited = audit_rows(data, kind=kind)
    rows, report = load_rows(data, encoder, kind=kind, excluded=audited.excluded)
    reports: dict[str, Any] = {"train": {**report.to_json(), "audit": audited.brief()}}
    if data.eval_path is not None:
        held_out, eval_report = load_rows(data, encoder, kind=kind, paths=data.eval_path)
        reports["eval"] = eval_report.to_json()
        known = set(rows.prompt_hashes)
        shared = sum(prompt in known for prompt in held_out.prompt_hashes)
        if shared:
            terminal.warn(
                f"{shared} of {len(held_out)} held-out rows have a prompt that is trained on: "
                "their figures will be too good"
            )
        train = rows
        if data.max_eval_rows is not None:
            held_out = held_out.select(range(min(data.max_eval_rows, len(held_out))))
    elif data.eval_fraction == 0:
        train, held_out = rows, None
    else:
        train, held_out = split_by_prompt(rows, data.eval_fraction, data.max_eval_rows)
    counts = {"train_rows": len(train), "eval_rows": len(held_out) if held_out else 0}
    reports["split"] = counts | {"by": "file" if data.eval_path else "prompt hash"}
    if not len(train):
        raise DataError(
            f"no training rows are left of {data.path}: {counts}",
            hint=f"lower data.eval_fraction ({data.eval_fraction}), or give held-out rows of their "
            "own with --data.eval_path",
        )
    if held_out is not None and not len(held_out):
        prompts = len(set(rows.prompt_hashes))
        terminal.warn(
            f"no held-out rows: {data.eval_fraction:.0%} of {len(rows)} rows with {prompts} "
            "different prompts are less than a prompt's rows; the run will not be evaluated"
        )
        held_out = None
    return train, held_out, reports
