# SPDX-License-Identifier: Apache-2.0
"""Files of a run folder → ``RunReport``.

Only ``recipe.yaml`` must be there: a run that was killed, or that is still going on, gets a report
of what it has written so far.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from alignax.errors import RunError
from alignax.files import read_json, read_lines
from alignax.metrics.drift import KL_BAND, kl_band
from alignax.records import RunReport
from alignax.report.verdict import Finding, judge

BAND_TEXT = {
    "below": f"below the usual {KL_BAND[0]}–{KL_BAND[1]}",
    "inside": f"within the usual {KL_BAND[0]}–{KL_BAND[1]}",
    "above": f"above the usual {KL_BAND[0]}–{KL_BAND[1]}",
}


def build_report(run_dir: str | Path) -> RunReport:
    """Collect what a run folder holds.

    Raises:
        RunError: The folder is missing, is not a run, or holds a damaged file.
    """
    folder = Path(run_dir)
    if not (folder / "recipe.yaml").is_file():
        raise RunError(f"{folder} is not a run folder (no recipe.yaml)")
    settings = _read_yaml(folder / "recipe.yaml")
    summary = _optional(folder / "summary.json")
    metrics = read_lines(folder / "metrics.jsonl")
    evaluations = [_without_kind(line) for line in metrics if line.get("kind") == "eval"]
    training = [_without_kind(line) for line in metrics if line.get("kind") == "train"]
    finding = _finding(settings, summary, evaluations, training)
    verdict = judge(finding)
    data_report = _optional(folder / "data_report.json")
    fingerprints = _optional(folder / "fingerprints.json")
    return RunReport(
        title=_title(settings),
        verdict=verdict.text,
        status=verdict.status,
        best_step=finding.best_step,
        advice=list(verdict.advice),
        facts=_facts(settings, summary, fingerprints, finding, training),
        headline=_headline(finding),
        curves=_curves(training),
        evaluations=evaluations,
        samples=_samples(folder / "samples", summary.get("best_step")),
        data_report=data_report,
        events=read_lines(folder / "events.jsonl"),
        settings=settings,
        fingerprints=fingerprints,
        exports=list(summary.get("exports") or []),
        profile=_optional(folder / "profile.json"),
        gate=_optional(folder / "gate.json"),
    )


def _read_yaml(file: Path) -> dict[str, Any]:
    """Read a YAML mapping."""
    try:
        tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RunError(f"cannot read {file}: {error}") from error
    if not isinstance(tree, dict):
        raise RunError(f"{file} does not hold settings, but {type(tree).__name__}")
    return tree


def _optional(file: Path) -> dict[str, Any]:
    """Read a JSON object; an absent file is an empty one."""
    return read_json(file) if file.exists() else {}


def _without_kind(line: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the tag that tells training lines from evaluations."""
    return {name: value for name, value in line.items() if name != "kind"}


def _finding(
    settings: Mapping[str, Any],
    summary: Mapping[str, Any],
    evaluations: list[dict[str, Any]],
    training: list[dict[str, Any]],
) -> Finding:
    """Take the summary's first and best evaluation, or what there is so far."""
    first = evaluations[0] if evaluations else None
    last = evaluations[-1] if len(evaluations) > 1 else None
    finished = bool(summary)
    reached = max((line["step"] for line in [*training, *evaluations]), default=0)
    best = summary.get("best_step")
    return Finding(
        method=str(summary.get("method") or settings.get("method") or "dpo"),
        finished=finished,
        steps=int(summary.get("steps") or reached),
        best_step=int(best) if best is not None else None,
        best_metric=str((settings.get("train") or {}).get("best_metric") or "loss"),
        before=(summary.get("before") if finished else first) or None,
        after=(summary.get("after") if finished else last) or None,
        last=last,
    )


def _title(settings: Mapping[str, Any]) -> str:
    """Name the method, the model and the rows."""
    method = {
        "dpo": "Preference alignment",
        "sft": "Supervised fine-tuning",
        "reward": "Reward model",
    }
    name = method.get(str(settings.get("method")), str(settings.get("method")))
    return f"{name}: {_short(_section(settings, 'model').get('path'))}"


