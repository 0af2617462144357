# SPDX-License-Identifier: Apache-2.0
"""Write losses.json: what TRL's own loss functions give on the log-probs of loss_cases.py.

    .venv-parity/bin/python -m tests.parity.make_losses

The trainers' loss methods run on a stand-in for the model that returns the given log-probs.
"""

import json
import os
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import trl

from tests.parity.loss_cases import CASES, Case, tokens_of

# TRL warns of its experimental trainers; the tests treat warnings as errors.
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

from trl.experimental.cpo import CPOTrainer  # noqa: E402
from trl.experimental.orpo import ORPOTrainer  # noqa: E402

FILE = Path(__file__).with_name("losses.json")
DPO = {
    "ld_alpha": None, "f_divergence_type": "reverse_kl", "f_alpha_divergence_coef": 0.5,
    "label_smoothing": 0.0, "use_weighting": False, "args": SimpleNamespace(discopop_tau=0.05),
    "precompute_ref_logps": True,
}  # fmt: skip


def trainer(**attributes: Any) -> SimpleNamespace:
    """Stand in for a trainer: settings, and devices that are one CPU."""
    same = SimpleNamespace(device="cpu", gather_for_metrics=lambda x: x, gather=lambda x: x)
    return SimpleNamespace(
        accelerator=same, model=SimpleNamespace(training=True), aux_loss_enabled=False,
        _metrics={"train": defaultdict(list)}, _total_train_tokens=0, _tp_size=1, **attributes,
    )  # fmt: skip


def theirs(case: Case) -> dict[str, Any]:
    """TRL's loss, and its slope by each answer's first log-prob."""
    tokens = tokens_of(case)
    logps = torch.tensor(tokens.policy, requires_grad=True)
    reference, used = torch.tensor(tokens.reference), torch.tensor(tokens.used)
    run = {"dpo": dpo_loss, "kto": kto_loss, "cpo": cpo_loss, "orpo": orpo_loss}[case.trainer]
    loss = run(case, logps, reference, used, torch.tensor(tokens.squares))
    loss.backward()
    half = len(used) // 2
    slopes = logps.grad[:, 0].tolist()
    return {"loss": float(loss.detach()), "chosen": slopes[:half], "rejected": slopes[half:]}


def outputs_of(logps: Any, squares: Any) -> SimpleNamespace:
    """What the model would return; only log-probs matter to the loss."""
    zeros = torch.zeros_like(logps.detach())
    return SimpleNamespace(
        log_probs=logps, log_sum_sq_probs=squares, entropy=zeros, mean_logits=zeros,
        is_top1=zeros.bool(),
    )  # fmt: skip


def batch_of(used: Any) -> dict[str, Any]:
    """One prompt token, then the answer."""
    mask = torch.cat([torch.zeros(len(used), 1, dtype=torch.long), used.long()], 1)
    return {
        "input_ids": torch.ones_like(mask), "attention_mask": torch.ones_like(mask),
        "completion_mask": mask,
    }  # fmt: skip


def dpo_loss(case: Case, logps: Any, reference: Any, used: Any, squares: Any) -> Any:
    """``DPOTrainer._compute_loss`` with the reference's sums as if precomputed."""
    settings = {"loss_weights": [1.0] * len(case.theirs["loss_types"]), **DPO, **case.theirs}
    half = len(used) // 2
    counts = used.sum(1)
    shared = torch.minimum(counts[:half], counts[half:]).repeat(2)
    beyond = torch.arange(used.shape[1])[None] >= shared[:, None]
    alpha = 1.0 if settings["ld_alpha"] is None else settings["ld_alpha"]
    sums = (reference * torch.where(beyond, alpha, 1.0)).sum(1)
    inputs = batch_of(used) | {"ref_chosen_logps": sums[:half], "ref_rejected_logps": sums[half:]}
    fake = trainer(**settings)
    return trl.DPOTrainer._compute_loss(fake, lambda **_: outputs_of(logps, squares), inputs, False)


def kto_loss(case: Case, logps: Any, reference: Any, used: Any, squares: Any) -> Any:
    """``KTOTrainer._compute_loss`` whose KL estimate reads the batch's own answers."""
    fake = trainer(
        **case.theirs, precompute_ref_logps=True, calculate_KL=True,
        _compute_kl_logps=lambda *_: logps.detach().sum(1),
    )  # fmt: skip
    labels = torch.arange(len(used)) < len(used) // 2
    sums = reference.sum(1)
    inputs = batch_of(used) | {"label": labels, "ref_logps": sums, "ref_KL_logps": sums}
    return trl.KTOTrainer._compute_loss(fake, lambda **_: outputs_of(logps, squares), inputs, False)


def sides_of(logps: Any, used: Any, *, mean: bool) -> Any:
    """Sums or means of the answers' log-probs, chosen and rejected."""
    sums = logps.sum(1) / (used.sum(1) if mean else 1)
    return sums[: len(used) // 2], sums[len(used) // 2 :]


def cpo_loss(case: Case, logps: Any, reference: Any, used: Any, squares: Any) -> Any:
    """``CPOTrainer.cpo_loss``; SimPO takes means."""
    sides = sides_of(logps, used, mean=case.theirs["loss_type"] == "simpo")
    return CPOTrainer.cpo_loss(trainer(**case.theirs), *sides)[0].mean()


def orpo_loss(case: Case, logps: Any, reference: Any, used: Any, squares: Any) -> Any:
    """``ORPOTrainer.odds_ratio_loss``, which is subtracted."""
    sides = sides_of(logps, used, mean=True)
    return -ORPOTrainer.odds_ratio_loss(trainer(**case.theirs), *sides)[0].mean()


if __name__ == "__main__":
    values = {case.name + case.trainer: theirs(case) for case in CASES}
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in values.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
