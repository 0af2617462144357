# SPDX-License-Identifier: Apache-2.0
"""``alignax score`` on real rows equals transformers, which sees every answer by itself.

The other side is written plainly: render the conversation once, tokenise it once, start at the
longest common prefix, stop after the first stop token, run one sequence at a time.
"""

import contextlib
import io
import json

import numpy as np
import pytest

from alignax.cli.main import run
from alignax.models.tokenizer import load_tokenizer
from alignax.models.weights import resolve_model
from tests.parity import rows

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

MAX_LENGTH = 384
STOP = "<|im_end|>"
TOLERANCE = 2e-3
KINDS = ("transcripts", "conversational", "text")


@pytest.fixture(scope="module")
def torch_model(smollm2):
    """Model and tokenizer as transformers loads them."""
    model = transformers.AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(smollm2)


def raw_rows(kind):
    """Four rows of a kind as the file has them, and the same as a prompt and two answers."""
    file = {"transcripts": rows.HH}.get(kind, rows.ULTRAFEEDBACK)
    found = [row for row in rows.read(file) if rows.is_pair(row)]
    # Prompts of several lengths, so that some answers have to be cut.
    by_length = sorted(found[:60], key=lambda row: rows.spelled(rows.as_pair(row)["prompt"]))
    chosen = [by_length[place] for place in (2, 10, 20, 30)]
    pairs = [rows.as_pair(row) for row in chosen]
    if kind != "text":
        return chosen, pairs
    texts = [rows.as_text(pair) for pair in pairs]
    return texts, texts


def split_ids(tokenizer, pair):
    """Tokenise both sequences; cut them into the prompt and two answers."""
    if isinstance(pair["prompt"], str):
        sides = [pair["chosen"], pair["rejected"]]
        prompt = tokenizer(pair["prompt"]).input_ids
        fulls = [tokenizer(pair["prompt"] + side + STOP).input_ids for side in sides]
    else:
        turns = {"tokenize": True, "return_dict": False}
        prompt = tokenizer.apply_chat_template(pair["prompt"], add_generation_prompt=True, **turns)
        fulls = [
            tokenizer.apply_chat_template(pair["prompt"] + pair[side], **turns)
            for side in ("chosen", "rejected")
        ]
    start = 0
    while all(start < len(ids) and ids[start] == prompt[start] for ids in (prompt, *fulls)):
        start += 1
    stop = tokenizer.convert_tokens_to_ids(STOP)
    answers = [ids[start : ids.index(stop, start) + 1] for ids in fulls]
    return prompt[:start], [answer[: MAX_LENGTH - start] for answer in answers]


def log_prob(model, prompt, answer):
    """Sum the log-probs of an answer's tokens."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + answer])).logits[0].double()
    predicted = torch.log_softmax(logits[len(prompt) - 1 : -1], -1)
    return float(predicted.gather(1, torch.tensor(answer)[:, None]).sum())


def score(folder, file, output):
    """Run the command."""
    command = [
        "score", "--model", str(folder), "--data", str(file), "--output", str(output),
        "--data.max_length", str(MAX_LENGTH), "--json",
    ]  # fmt: skip
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        assert run(command) == 0
    totals = json.loads(shown.getvalue())
    return totals, [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]


def test_real_rows(smollm2, torch_model, write_rows, tmp_path, record_property):
    """Boundaries and token counts exactly, sums of log-probs within 2e-3, in file order."""
    model, tokenizer = torch_model
    worst, cut = 0.0, 0
    for kind in KINDS:
        content, pairs = raw_rows(kind)
        totals, lines = score(smollm2, write_rows(content), tmp_path / f"{kind}.jsonl")
        assert (totals["scored"], len(lines)) == (len(pairs), len(pairs))
        for line, pair in zip(lines, pairs, strict=True):
            prompt, answers = split_ids(tokenizer, pair)
            assert line["boundary"] == len(prompt), (kind, pair)
            for side, answer in zip(("chosen", "rejected"), answers, strict=True):
                assert line[f"{side}_tokens"] == len(answer), (kind, side, pair)
                cut += line[f"{side}_cut"] > 0
                want = log_prob(model, prompt, answer)
                worst = max(worst, abs(line[f"{side}_logp"] - want))
                np.testing.assert_allclose(line[f"{side}_logp"], want, rtol=0, atol=TOLERANCE)
    assert cut, "some answers are there to be cut"
    record_property("worst", worst)


def test_gguf_file_reads_as_transformers_reads_it(smollm2):
    """The weights and the tokenizer of the packaged file, by another reader of GGUF."""
    file = resolve_model("demo")
    other = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    ours = transformers.AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    theirs = other.state_dict()
    for name, tensor in ours.state_dict().items():
        np.testing.assert_array_equal(tensor.numpy(), theirs[name].numpy(), err_msg=name)
    tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    mine = load_tokenizer(file)
    for row in rows.short_pairs(8):
        for text in rows.as_text(row).values():
            assert mine.encode(text) == tokenizer.encode(text), text