def _section(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a section of the recipe, empty if it is absent."""
    section = settings.get(name)
    return section if isinstance(section, Mapping) else {}


def _short(path: Any) -> str:
    """Shorten one path or several to their last parts."""
    paths = path if isinstance(path, list) else [path]
    names = [str(p or "?").rstrip("/").rsplit("/", 1)[-1] for p in paths]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _facts(
    settings: Mapping[str, Any],
    summary: Mapping[str, Any],
    fingerprints: Mapping[str, Any],
    finding: Finding,
    training: list[dict[str, Any]],
) -> dict[str, str]:
    """List what a reader wants to know before any curve."""
    facts = {
        "Method": finding.method.upper(),
        "Rows": _short(_section(settings, "data").get("path")),
    }
    rows = summary.get("rows")
    if isinstance(rows, Mapping):
        facts["Split"] = ", ".join(f"{k} {v}" for k, v in rows.items())
    facts["Steps"] = f"{finding.steps}"
    if finding.best_step is not None and finding.best_step != finding.steps:
        facts["Steps"] += f" (best: {finding.best_step})"
    if _section(settings, "lora").get("enabled", True):
        facts["Trained"] = f"LoRA, rank {_section(settings, 'lora').get('rank')}"
    else:
        facts["Trained"] = "all weights"
    facts["Learning rate"] = f"{_section(settings, 'optimizer').get('learning_rate')}"
    if summary.get("seconds"):
        facts["Time"] = duration(float(summary["seconds"]))
    speeds = sorted(line["tokens_per_s"] for line in training if line.get("tokens_per_s"))
    if speeds:
        facts["Speed"] = f"{speeds[len(speeds) // 2]:,.0f} tokens/s"
    if summary.get("data_wait_share") is not None:
        facts["Waiting for data"] = f"{summary['data_wait_share']:.1%} of the time"
    compiled = summary.get("compilations")
    if isinstance(compiled, Mapping):
        facts["Programs"] = (
            f"{compiled['programs']} ({compiled['found']} found on disk), "
            f"{compiled['seconds']:.0f} s"
        )
    versions = fingerprints.get("versions")
    if isinstance(versions, Mapping):
        facts |= {"Device": str(versions.get("device")), "alignax": str(versions.get("alignax"))}
    return facts


def duration(seconds: float) -> str:
    """Format a time span for people."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _headline(finding: Finding) -> list[dict[str, str]]:
    """Make the cards: before → after, with intervals."""
    before, after = finding.before or {}, finding.after or {}
    kinds = [
        ("accuracy", "Held-out accuracy", 100.0, "{:.1f} %"),
        ("margin", "Reward margin", 1.0, "{:.3f}"),
        ("loss", "Held-out loss", 1.0, "{:.4f}"),
        ("kl/token", "KL per token", 1.0, "{:.4f}"),
        ("perplexity", "Perplexity", 1.0, "{:.2f}"),
        ("calibration_error", "Calibration error", 1.0, "{:.3f}"),
    ]
    cards = []
    for name, label, scale, pattern in kinds:
        if name not in before and name not in after:
            continue
        card = {"label": label, "before": "–", "after": "–", "interval": "", "note": ""}
        if name in before:
            card["before"] = pattern.format(scale * before[name])
        if name in after:
            card["after"] = pattern.format(scale * after[name])
        if f"{name}_low" in after:
            low, high = after[f"{name}_low"] * scale, after[f"{name}_high"] * scale
            number = pattern.removesuffix(" %")
            card["interval"] = f"{number.format(low)} to {number.format(high)}"
        cards.append(card | _note(name, before, after))
    return cards


def _note(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, str]:
    """Say what a number is to be compared with."""
    if name == "accuracy" and before.get("ties") == 1:
        return {"before": "all tied", "note": "50 % is chance"}
    if name == "accuracy":
        return {"note": "50 % is chance"}
    if name == "kl/token" and "kl/token" in after:
        return {"note": BAND_TEXT[kl_band(after["kl/token"])]}
    if name == "loss" and "accuracy" in after:
        return {"note": "a coin gets 0.6931"}
    if name == "perplexity":
        return {"note": "of the chosen answers" if "accuracy" in after else "of the answers"}
    return {"note": "β included; 0 at the reference"} if name == "margin" else {}


def _curves(training: list[dict[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Turn training lines into one series a metric."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for line in training:
        for name, value in line.items():
            if name != "step" and isinstance(value, int | float):
                curves.setdefault(name, []).append((int(line["step"]), float(value)))
    return curves


def _samples(folder: Path, best_step: int | None) -> list[dict[str, Any]]:
    """Pair the first answers with those of the best step (else the last ones)."""
    files = sorted(folder.glob("step_*.jsonl"))
    if not files:
        return []
    best = folder / f"step_{best_step or 0:06d}.jsonl"
    later = best if best_step and best in files else files[-1]
    first, last = read_lines(files[0]), read_lines(later)
    after = {sample.get("prompt"): sample for sample in last} if later != files[0] else {}
    return [
        {
            "prompt": sample.get("prompt", ""),
            "before": sample.get("text", ""),
            "before_finish": sample.get("finish_reason", ""),
            "after": after.get(sample.get("prompt"), {}).get("text", ""),
            "after_finish": after.get(sample.get("prompt"), {}).get("finish_reason", "missing"),
            "step": later.stem.removeprefix("step_").lstrip("0") or "0",
        }
        for sample in first
    ]
