# SPDX-License-Identifier: Apache-2.0
"""DPO loss of each of some pairs under a given adapter, as TRL computes it; needs no alignax.

TRL's ``compute_loss`` is asked about one pair at a time. See ``pair_losses.py``.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
import trl
from datasets import Dataset
from safetensors.torch import load_file


def losses(options: argparse.Namespace) -> list[float]:
    """Ask TRL."""
    rows = [json.loads(line) for line in options.data.read_text(encoding="utf-8").splitlines()]
    config: Any = peft.LoraConfig.from_pretrained(options.adapter)
    config.inference_mode = False
    trainer = trl.DPOTrainer(
        model=transformers.AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32),
        args=trl.DPOConfig(
            output_dir=str(options.out.with_suffix(".trl")), beta=options.beta, use_cpu=True,
            bf16=False, max_length=options.max_length, gradient_checkpointing=False,
            report_to="none", disable_tqdm=True,
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
    for name in ("--model", "--data", "--adapter", "--out"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--max-length", type=int, default=512)
    parser.add_argument("--beta", type=float, default=0.1)
    options = parser.parse_args()
    found = losses(options)
    options.out.write_text(json.dumps({"pair_losses": found}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
