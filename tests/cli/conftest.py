# SPDX-License-Identifier: Apache-2.0
"""The tiny model, its rows, and the runs that several tests look at."""

import pytest

from tests.cli.tiny_model import QUICK, alignax, pairs, write_model, write_rows


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A folder with ``model`` and ``pairs.jsonl``."""
    folder = tmp_path_factory.mktemp("tiny")
    write_model(folder / "model")
    write_rows(folder / "pairs.jsonl", pairs(24))
    return folder


@pytest.fixture(scope="session")
def dpo_run(tiny):
    """A finished LoRA-DPO run."""
    run = tiny / "runs" / "dpo"
    words = ("--model", tiny / "model", "--data", tiny / "pairs.jsonl", "--output", run)
    assert alignax("dpo", *words, *QUICK) == 0
    return run


@pytest.fixture(scope="session")
def sft_run(tiny):
    """A finished LoRA-SFT run."""
    run = tiny / "runs" / "sft"
    words = ("--model", tiny / "model", "--data", tiny / "pairs.jsonl", "--output", run)
    assert alignax("sft", *words, *QUICK) == 0
    return run
