# SPDX-License-Identifier: Apache-2.0
"""Made-up but realistic run folders: a DPO run that went well, and an SFT run."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from alignax.recipe import build_recipe, dump_recipe

STEPS, BEST = 240, 200

ANSWERS = [
    (
        (
            "<|im_start|>user\nHow do I get candle wax out of a cotton tablecloth?<|im_end|>\n"
            "<|im_start|>assistant\n"
        ),
        (
            "There are many ways to deal with wax. It depends on the wax, on the cloth and on many "
            "other things. You may want to ask a professional, because it depends on many things."
        ),
        (
            "Let the wax harden, scrape off what you can, then lay paper towels over and under the "
            "spot and press with a warm iron. The paper soaks up the rest; change it until no "
            "grease shows, and wash the cloth at 60 °C."
        ),
        "length",
        "stop",
    ),
    (
        (
            "<|im_start|>user\nWhich is heavier, a litre of water or a litre of olive oil?"
            "<|im_end|>\n"
            "<|im_start|>assistant\n"
        ),
        "A litre of water is heavier than a litre of olive oil.",
        "A litre of water is heavier: about 1.0 kg, against 0.92 kg for olive oil.",
        "stop",
        "stop",
    ),
    (
        (
            '<|im_start|>user\nWrite <script>alert("hi")</script> & explain it.<|im_end|>\n'
            "<|im_start|>assistant\n"
        ),
        "<b>It shows a box.</b>",
        "<b>It shows a box.</b>",
        "stop",
        "stop",
    ),
]


def audit(rows: int, *, dropped: bool) -> dict:
    """An audit of some rows, as the data part writes it."""
    reasons = {
        "prompt_differs": {"count": 3, "rows": ["5f0c2a9e1b7d4c33", "a1", "b2"]},
        "identical_answers": {"count": 2, "rows": ["77aa00bb11cc22dd"]},
    }
    return {
        "rows": rows + (5 if dropped else 0),
        "kept": rows,
        "format": "hh",
        "dropped": reasons if dropped else {},
        "cut": {"chosen": 41, "rejected": 38, "one side only": 12, "prompt": 0},
        "boundary_merges": 0,
        "stop_token_in_loss": f"{2 * rows - 79} of {2 * rows}",
        "unused_columns": ["annotator", "source"],
        "lengths": {"prompt": "median 96, 95 % 301, max 488", "chosen": "median 58, max 416"},
        "chosen_longer_share": 0.5431,
        "exact_duplicates": 1,
        "ties": 0,
        "notices": ["the template writes a system turn of its own"],
    }


def heldout(step: int, n: int = 291) -> dict:
    """Held-out metrics of a pair run after some steps."""
    progress = 1 - math.exp(-step / 90)
    margin, accuracy = 0.062 * progress, 0.5 + 0.135 * progress if step else 0.0
    loss = math.log(2) - 0.024 * progress + (0.002 if step > BEST else 0)
    return {
        "n": float(n),
        "loss": loss,
        "loss_low": loss - 0.009 * progress,
        "loss_high": loss + 0.009 * progress,
        "accuracy": accuracy,
        "accuracy_low": max(0.0, accuracy - 0.056),
        "accuracy_high": accuracy + 0.055 if step else 0.013,
        "ties": 0.0 if step else 1.0,
        "margin": margin,
        "margin_low": margin - 0.018 * progress,
        "margin_high": margin + 0.018 * progress,
        "perplexity": 5.31 - 0.14 * progress,
        "chosen_logratio": 0.0042 * progress,
        "rejected_logratio": -0.0058 * progress,
        "kl/token": 0.0132 * progress**2,
    }


def write_lines(file: Path, records) -> None:
    """Write JSON lines."""
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def training_lines(steps: int) -> list[dict]:
    """Noisy training metrics of a pair run."""
    rng = np.random.default_rng(7)
    lines = []
    for step in range(1, steps + 1):
        progress = 1 - math.exp(-step / 80)
        noise = rng.normal(size=8)
        warm = min(1.0, step / 24)
        lines.append(
            {
                "step": step,
                "kind": "train",
                "loss": math.log(2) - 0.035 * progress + 0.02 * noise[0] * progress,
                "margin": 0.09 * progress + 0.05 * noise[1] * progress,
                "accuracy": float(np.clip(0.5 + 0.17 * progress + 0.12 * noise[2], 0, 1)),
                "chosen_logratio": 0.006 * progress + 0.004 * noise[3] * progress,
                "rejected_logratio": -0.008 * progress + 0.004 * noise[4] * progress,
                "learning_rate": 3e-4 * warm * 0.5 * (1 + math.cos(math.pi * step / steps)),
                "grad_norm": float(np.exp(0.3 * noise[5]) * 1.4),
                "pairs_per_s": 5.1 + 0.2 * noise[6],
                "tokens_per_s": 1290 + 40 * noise[7] - (700 if step == 1 else 0),
                "padding": 0.031,
                "useful_flop_share": 0.44,
                "seconds": 3.2,
            }
        )
    return lines


@pytest.fixture
def dpo_run(tmp_path) -> Path:
    """The folder of a finished DPO run that learned something."""
    folder = tmp_path / "helpful"
    (folder / "samples").mkdir(parents=True)
    recipe = build_recipe(
        {
            "method": "dpo",
            "output": "runs/helpful",
            "model.path": "models/SmolLM2-135M-Instruct",
            "data.path": ["rows/hh_rlhf/helpful-base/train.jsonl.gz"],
            "optimizer.learning_rate": 3e-4,
            "train.epochs": 1.0,
            "train.eval_steps": 40,
        }
    )
    (folder / "recipe.yaml").write_text(dump_recipe(recipe), encoding="utf-8")
    evaluations = [{"step": s, "kind": "eval", **heldout(s)} for s in range(0, STEPS + 1, 40)]
    write_lines(
        folder / "metrics.jsonl", [*evaluations[:1], *training_lines(STEPS), *evaluations[1:]]
    )
    write_lines(
        folder / "events.jsonl",
        [
            {"step": 0, "kind": "self_test", "message": "policy and reference agree to 1.1e-05"},
            {"step": 1, "kind": "first_update", "message": "99.8 % of trainable entries moved"},
            {"step": 240, "kind": "best", "message": "step 200 has the lowest held-out loss"},
        ],
    )
    for step, which in ((0, 1), (BEST, 2), (STEPS, 1)):
        lines = [{"prompt": a[0], "text": a[which], "finish_reason": a[which + 2]} for a in ANSWERS]
        write_lines(folder / "samples" / f"step_{step:06d}.jsonl", lines)
    reports = {
        "train": audit(3840, dropped=True),
        "eval": audit(291, dropped=False),
        "split": {"train": 3840, "eval": 291, "by": "prompt hash"},
    }
    (folder / "data_report.json").write_text(json.dumps(reports), encoding="utf-8")
    marks = {
        "base": "5c9e1fd0a7734b2e",
        "adapter": None,
        "reference": {"base": "5c9e1fd0a7734b2e", "adapter": None},
        "tokenizer": "e1d2c3b4a5968778",
        "encoding": "0f1e2d3c4b5a6978",
        "recipe": "9081726354453627",
        "settings": {"train": {"batch_size": 16}},
        "versions": {"alignax": "0.1.0", "jax": "0.10.2", "device": "1 × cpu"},
    }
    (folder / "fingerprints.json").write_text(json.dumps(marks), encoding="utf-8")
    summary = {
        "method": "dpo",
        "model": "models/SmolLM2-135M-Instruct",
        "rows": {"train": 3840, "eval": 291},
        "steps": STEPS,
        "best_step": BEST,
        "before": heldout(0),
        "after": heldout(BEST),
        "seconds": 812.4,
        "fill": 0.969,
        "exports": [
            {
                "kind": "merged",
                "path": "runs/helpful/export/merged",
                "max_logit_difference": 0.0214,
                "prompts": 8,
                "greedy_equal": 8,
            }
        ],
    }
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return folder


@pytest.fixture
def sft_run(tmp_path) -> Path:
    """The folder of a finished SFT run, without samples or audit."""
    folder = tmp_path / "imitation"
    folder.mkdir()
    recipe = build_recipe({"method": "sft", "model.path": "demo", "data.path": "rows.jsonl"})
    (folder / "recipe.yaml").write_text(dump_recipe(recipe), encoding="utf-8")

    def values(loss: float) -> dict:
        return {
            "n": 50.0,
            "loss": loss,
            "loss_low": loss - 0.02,
            "loss_high": loss + 0.02,
            "perplexity": math.exp(loss),
        }

    write_lines(
        folder / "metrics.jsonl",
        [
            {"step": 0, "kind": "eval", **values(2.0)},
            *({"step": s, "kind": "train", "loss": 2 - 0.01 * s, "grad_norm": 1.0} for s in (1, 2)),
            {"step": 2, "kind": "eval", **values(1.8)},
        ],
    )
    summary = {
        "method": "sft",
        "steps": 2,
        "best_step": 2,
        "before": values(2.0),
        "after": values(1.8),
        "seconds": 61.0,
        "exports": [],
    }
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return folder
