# SPDX-License-Identifier: Apache-2.0
"""Hand-derived values of every loss; a new loss adds its rows here.

The sum behind each value is spelled out, so that a reader can check it on paper.
"""

import math
from typing import NamedTuple

from alignax.records import PairLogps


class Case(NamedTuple):
    """One pair (or, for SFT, one answer: policy_chosen and its tokens) and its loss."""

    name: str
    loss: str
    pair: PairLogps
    settings: dict[str, float]
    expected: float


ONE = PairLogps(-10.0, -12.0, -11.0, -11.0, 1, 1)
"""Δ chosen = 1, Δ rejected = -1, so m = 2."""

LOG3 = PairLogps(-10.0, -10.0 - 10 * math.log(3), -10.0, -10.0, 4, 5)
"""β m = 0.1 · 10 · ln 3 = ln 3, so σ = 3/4."""

CASES = [
    Case("published, m = 2", "sigmoid", ONE, {"beta": 0.1}, 0.598139),
    Case("default beta is 0.1", "sigmoid", ONE, {}, 0.598139),
    Case("step 0: ln 2", "sigmoid", PairLogps(-3.0, -9.0, -3.0, -9.0, 2, 7), {}, math.log(2)),
    Case("log(4/3)", "sigmoid", LOG3, {"beta": 0.1}, math.log(4 / 3)),
    Case(
        "smoothing: 0.9 log(4/3) + 0.1 log 4",
        "sigmoid",
        LOG3,
        {"label_smoothing": 0.1},
        0.9 * math.log(4 / 3) + 0.1 * math.log(4),
    ),
    Case(
        "NLL term: 10 nats over 4 tokens, half weight",
        "sigmoid",
        LOG3,
        {"nll_weight": 0.5},
        math.log(4 / 3) + 0.5 * 10 / 4,
    ),
    Case(
        "KL term: 0.2 nats a token, weight 3",
        "sigmoid",
        LOG3._replace(kl_chosen=0.2),
        {"kl_weight": 3.0},
        math.log(4 / 3) + 0.6,
    ),
    Case("KL is ignored unless asked for", "sigmoid", LOG3._replace(kl_chosen=9.0), {}, 0.287682),
    Case("NLL of one answer: 8 nats, 2 tokens", "nll", ONE._replace(policy_chosen=-8.0), {}, 8.0),
]
