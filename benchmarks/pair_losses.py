# SPDX-License-Identifier: Apache-2.0
"""DPO loss of each of some pairs under one LoRA adapter: alignax's, and TRL's own.

    python -m benchmarks.pair_losses ours --model FOLDER --data ROWS --adapter NEW --out OURS.json
    python benchmarks/pair_losses.py trl  --model FOLDER --data ROWS --adapter IT --out TRL.json

``ours`` draws an adapter whose update is not zero, writes it in PEFT's layout and scores the pairs
packed, as in training. ``trl``, in an environment with TRL, reads it back and asks TRL's
``compute_loss`` about one pair at a time. Both write the losses in the order of the file.
"""

import argparse
import json
from pathlib import Path
from typing import Any

BETA = 0.1
RANK, ALPHA, TARGETS = 16, 32.0, ("q_proj", "v_proj")
SPREAD = 0.02
"""Deviation of the drawn update's second factor: rewards of some tenths to some nats."""


def ours(options: argparse.Namespace) -> list[float]:
    """Score with alignax."""
    import jax
    import numpy as np
    from flax import nnx

    from alignax.cli.setup import prepare
    from alignax.data.plan import scoring_plan
    from alignax.export.card import RunFacts
    from alignax.export.peft import write_adapter
    from alignax.losses import build_loss
    from alignax.models.layers import LoRAParam
    from alignax.models.lora import adapted
    from alignax.recipe import load_recipe
    from alignax.train.forward import split_model
    from alignax.train.reference import build_score_step, score_rows
    from alignax.train.step import pair_logps

    recipe = load_recipe(
        None,
        {
            "model": str(options.model), "data": str(options.data), "output": "runs/never-written",
            "data.format": "trl", "data.max_length": options.max_length, "data.eval_fraction": 0,
            "loss.beta": BETA, "lora.rank": RANK, "lora.alpha": ALPHA,
            "lora.targets": list(TARGETS), "lora.dropout": 0.0,
        },
    )  # fmt: skip
    setup = prepare(recipe)
    model, lora = setup.policy.model, setup.policy.lora
    for index, linear in enumerate(adapted(model).values()):
        drawn = jax.random.normal(jax.random.key(index), linear.lora_b[...].shape)
        linear.lora_b = nnx.data(LoRAParam(SPREAD * drawn))
    facts = RunFacts(str(options.model), setup.policy.loaded.weights_hash, "dpo", "", {}, {})
    write_adapter(options.adapter, model, lora, setup.policy.tokenizer, facts)
    network, weights = split_model(model, trains="adapter", answers=2)
    plan = scoring_plan(setup.train.lengths)
    sums, reference = (
        score_rows(
            build_score_step(network, adapter=adapter), weights,
            setup.batches(setup.train, plan), len(setup.train), 2,
        )
        for adapter in (True, False)
    )  # fmt: skip
    pair = pair_logps(sums[0], reference[0], sums[1])
    return np.asarray(build_loss(kind="pair", beta=BETA).per_example(pair)).tolist()


def trls(options: argparse.Namespace) -> list[float]:
    """Ask TRL."""
    import peft
    import torch
    import transformers
    import trl
    from datasets import Dataset
    from safetensors.torch import load_file

    rows = [json.loads(line) for line in options.data.read_text(encoding="utf-8").splitlines()]
    config: Any = peft.LoraConfig.from_pretrained(options.adapter)
    config.inference_mode = False
    trainer = trl.DPOTrainer(
        model=transformers.AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32),
        args=trl.DPOConfig(
            output_dir=str(options.out.with_suffix(".trl")), beta=BETA, use_cpu=True, bf16=False,
            max_length=options.max_length, gradient_checkpointing=False, report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=transformers.AutoTokenizer.from_pretrained(options.model),
        peft_config=config,
    )  # fmt: skip
    weights = load_file(options.adapter / "adapter_model.safetensors")
    unknown = peft.set_peft_model_state_dict(trainer.model, weights).unexpected_keys
    if unknown:
        raise SystemExit(f"TRL's model does not know {unknown}")
    if len(trainer.train_dataset) != len(rows):
        raise SystemExit(f"TRL kept {len(trainer.train_dataset)} of {len(rows)} pairs")
    with torch.no_grad():
        return [
            float(trainer.compute_loss(trainer.model, trainer.data_collator([row])))
            for row in trainer.train_dataset
        ]


def main() -> None:
    """Score the pairs and write their losses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=("ours", "trl"))
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--adapter", type=Path, required=True)
    parser.add_argument("--max-length", type=int, default=512)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    losses = ours(options) if options.side == "ours" else trls(options)
    options.out.write_text(json.dumps({"pair_losses": losses}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
