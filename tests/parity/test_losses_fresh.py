# SPDX-License-Identifier: Apache-2.0
"""Loss by loss: value and slope equal what the installed TRL computes, and what is stored."""

import json

import pytest

from tests.parity.loss_cases import CASES, compare, ours

pytest.importorskip("torch")
pytest.importorskip("trl")

from tests.parity.make_losses import FILE, theirs  # noqa: E402


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.trainer}: {case.name}")
def test_loss_and_slope_equal_trl(case):
    fresh = theirs(case)
    compare(ours(case), fresh)
    stored = json.loads(FILE.read_text(encoding="utf-8"))
    compare(stored[case.name + case.trainer], fresh)
