# SPDX-License-Identifier: Apache-2.0
"""Greedy answers of SmolLM2-135M-Instruct: are they transformers', and how quickly do they come?

    .venv/bin/python -m benchmarks.generate FOLDER --prompts FILE [--rounds 3]

FOLDER is for the model and the prompt ids; FILE holds rows with `instruction`, for example those
of AlpacaEval. Both sides load one float32 folder, get the same ids, 16 prompts at a time, sorted
by length, and write ``--tokens`` tokens to each whatever stop token comes, so that their work is
equal. A round is one process of each side, in turn, each with a warm-up call. The torch that is
needed is that of ``make test-parity``.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BATCH = 16


def ours(folder: Path, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """Answer with alignax."""
    from alignax.generate.sampler import Sampler
    from alignax.models.weights import load_model

    model = load_model(folder).model
    sampler = Sampler(model, stop_ids=(), decode=lambda ids: "", batch_size=BATCH)
    sampler.generate([[1] * len(p) for p in prompts], max_new_tokens=tokens)
    return timed(lambda: [list(a.ids) for a in sampler.generate(prompts, max_new_tokens=tokens)])


def theirs(folder: Path, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """Answer with transformers; shorter prompts are padded on the left."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def answer(rows: list[list[int]]) -> list[list[int]]:
        width = max(map(len, rows))
        ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
        with torch.inference_mode():
            out = model.generate(
                input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=tokens,
                min_new_tokens=tokens, eos_token_id=None, pad_token_id=0,
            )  # fmt: skip
        return out[:, width:].tolist()

    order = sorted(range(len(prompts)), key=lambda row: len(prompts[row]))
    batches = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
    answer([prompts[row] for row in batches[0]])

    def answer_all() -> list[list[int]]:
        rows = [row for batch in batches for row in batch]
        found = [ids for batch in batches for ids in answer([prompts[row] for row in batch])]
        return [ids for _, ids in sorted(zip(rows, found, strict=True))]

    return timed(answer_all)


def timed(work: Any) -> Any:
    """Print the seconds of some work as JSON, with its result."""
    wall, cpu = time.perf_counter(), time.process_time()
    answers = work()
    record = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
    print(json.dumps(record | {"answers": answers}))
    return answers


def prepare(options: argparse.Namespace) -> None:
    """Write the model's folder and the prompt ids, once."""
    from alignax.data.encode import EncodeOptions, Encoder
    from alignax.data.readers import read_files
    from alignax.models.tokenizer import load_tokenizer
    from alignax.models.weights import resolve_model, stop_ids_of
    from benchmarks.model import write

    if not (options.folder / "model" / "config.json").exists():
        write(options.folder / "model")
    path = resolve_model("demo")
    encoder = Encoder(load_tokenizer(path), EncodeOptions(), stop_ids=stop_ids_of(path))
    rows = [row for _, _, row in read_files([options.prompts])][: options.count]
    ids = [encoder.prompt_ids([{"role": "user", "content": row["instruction"]}]) for row in rows]
    (options.folder / "prompts.json").write_text(json.dumps([i for i in ids if len(i) <= 256]))


def compare(options: argparse.Namespace) -> None:
    """Run both sides in turn; print medians and what differs."""
    prepare(options)
    records: dict[str, list[dict[str, Any]]] = {"ours": [], "transformers": []}
    for number in range(options.rounds):
        for side, found in records.items():
            python = sys.executable if side == "ours" else str(options.torch_python)
            command = [
                python, "-m", "benchmarks.generate", str(options.folder), "--side", side,
                "--tokens", str(options.tokens),
            ]  # fmt: skip
            out = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
            found.append(json.loads(out.stdout.splitlines()[-1]))
            print(f"round {number + 1}: {side} {found[-1]['seconds']:.1f} s", file=sys.stderr)
    one, two = (records[side][-1]["answers"] for side in records)
    written = sum(map(len, one))
    rates = {
        side: statistics.median(written / r["seconds"] for r in found)
        for side, found in records.items()
    }
    ratios = [
        b["seconds"] / a["seconds"]
        for a, b in zip(records["ours"], records["transformers"], strict=True)
    ]
    differ = [row for row, (a, b) in enumerate(zip(one, two, strict=True)) if a != b]
    summary = {
        "prompts": len(one), "equal_answers": len(one) - len(differ), "differ": differ,
        "tokens_per_s": rates, "ratio": statistics.median(ratios), "ratios": ratios,
    }  # fmt: skip
    print(json.dumps(summary, indent=1))


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--count", type=int, default=48)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--torch-python", type=Path, default=ROOT / ".venv-parity/bin/python")
    parser.add_argument("--side", choices=("ours", "transformers"))
    options = parser.parse_args()
    if options.side is None:
        compare(options)
        return
    prompts = json.loads((options.folder / "prompts.json").read_text())
    side = ours if options.side == "ours" else theirs
    side(options.folder / "model", prompts, options.tokens)


if __name__ == "__main__":
    main()
