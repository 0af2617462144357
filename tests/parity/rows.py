# SPDX-License-Identifier: Apache-2.0
"""Real rows → conversational pairs, read plainly (nothing of alignax takes part)."""

import contextlib
import gzip
import json
import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("ALIGNAX_SHARED", ROOT.parent / "shared")) / "data"
ULTRAFEEDBACK = SHARED / "ultrafeedback" / "conversational" / "train.jsonl.gz"
HH = SHARED / "hh_rlhf" / "helpful-base" / "test.from_dsp.jsonl.gz"
QUICKSTART = ROOT / "src" / "alignax" / "assets" / "quickstart_train.jsonl"


def read(file):
    """Read JSON lines, packed or not; real files hold some damaged lines."""
    if not file.exists():
        pytest.skip(f"{file} is not at hand")
    open_file = gzip.open if file.suffix == ".gz" else open
    found = []
    with open_file(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            with contextlib.suppress(json.JSONDecodeError):
                found.append(json.loads(line))
    return found


def dialogue(transcript):
    """Cut a transcript of HH into turns."""
    found = re.findall(
        r"\n\n(Human|Assistant): ?(.*?)(?=\n\nHuman:|\n\nAssistant:|\Z)", transcript, re.DOTALL
    )
    roles = {"Human": "user", "Assistant": "assistant"}
    return [{"role": roles[who], "content": said.strip()} for who, said in found]


def as_pair(row):
    """Give any of the three kinds the columns prompt, chosen and rejected, all turns."""
    if "prompt" in row and not isinstance(row["prompt"], str):
        return {name: row[name] for name in ("prompt", "chosen", "rejected")}
    chosen, rejected = row["chosen"], row["rejected"]
    if isinstance(chosen, str):
        chosen, rejected = dialogue(chosen), dialogue(rejected)
    return {"prompt": chosen[:-1], "chosen": chosen[-1:], "rejected": rejected[-1:]}


def is_pair(row):
    """Whether both answers follow the same turns."""
    if "prompt" in row:
        return True
    chosen, rejected = row["chosen"], row["rejected"]
    if isinstance(chosen, str):
        chosen, rejected = dialogue(chosen), dialogue(rejected)
    return len(chosen) > 1 and chosen[:-1] == rejected[:-1]


def short_pairs(count):
    """Pairs with short prompts and answers of some length."""
    if not (ULTRAFEEDBACK.exists() and HH.exists()):
        return [as_pair(row) for row in read(QUICKSTART)[:count]]
    found = []
    for file in (ULTRAFEEDBACK, HH):
        usable = [as_pair(row) for row in read(file) if is_pair(row)]
        fitting = [p for p in usable if 20 < spelled(p["prompt"]) < 220 and answers_fit(p)]
        found += fitting[: count // 2]
    return found


def answers_fit(pair):
    """Whether the two answers are of some length and differ from their beginnings on."""
    answers = [pair[side][0]["content"] for side in ("chosen", "rejected")]
    lengths = sorted(map(len, answers))
    return lengths[0] > 10 and 100 < lengths[1] < 500 and answers[0][:40] != answers[1][:40]


def spelled(messages):
    """Characters of some turns."""
    return sum(len(message["content"]) for message in messages)


def as_text(pair):
    """Write a pair as TRL's standard form.

    A single question is followed by its answer without anything between them, so that tokens may
    merge across the boundary; a dialogue is written as HH does.
    """
    prompt = pair["prompt"]
    if len(prompt) == 1:
        names = {"prompt": prompt, "chosen": pair["chosen"], "rejected": pair["rejected"]}
        return {name: turns[0]["content"] for name, turns in names.items()}
    speaker = {"user": "Human", "assistant": "Assistant", "system": "System"}
    text = "".join(f"\n\n{speaker[m['role']]}: {m['content']}" for m in prompt)
    answers = {side: f" {pair[side][0]['content']}" for side in ("chosen", "rejected")}
    return {"prompt": f"{text}\n\nAssistant:", **answers}
