# SPDX-License-Identifier: Apache-2.0
"""The one schema behind recipe files, dotted flags and defaults.

Flags win over the recipe file, which wins over the defaults. Unknown keys are errors with a
suggestion. Every field's description is what ``--help`` prints.
"""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from alignax.errors import UsageError
from alignax.reasons import parse_filters
from alignax.sections import GuardsSection, LossSection, ReferenceSection, Section


class ModelSection(Section):
    """Which weights to start from."""

    path: str = Field(
        default="",
        description="Hugging Face folder, GGUF file, 'demo' (SmolLM2-135M), or 'demo-gemma' (270M)",
    )
    adapter: str | None = Field(
        default=None, description="adapter to continue from: PEFT folder or run"
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        default="float32", description="dtype of the base"
    )
    quantize: Literal["none", "nf4", "int4", "int8", "fp8"] = Field(
        default="none",
        description="keep the projections of the frozen base as codes of 4 or 8 bits (QLoRA)",
    )
    attention: Literal["auto", "dense", "tiled", "pallas"] = Field(
        default="auto",
        description="auto: pallas kernels on TPU and GPU, checked first; tiled elsewhere",
    )


class DataSection(Section):
    """Which rows, and how they become tokens."""

    path: str | list[str] = Field(default="", description="file, glob or hub id with training rows")
    eval_path: str | list[str] | None = Field(
        default=None, description="held-out rows; else a split"
    )
    format: str = Field(default="auto", description="name of the row format, or 'auto'")
    split: str = Field(default="train", description="split of a hub data set")
    eval_fraction: float = Field(
        default=0.1, ge=0, lt=1, description="share of prompts held out (by prompt hash)"
    )
    max_eval_rows: int | None = Field(default=None, ge=1, description="cap on held-out rows")
    max_rows: int | None = Field(default=None, ge=1, description="use only the first rows")
    max_length: int = Field(default=512, ge=2, description="tokens of prompt + one answer, at most")
    overlong: Literal["truncate", "drop", "error"] = Field(
        default="truncate", description="what happens to rows above max_length"
    )
    prompt_cut: Literal["none", "turns"] = Field(
        default="none", description="cut over-long prompts from the left at turn boundaries"
    )
    render: Literal["auto", "chat", "text"] = Field(
        default="auto",
        description="auto: plain strings stay plain text, turns use the chat template; "
        "chat: strings become turns",
    )
    chat_template: str | None = Field(default=None, description="file with a Jinja chat template")
    stop_token: str | None = Field(
        default=None, description="stop token, if the template writes none"
    )
    add_bos: bool | None = Field(
        default=None, description="force or forbid a BOS; default: as the model"
    )
    strict_template: bool = Field(
        default=False, description="refuse templates that are not prefix-stable"
    )
    system: str | None = Field(default=None, description="system turn for rows that have none")
    whitespace_pairs: Literal["drop", "keep"] = Field(
        default="drop", description="pairs that differ in white space only"
    )
    max_bad_share: float = Field(
        default=0.5, gt=0, le=1, description="refuse to run when more than this share is dropped"
    )
    filters: dict[str, Any] = Field(
        default={},
        description="REASON=keep|warn|drop|fail and numbers such as margin_min=1; see docs/data.md",
    )
    columns: dict[str, str] = Field(
        default={}, description="our column=theirs, as in prompt=question,chosen=best"
    )
    pairing: Literal["best-worst", "adjacent", "all"] = Field(
        default="best-worst", description="which pairs are made of several ranked answers"
    )
    cache: str | None = Field(
        default=None, description="token cache folder; default: user cache folder"
    )

    @field_validator("filters")
    @classmethod
    def _known_filters(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Refuse filters that nobody knows."""
        parse_filters(given)
        return given


class LoraSection(Section):
    """Low-rank adapters (Hu et al. 2021)."""

    enabled: bool = Field(default=True, description="false: train all weights")
    rank: int = Field(default=16, ge=1, description="rank of the update")
    alpha: float = Field(default=32.0, gt=0, description="the update is scaled by alpha / rank")
    rslora: bool = Field(
        default=False, description="scale the update by alpha / √rank (rank-stabilised LoRA)"
    )
    dropout: float = Field(default=0.05, ge=0, lt=1, description="dropout on the adapter's input")
    targets: list[str] | Literal["all-linear"] = Field(
        default=["q_proj", "v_proj"], description="projections that get an adapter, or all-linear"
    )


class OptimizerSection(Section):
    """AdamW and its schedule."""

    learning_rate: float = Field(default=1e-5, gt=0, description="peak learning rate")
    schedule: Literal["cosine", "linear", "constant"] = Field(
        default="cosine", description="after warm-up"
    )
    warmup_ratio: float = Field(default=0.1, ge=0, lt=1, description="share of steps to warm up")
    weight_decay: float = Field(default=0.0, ge=0, description="decoupled weight decay")
    b1: float = Field(default=0.9, ge=0, lt=1, description="decay of the first moment")
    b2: float = Field(default=0.999, ge=0, lt=1, description="decay of the second moment")
    eps: float = Field(default=1e-8, gt=0, description="denominator offset")
    clip_norm: float = Field(default=1.0, gt=0, description="clip the gradient to this global norm")


class MeshSection(Section):
    """Devices along each axis; 1 x 1 x 1 is one device."""

    data: int = Field(default=1, ge=1, description="replicas that split the batch")
    fsdp: int = Field(default=1, ge=1, description="devices that split batch and weights")
    tensor: int = Field(default=1, ge=1, description="devices that split heads, MLP and vocabulary")


class TrainSection(Section):
    """The loop."""

    steps: int | None = Field(
        default=None, ge=1, description="optimiser steps (1000 without epochs)"
    )
    epochs: float | None = Field(
        default=None, gt=0, description="passes over the rows instead of steps"
    )
    batch_size: int = Field(default=16, ge=1, description="examples a step, over all devices")
    accumulate: int | None = Field(
        default=None, ge=1, description="micro-batches a step; default: fits"
    )
    microbatch_tokens: int = Field(
        default=2560, ge=128, description="tokens a micro-batch and device, at most"
    )
    packing: bool = Field(default=True, description="false: one example a row")
    eval_steps: int = Field(default=200, ge=1, description="steps between held-out evaluations")
    save_steps: int | None = Field(
        default=None, ge=1, description="steps between saves; as eval_steps"
    )
    keep: int = Field(default=2, ge=1, description="checkpoints kept besides the best")
    best_metric: Literal["loss", "accuracy", "margin", "perplexity"] = Field(
        default="loss", description="held-out metric that names the best checkpoint"
    )
    seed: int = Field(default=0, ge=0, description="seed of order, adapter init and dropout")
    remat: Literal["auto", "none", "attention", "dots", "full"] = Field(
        default="auto",
        description="what the backward pass recomputes; full saves the most memory; "
        "auto: the quickest that fits",
    )
    memory_limit_gib: float | None = Field(
        default=None, gt=0, description="memory that a device may use; default: most of what it has"
    )
    memory_check: bool = Field(
        default=True, description="false: run although the estimate says that it cannot fit"
    )
    log_steps: int = Field(default=1, ge=1, description="steps between lines of metrics.jsonl")
    resume: bool = Field(default=False, description="continue the run in the output folder")
    profile: int | None = Field(
        default=None, ge=1, description="trace this many steps and tell where their time went"
    )


class SampleSection(Section):
    """Answers to fixed prompts, before and after."""

    prompts: int = Field(default=4, ge=0, description="held-out prompts to answer; 0: none")
    max_new_tokens: int = Field(default=96, ge=1, description="length limit of an answer")
    temperature: float = Field(default=0.0, ge=0, description="0: greedy")


class ExportSection(Section):
    """What is written at the end."""

    adapter: bool = Field(default=True, description="write the PEFT adapter (LoRA runs)")
    merged: bool = Field(default=True, description="write the merged Hugging Face folder")
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        default="bfloat16", description="dtype of the merged weights"
    )


class Recipe(Section):
    """All settings of one training run."""

    method: Literal["sft", "dpo", "reward"] = Field(default="dpo", description="set by the verb")
    output: str = Field(default="", description="run folder")
    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    lora: LoraSection = LoraSection()
    loss: LossSection = LossSection()
    reference: ReferenceSection = ReferenceSection()
    optimizer: OptimizerSection = OptimizerSection()
    train: TrainSection = TrainSection()
    guards: GuardsSection = GuardsSection()
    mesh: MeshSection = MeshSection()
    sample: SampleSection = SampleSection()
    export: ExportSection = ExportSection()

    @model_validator(mode="after")
    def _consistent(self) -> "Recipe":
        """Refuse settings that contradict each other."""
        if self.train.steps and self.train.epochs:
            raise ValueError("train.steps and train.epochs exclude each other; give one")
        if self.model.quantize != "none" and not self.lora.enabled:
            raise ValueError(
                f"model.quantize {self.model.quantize} keeps the base frozen, and lora.enabled "
                "false trains it; leave one of them out"
            )
        reference = self.reference
        if reference.update == "none" and reference.update_steps is not None:
            raise ValueError("reference.update_steps has no effect without reference.update")
        if reference.update != "soft" and reference.update_share is not None:
            raise ValueError("reference.update_share has no effect without reference.update: soft")
        if isinstance(self.loss.beta, float) and self.loss.beta <= 0:
            raise ValueError(f"loss.beta must be > 0, got {self.loss.beta}")
        return self


ALIASES = {
    "model": "model.path", "data": "data.path", "adapter": "model.adapter",
    "profile": "train.profile", "quantize": "model.quantize",
}  # fmt: skip
"""Short flags and recipe keys."""


MAPPINGS = ("data.filters", "data.columns")
"""Settings that are themselves names with values."""


def known_keys(section: type[BaseModel] = Recipe, prefix: str = "") -> dict[str, Any]:
    """List every dotted leaf key with its pydantic field."""
    keys: dict[str, Any] = {}
    for name, info in section.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            keys |= known_keys(kind, f"{prefix}{name}.")
        else:
            keys[prefix + name] = info
    return keys


def unknown_key(key: str) -> UsageError:
    """Describe an unknown dotted key and name the nearest known one."""
    names = [*known_keys(), *ALIASES]
    leaf = {name.rsplit(".", 1)[-1]: name for name in names}
    near = difflib.get_close_matches(key, names, 1, 0.6)
    near = near or [leaf[m] for m in difflib.get_close_matches(key.rsplit(".")[-1], leaf, 1, 0.6)]
    hint = f"did you mean {near[0]!r}?" if near else "`alignax dpo --help` lists all settings"
    return UsageError(f"unknown setting {key!r}", hint=hint)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn nested sections into dotted keys; short keys are expanded."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and key not in MAPPINGS:
            flat |= flatten(value, f"{key}.")
        else:
            flat[ALIASES.get(key, key)] = value
    return flat


def load_recipe(file: str | Path | None, overrides: Mapping[str, Any]) -> Recipe:
    """Build the recipe from an optional YAML file and dotted overrides.

    Args:
        file: YAML with nested sections or dotted keys; None for defaults only.
        overrides: Dotted key → value (strings are parsed as YAML scalars or lists).

    Raises:
        UsageError: Unreadable file, unknown keys or bad values; all problems at once.
    """
    flat: dict[str, Any] = {}
    if file is not None:
        try:
            tree = yaml.safe_load(Path(file).read_text(encoding="utf-8")) or {}
        except OSError as error:
            raise UsageError(f"cannot read recipe {file}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise UsageError(f"recipe {file} is not UTF-8 text: {error.reason}") from error
        except yaml.YAMLError as error:
            raise UsageError(f"recipe {file} is not valid YAML: {error}") from error
        if not isinstance(tree, Mapping):
            raise UsageError(f"recipe {file} must hold settings, got {type(tree).__name__}")
        flat |= flatten(tree)
    flat |= {ALIASES.get(key, key): value for key, value in overrides.items()}
    known = known_keys()
    unknown = [unknown_key(key) for key in flat if key not in known]
    if len(unknown) == 1:
        raise unknown[0]
    if unknown:
        raise UsageError("unknown settings", problems=[f"{e.message} ({e.hint})" for e in unknown])
    return build_recipe(flat)


def build_recipe(flat: Mapping[str, Any]) -> Recipe:
    """Validate dotted settings; all problems are raised at once."""
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        *sections, leaf = key.split(".")
        node = nested
        for section in sections:
            node = node.setdefault(section, {})
        node[leaf] = value
    try:
        return Recipe.model_validate(nested)
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, e['loc']))}: {e['msg']}, got {e['input']!r}"
            if e["loc"]
            else e["msg"].removeprefix("Value error, ")
            for e in error.errors()
        ]
        raise UsageError("the settings are not valid", problems=problems) from error


def parse_value(text: str) -> Any:
    """Read a flag's value as YAML would: numbers, true/false, null, [lists], else text."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    if isinstance(value, str):
        try:
            return float(value) if value[:1].isdigit() else value
        except ValueError:
            return value
    return value


def dump_recipe(recipe: Recipe) -> str:
    """Write the resolved recipe as YAML, each setting with its meaning."""
    return "\n".join(_dump(recipe)) + "\n"


def _dump(section: BaseModel) -> list[str]:
    """Write the lines of one section."""
    lines: list[str] = []
    for name, info in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            lines += [f"{name}:", *(f"  {line}" for line in _dump(value))]
        else:
            shown = section.model_dump(include={name})[name]
            lines.append(f"{name}: {_scalar(shown)}  # {info.description}")
    return lines


def _scalar(value: Any) -> str:
    """Format one YAML value on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")
