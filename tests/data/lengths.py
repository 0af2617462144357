# SPDX-License-Identifier: Apache-2.0
"""Lengths like those of known preference sets, and a fake data set made from lengths."""

import numpy as np

from alignax.records import EncodedExample


def encoded(prompt, *answers, row_id="r"):
    ids = [np.array(part, np.int32) for part in (prompt, *answers)]
    return EncodedExample(row_id, ids[0], tuple(ids[1:]), (True,) * len(answers))


class FakeRows:
    """Examples of given lengths; every id of example i is i + 1. Counts what is read."""

    def __init__(self, lengths):
        self.lengths = np.asarray(lengths)
        self.branches = self.lengths.shape[1] - 1
        self.reads = 0

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        self.reads += 1
        parts = [np.full(size, index + 1) for size in self.lengths[index]]
        return encoded(*parts, row_id=f"row{index}")


def hh_like(count, seed=0):
    """Short chats: prompt 112 tokens on average, answers 38 and 48, 900 in all at most."""
    rng = np.random.default_rng(seed)
    spread = 0.8
    lengths = np.stack(
        [rng.lognormal(np.log(mean) - spread**2 / 2, spread, count) for mean in (112, 38, 48)], 1
    )
    total = lengths.sum(1, keepdims=True)
    return (lengths * np.minimum(1, 900 / total)).clip(3).astype(int)


def ultrafeedback_like(count, seed=0):
    """Long answers of some 300 tokens; the prompt and one answer have 512 at most."""
    rng = np.random.default_rng(seed)
    prompt = rng.lognormal(4.3, 0.8, count).clip(10, 400)
    answers = rng.lognormal(np.log(300) - 0.18, 0.6, (count, 2)).clip(10)
    return np.column_stack([prompt, np.minimum(answers, 512 - prompt[:, None])]).astype(int)


def indices(step):
    """Examples of a step, row by row."""
    return [i for micro in step for row in micro for i in row]
