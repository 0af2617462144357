# SPDX-License-Identifier: Apache-2.0
"""A home whose cache cannot be written: said, with the way out, and no reason to lose a run."""

import pytest

from alignax.errors import DataError
from tests.cli.tiny_model import QUICK, alignax


@pytest.fixture
def sealed(tmp_path, monkeypatch):
    """A cache folder that nobody can make, not even root: a file is in its way."""
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("ALIGNAX_CACHE", str(tmp_path / "file" / "cache"))


def test_rows_need_a_place(tiny, tmp_path, sealed):
    words = ("--model", tiny / "model", "--data", tiny / "pairs.jsonl")
    with pytest.raises(DataError, match="cannot write") as caught:
        alignax("dpo", *words, "--output", tmp_path / "run", *QUICK)
    assert "--data.cache" in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_the_rest_goes_on_without_its_caches(tiny, tmp_path, sealed, capsys):
    words = ("--model", tiny / "model", "--data", tiny / "pairs.jsonl")
    more = ("--data.cache", tmp_path / "rows", "--output", tmp_path / "run")
    assert alignax("dpo", *words, *more, *QUICK, "--export.merged", "false") == 0
    assert "reference log-probs are not kept for other runs" in capsys.readouterr().err
    assert (tmp_path / "run" / "export" / "adapter" / "adapter_config.json").exists()
