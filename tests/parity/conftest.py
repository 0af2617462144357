# SPDX-License-Identifier: Apache-2.0
"""Real rows and real weights for the comparisons with the torch libraries."""

import json

import pytest

from alignax.errors import MissingExtra
from alignax.export.card import RunFacts
from alignax.export.huggingface import write_merged
from alignax.models.tokenizer import load_tokenizer
from alignax.models.weights import load_model, resolve_model
from tests.parity import rows


def pytest_collection_modifyitems(items):
    """Let other libraries warn about themselves."""
    for item in items:
        item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory):
    """SmolLM2-135M-Instruct of the demo package as a float32 Hugging Face folder."""
    try:
        file = resolve_model("demo")
    except MissingExtra as absent:
        pytest.skip(str(absent))
    loaded, tokenizer = load_model(file), load_tokenizer(file)
    folder = tmp_path_factory.mktemp("smollm2") / "folder"
    facts = RunFacts("demo", loaded.weights_hash, "dpo", "none", {}, {})
    stops = loaded.stop_ids
    write_merged(folder, loaded.model, loaded, tokenizer, facts, stop_ids=stops, dtype="float32")
    return folder


@pytest.fixture(scope="session")
def write_rows(tmp_path_factory):
    """Write rows to a file of JSON lines."""

    def write(content):
        file = tmp_path_factory.mktemp("rows") / "rows.jsonl"
        file.write_text("".join(f"{json.dumps(row)}\n" for row in content), encoding="utf-8")
        return file

    return write


@pytest.fixture(scope="session")
def pairs():
    """Eight short real pairs as turns: half single questions, half dialogues."""
    return rows.short_pairs(8)
