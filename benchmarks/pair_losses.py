# SPDX-License-Identifier: Apache-2.0
"""DPO loss of each of some pairs under a drawn LoRA adapter, scored packed as in training.

    .venv/bin/python -m benchmarks.pair_losses --model FOLDER --data ROWS --adapter NEW --out FILE

The adapter's update is not zero; it is written in PEFT's layout for ``pair_losses_trl.py``, which
asks TRL about the same pairs. Both write the losses in the order of the file.
"""

import argparse
import json
from pathlib import Path

import jax
import numpy as np
from flax import nnx

from alignax.cli.setup import Setup, prepare
from alignax.data.plan import scoring_plan
from alignax.export.card import RunFacts
from alignax.export.peft import write_adapter
from alignax.losses.dpo import sigmoid
from alignax.models.layers import LoRAParam
from alignax.models.lora import adapted
from alignax.recipe import load_recipe
from alignax.records import PairLogps
from alignax.train.forward import split_model
from alignax.train.reference import build_score_step, score_rows

SPREAD = 0.02
"""Deviation of the drawn update's second factor: rewards of some tenths to some nats."""


def prepared(options: argparse.Namespace) -> Setup:
    """Load model and pairs, and draw and write the adapter."""
    recipe = load_recipe(
        None,
        {
            "model": str(options.model), "data": str(options.data), "output": "runs/never-written",
            "data.format": "trl", "data.max_length": options.max_length, "data.eval_fraction": 0,
            "lora.dropout": 0.0,
        },
    )  # fmt: skip
    setup = prepare(recipe)
    model, lora = setup.policy.model, setup.policy.lora
    for index, linear in enumerate(adapted(model).values()):
        drawn = jax.random.normal(jax.random.key(index), linear.lora_b[...].shape)
        linear.lora_b = nnx.data(LoRAParam(SPREAD * drawn))
    facts = RunFacts(str(options.model), setup.policy.loaded.weights_hash, "dpo", "", {}, {})
    write_adapter(options.adapter, model, lora, setup.policy.tokenizer, facts)
    return setup


def losses(setup: Setup, beta: float) -> list[float]:
    """Score the pairs under policy and reference; returns their losses."""
    network, weights = split_model(setup.policy.model, trains="adapter", answers=2)
    plan = scoring_plan(setup.train.lengths)
    (sums, tokens), (reference, _) = (
        score_rows(
            build_score_step(network, adapter=adapter), weights,
            setup.batches(setup.train, plan), len(setup.train), 2,
        )
        for adapter in (True, False)
    )  # fmt: skip
    return np.asarray(sigmoid(PairLogps(*sums.T, *reference.T, *tokens.T), beta=beta)).tolist()


def main() -> None:
    """Score the pairs and write their losses."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--model", "--data", "--adapter", "--out"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--max-length", type=int, default=512)
    parser.add_argument("--beta", type=float, default=0.1)
    options = parser.parse_args()
    found = losses(prepared(options), options.beta)
    options.out.write_text(json.dumps({"pair_losses": found}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
