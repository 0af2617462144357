# SPDX-License-Identifier: Apache-2.0
"""The benchmark scripts still fit the parts of the trainer that they time."""

import importlib

import pytest

from benchmarks.point import Setting, lengths_of
from benchmarks.random_step import RandomPairs


@pytest.mark.parametrize(
    "name", ["gemm", "memory", "model", "pair_losses", "peers", "point", "step", "sweep"]
)
def test_scripts_import(name):
    assert callable(importlib.import_module(f"benchmarks.{name}").main)


def test_random_pairs_have_the_asked_lengths():
    pairs = RandomPairs(lengths_of(Setting(pairs=3, length=256)), 100)
    assert pairs.lengths.tolist() == [[128, 64, 64]] * 3
    assert [len(answer) for answer in pairs[1].answers] == [64, 64]
    drawn = lengths_of(Setting(pairs=4000))
    assert drawn.mean(0) == pytest.approx([112, 38, 48], rel=0.05)
