# SPDX-License-Identifier: Apache-2.0
"""Run facts → the model card, ``README.md`` of an export."""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from alignax import __version__
from alignax.recipe import flatten, known_keys

METRICS = {
    "loss": "loss",
    "accuracy": "accuracy (chosen above rejected)",
    "margin": "reward margin",
    "perplexity": "perplexity of the chosen answers",
    "kl/token": "KL(policy ‖ reference) a token",
    "chosen_logratio": "log-ratio of the chosen answers, a token",
    "rejected_logratio": "log-ratio of the rejected answers, a token",
}
"""Held-out metric → its name in the card."""

SETTINGS = (
    "lora.rank", "lora.alpha", "lora.rslora", "lora.dropout", "lora.targets",
    *(key for key in known_keys() if key.startswith("loss.")), "optimizer.learning_rate",
    "optimizer.schedule", "optimizer.warmup_ratio", "train.batch_size", "data.max_length",
    "train.seed", "model.dtype", "model.quantize",
)  # fmt: skip
"""Settings that the card shows; all of them are in the manifest."""

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")

OF_NO_WEIGHT = ("export", "train.resume", "train.keep", "train.log_steps")
"""Settings that may change between two exports of one run."""


@dataclass(frozen=True)
class RunFacts:
    """What an export tells about the run that made it.

    Attributes:
        base: The base model as the recipe names it.
        base_hash: Identity of the base's weights.
        method: ``"dpo"``, ``"sft"`` or ``"reward"``.
        data: Where the rows came from.
        settings: The resolved recipe, nested.
        summary: As in ``summary.json``: steps, held-out metrics before and after, …
    """

    base: str
    base_hash: str
    method: str
    data: str | Sequence[str]
    settings: Mapping[str, Any]
    summary: Mapping[str, Any]

    @property
    def run(self) -> str:
        """Identity of the run (16 hex digits): base, method and all settings that matter."""
        flat = flatten(self.settings)
        kept = {k: v for k, v in flat.items() if not k.startswith(OF_NO_WEIGHT)}
        text = json.dumps([self.base_hash, self.method, kept], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def rows(self) -> list[str]:
        """Where the rows came from, as a list."""
        return [self.data] if isinstance(self.data, str) else list(self.data)

    @property
    def scores(self) -> bool:
        """Whether a reward model was trained."""
        return self.method == "reward"

    @property
    def uses_lora(self) -> bool:
        """Whether an adapter was trained."""
        return bool(flatten(self.settings).get("lora.enabled", True))

    @property
    def quantize(self) -> str:
        """How the base was quantised; ``"none"`` where it was not."""
        return str(flatten(self.settings).get("model.quantize", "none"))

    def to_json(self) -> dict[str, Any]:
        """List the facts for the manifest."""
        return {
            "written_by": f"alignax {__version__}",
            "run": self.run,
            "base": {
                "path": self.base,
                "weights_hash": self.base_hash,
                "quantize": self.quantize,
            },
            "method": self.method,
            "data": self.rows,
            "settings": dict(self.settings),
            "summary": only_numbers(self.summary),
        }


def only_numbers(value: Any) -> Any:
    """Replace NaN and infinities, which JSON does not know, by null."""
    if isinstance(value, Mapping):
        return {key: only_numbers(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [only_numbers(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def model_card(facts: RunFacts, kind: Literal["adapter", "merged"], *, dtype: str) -> str:
    """Write the card of an export."""
    method = {
        "dpo": "Direct Preference Optimization",
        "sft": "supervised fine-tuning",
        "reward": "training as a reward model (Bradley-Terry)",
    }
    form = {"adapter": "LoRA adapter", "merged": "complete model"}[kind]
    how = "with a LoRA adapter" if facts.uses_lora else "of all weights"
    folded = ", folded into the weights," if kind == "merged" and facts.uses_lora else ""
    sections = [
        _front_matter(facts, kind),
        f"# {_code(facts.base)} after {facts.method.upper()}",
        f"This is a {form} in {dtype}: {_code(facts.base)} after "
        f"{method.get(facts.method, facts.method)} {how}{folded} by alignax {__version__}.",
        "## Results on held-out rows",
        _results(facts.summary),
        "## Data",
        _data(facts),
        "## Settings",
        _settings(facts),
        "## How to use it",
        _usage(facts, kind),
        "## Limits",
        "The numbers above come from held-out rows of the same kind as the training rows; they say "
        "nothing about other tasks, other languages or safety. The intervals cover the choice of "
        "rows, not of seeds. What the base model gets wrong, this one may get wrong as well. "
        "Read answers of your own prompts before you use it.",
        "## Licence",
        f"These weights are derived from {_code(facts.base)} and stay under its licence; the "
        "terms of the training rows may add to it. No licence is granted here.",
        "## Identity",
        _table(
            ("what", "hash"),
            [("run", _code(facts.run)), ("weights of the base", _code(facts.base_hash))],
        ),
        "All settings, and the hash of every file, are in `alignax.json`.",
    ]
    return "\n\n".join(sections) + "\n"


def _front_matter(facts: RunFacts, kind: str) -> str:
    """Metadata that model hubs read."""
    metadata: dict[str, Any] = {
        "library_name": {"adapter": "peft", "merged": "transformers"}[kind],
        "pipeline_tag": "text-classification" if facts.scores else "text-generation",
        "tags": ["alignax", facts.method, *["lora"] * facts.uses_lora],
    }
    # Hubs take names of their own only, no paths.
    if _HUB_ID.fullmatch(facts.base) and not Path(facts.base).exists():
        metadata["base_model"] = facts.base
    text = yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)
    return f"---\n{text}---"


def _results(summary: Mapping[str, Any]) -> str:
    """Tabulate held-out metrics before and after, with their intervals."""
    before, after = summary.get("before") or {}, summary.get("after") or {}
    rows = [
        (label, _score(before, name), _score(after, name))
        for name, label in METRICS.items()
        if name in before or name in after
    ]
    if not rows:
        return "The run was not evaluated on held-out rows."
    count = after.get("n", before.get("n"))
    caption = f"{int(count)} held-out rows; brackets are 95 % intervals." if count else ""
    return "\n\n".join(filter(None, [caption, _table(("metric", "before", "after"), rows)]))


def _score(metrics: Mapping[str, Any], name: str) -> str:
    """Write one metric with its interval."""
    if metrics.get(name) is None:
        return "–"
    text = f"{metrics[name]:.4f}"
    low, high = metrics.get(f"{name}_low"), metrics.get(f"{name}_high")
    return text if low is None or high is None else f"{text} [{low:.4f}, {high:.4f}]"


def _data(facts: RunFacts) -> str:
    """Say where the rows came from and how many took part."""
    lines = [f"- {_code(path)}" for path in facts.rows]
    counts = facts.summary.get("rows")
    if isinstance(counts, Mapping):
        numbers = ", ".join(f"{key.replace('_', ' ')}: {value}" for key, value in counts.items())
        lines.append(f"- {numbers}")
    return "\n".join(lines)


def _settings(facts: RunFacts) -> str:
    """Tabulate the settings that matter most."""
    flat = flatten(facts.settings)
    rows = [(_code(key), _code(flat[key])) for key in SETTINGS if flat.get(key) is not None]
    for key, label in (("steps", "optimiser steps"), ("best_step", "step of these weights")):
        if facts.summary.get(key) is not None:
            rows.append((label, str(facts.summary[key])))
    return _table(("setting", "value"), rows)


def _usage(facts: RunFacts, kind: str) -> str:
    """Show how to load the export."""
    if facts.scores:
        return (
            "```python\nfrom transformers import AutoModelForSequenceClassification, AutoTokenizer"
            '\n\nmodel = AutoModelForSequenceClassification.from_pretrained("THIS_FOLDER")\n'
            'tokenizer = AutoTokenizer.from_pretrained("THIS_FOLDER")\n```\n\n'
            "or `alignax evaluate win-rate --judge reward:THIS_FOLDER`. The reward is the one "
            "logit at the text's last token, which should be the stop token of the answer; only "
            "differences between answers to one prompt mean anything."
        )
    if kind == "merged":
        return (
            "```python\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
            'model = AutoModelForCausalLM.from_pretrained("THIS_FOLDER")\n'
            'tokenizer = AutoTokenizer.from_pretrained("THIS_FOLDER")\n```\n\n'
            "or `alignax chat --model THIS_FOLDER`."
        )
    return (
        "```python\nfrom peft import PeftModel\nfrom transformers import AutoModelForCausalLM\n\n"
        'base = AutoModelForCausalLM.from_pretrained("BASE_FOLDER")\n'
        'model = PeftModel.from_pretrained(base, "THIS_FOLDER")\n```\n\n'
        "or `alignax chat --model BASE --adapter THIS_FOLDER`. The base must have exactly the "
        f"weights that the adapter was trained on ({_code(facts.base)}); `alignax` checks that. "
        "When the base was a GGUF file, the merged export is the form for transformers."
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _code(value: Any) -> str:
    """Quote a value so that Markdown takes it literally."""
    text = " ".join(str(value).split()).replace("|", "/").replace("`", "'")
    return f"`{text}`"
