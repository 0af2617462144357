# SPDX-License-Identifier: Apache-2.0
"""Loss by loss: value and slope equal what TRL gave when tests/parity/losses.json was made."""

import json
from pathlib import Path

import pytest

from tests.parity.loss_cases import CASES, compare, ours

STORED = json.loads(
    (Path(__file__).parents[1] / "parity" / "losses.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.trainer}: {case.name}")
def test_loss_and_slope_equal_stored_values(case):
    compare(ours(case), STORED[case.name + case.trainer])


def test_every_stored_value_is_compared():
    assert set(STORED) == {case.name + case.trainer for case in CASES}
