# SPDX-License-Identifier: Apache-2.0
"""The benchmark scripts still fit the parts of the trainer that they time."""

import importlib

import pytest

from benchmarks.point import RandomPairs, Setting


@pytest.mark.parametrize("name", ["gemm", "model", "pair_losses", "peers", "point", "step"])
def test_scripts_import(name):
    assert callable(importlib.import_module(f"benchmarks.{name}").main)


def test_random_pairs_have_the_asked_lengths():
    pairs = RandomPairs(Setting(pairs=3, length=256))
    assert pairs.lengths.tolist() == [[128, 64, 64]] * 3
    assert [len(answer) for answer in pairs[1].answers] == [64, 64]
    drawn = RandomPairs(Setting(pairs=4000)).lengths
    assert drawn.mean(0) == pytest.approx([112, 38, 48], rel=0.05)
