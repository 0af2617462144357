# SPDX-License-Identifier: Apache-2.0
"""Hand-derived values of every loss; a new loss adds its rows here.

The sum behind each value is spelled out, so that a reader can check it on paper. A case with
several pairs is one batch; its value is the mean.
"""

import math
from typing import Any, NamedTuple

from alignax.records import PairLogps


class Case(NamedTuple):
    """One pair (or, for SFT, one answer: policy_chosen and its tokens), or a batch of pairs."""

    name: str
    loss: str
    pair: PairLogps | list[PairLogps]
    settings: dict[str, Any]
    expected: float


LN2, LN3, LN43, LN4 = math.log(2), math.log(3), math.log(4 / 3), math.log(4)

ONE = PairLogps(-10.0, -12.0, -11.0, -11.0, 1, 1)
"""Δ chosen = 1, Δ rejected = -1, so m = 2."""

LOG3 = PairLogps(-10.0, -10.0 - 10 * LN3, -10.0, -10.0, 4, 5)
"""Δ = 0 and -10 ln 3: β m = 0.1 · 10 · ln 3 = ln 3, so σ = 3/4."""

BOTH3 = PairLogps(-20.0 + 10 * LN3, -20.0 - 10 * LN3, -20.0, -20.0, 2, 2)
"""β Δ = ln 3 and -ln 3: σ of each is 3/4 and 1/4; β m = 2 ln 3, so σ = 9/10."""

SIX = PairLogps(-2.0, -9.0, -5.0, -6.0, 1, 1)
"""Δ = 3 and -3: margin 6, one token per answer."""

UNEVEN = PairLogps(-4.0, -20.0, -6.0, -15.0, 2, 10)
"""Δ = 2 over 2 tokens and -5 over 10: per token 1 and -1/2, so h = 3/2; sums: 7."""

HALF = PairLogps(-2 * LN2, -3 * LN4, 0.0, 0.0, 2, 3)
"""Per token log ½ and log ¼: odds 1 and 1/3."""


def moved(chosen: float, rejected: float) -> PairLogps:
    """A pair with these log-ratios."""
    return PairLogps(chosen - 9.0, rejected - 8.0, -9.0, -8.0, 3, 2)


def log_sigmoid(x: float) -> float:
    """Plain log σ."""
    return -math.log1p(math.exp(-x))


CASES = [
    Case("published, m = 2", "sigmoid", ONE, {"beta": 0.1}, 0.598139),
    Case("default beta is 0.1", "sigmoid", ONE, {}, 0.598139),
    Case("margin 6", "sigmoid", SIX, {}, 0.437488),
    Case("step 0: ln 2", "sigmoid", PairLogps(-3.0, -9.0, -3.0, -9.0, 2, 7), {}, LN2),
    Case("log(4/3)", "sigmoid", LOG3, {"beta": 0.1}, LN43),
    Case("smoothing", "sigmoid", LOG3, {"label_smoothing": 0.1}, 0.9 * LN43 + 0.1 * LN4),
    Case("NLL: 10 nats over 4 tokens, half", "sigmoid", LOG3, {"nll_weight": 0.5}, LN43 + 1.25),
    Case(
        "KL term: 0.2 nats a token, weight 3",
        "sigmoid",
        LOG3._replace(kl_chosen=0.2),
        {"kl_weight": 3.0},
        LN43 + 0.6,
    ),
    Case("KL is ignored unless asked for", "sigmoid", LOG3._replace(kl_chosen=9.0), {}, LN43),
    Case("policy only: 7, not 6", "sigmoid", SIX, {"reference_free": True}, -log_sigmoid(0.7)),
    Case(
        # u = 1/2 and 2: 1 - 1/u is -1 and 1/2, so β m = -1.5.
        "forward KL",
        "sigmoid",
        moved(-LN2, LN2),
        {"beta": 1.0, "divergence": "forward_kl"},
        math.log1p(math.exp(1.5)),
    ),
    Case(
        # u = 3 and 1/3: log(2u/(1+u)) is log(3/2) and log(1/2), so m = ln 3.
        "Jensen-Shannon",
        "sigmoid",
        moved(LN3, -LN3),
        {"beta": 1.0, "divergence": "js"},
        LN43,
    ),
    Case(
        # u = 4 and 1/4, α = 1/2: (1 - u^-½) / ½ is 1 and -2, so m = 3.
        "α-divergence",
        "sigmoid",
        moved(LN4, -LN4),
        {"beta": 1.0, "divergence": "alpha"},
        -log_sigmoid(3.0),
    ),
    Case(
        "α = 0 is the reverse KL",
        "sigmoid",
        LOG3,
        {"divergence": "alpha", "divergence_alpha": 0.0},
        LN43,
    ),
    Case("per token: β h = 5 · 3/2", "sigmoid_norm", UNEVEN, {}, -log_sigmoid(7.5)),
    # (0.9 ln(4/3) - 0.1 ln 4) / 0.8
    Case("robust, ε = 0.1", "robust", LOG3, {}, (0.9 * LN43 - 0.1 * LN4) / 0.8),
    Case("ε = 0 is DPO", "robust", LOG3, {"label_smoothing": 0.0}, LN43),
    Case("means: (3/2 - 5)²", "ipo", UNEVEN, {}, 12.25),
    Case("sums: (7 - 5)²", "ipo", UNEVEN, {"length_normalised": False}, 4.0),
    Case("margin 6: (6 - 5)²", "ipo", SIX, {}, 1.0),
    Case("margin 6: 1 - 0.6", "hinge", SIX, {}, 0.4),
    Case("past the margin", "hinge", moved(8.0, -8.0), {}, 0.0),
    # 2 (log ½ - log ¼) - 1 = 2 ln 2 - 1
    Case("means of the policy", "simpo", HALF, {}, -log_sigmoid(2 * LN2 - 1)),
    Case("no margin: σ = 4/5", "simpo", HALF, {"target_margin": 0.0}, math.log(5 / 4)),
    # p^-1: 2 and 4, so (1 - 2) - (1 - 4) = 2; 0.5 · 2 - 1 = 0
    Case("α = 1", "alphapo", HALF, {"reward_shape": 1.0, "beta": 0.5}, LN2),
    Case("α = 0 is SimPO", "alphapo", HALF, {"reward_shape": 0.0}, -log_sigmoid(2 * LN2 - 1)),
    # odds ratio 1 / (1/3) = 3, σ(ln 3) = 3/4; NLL ln 2 a token
    Case("odds ratio 3", "orpo", HALF, {}, LN2 + 0.1 * LN43),
    Case("without NLL", "orpo", HALF, {"nll_weight": 0.0, "beta": 1.0}, LN43),
    # policy margin 10 ln 3, β 0.1; NLL 10 / 4
    Case("uniform reference, NLL", "cpo", LOG3, {}, LN43 + 2.5),
    Case("without NLL", "cpo", LOG3, {"nll_weight": 0.0}, LN43),
    # mean Δ = -5 ln 3 < 0, so z = 0; 1 - σ(0) = 1/2 and 1 - σ(ln 3) = 1/4; mean 3/8
    Case("z clipped at 0", "kto", LOG3, {}, 3 / 8),
    # Δ = 30 ln 3 and 10 ln 3, so z = 20 ln 3: chosen 1 - 3/4, rejected 1 - σ(ln 3) = 1/4
    Case("z = 20 ln 3", "kto", moved(30 * LN3, 10 * LN3), {}, 1 / 4),
    Case(
        "weights 2 and 1/2: (2 · 1/2 + 1/2 · 1/4) / 2",
        "kto",
        LOG3,
        {"desirable_weight": 2.0, "undesirable_weight": 0.5},
        (1 + 1 / 8) / 2,
    ),
    Case(
        # The first pair lacks its rejected answer: Δ = 10 ln 3, 0, -10 ln 3, so z = 0;
        # 1/4, 1/2 and 1/4 over three answers.
        "single labelled answers",
        "kto",
        [moved(10 * LN3, 0.0)._replace(rejected_tokens=0), moved(0.0, -10 * LN3)],
        {},
        1 / 3,
    ),
    # z of chosen = 10 ln 3 (mean Δ of chosen), z of rejected = 0: 1 - 3/4, 1 - σ(ln 3 + ln 3)
    Case("other side's mean", "kto_pair", BOTH3, {}, (1 / 4 + 1 / 10) / 2),
    # r = 0 and -ln 3, so δ = -ln 3 / 2: both sides -log σ(ln 3 / 2)
    Case("δ in the middle", "bco", LOG3, {}, -log_sigmoid(LN3 / 2)),
    Case("δ = 0: both σ = 3/4", "bco", BOTH3, {}, LN43),
    Case("sum of both sides", "bco_pair", BOTH3, {}, 2 * LN43),
    Case("no δ: ln 2 + ln(4/3)", "bco_pair", LOG3, {"reward_shift": False}, LN2 + LN43),
    Case(
        # q = 3/4, ε = 1/4: the label's own distribution
        "the label itself",
        "exo",
        LOG3,
        {"label_smoothing": 0.25},
        0.0,
    ),
    Case(
        "ε = 0.1",
        "exo",
        LOG3,
        {"label_smoothing": 0.1},
        0.75 * math.log(0.75 / 0.9) + 0.25 * math.log(0.25 / 0.1),
    ),
    # σ = 3/4 and 1/4: ln(4/3) + ½ ln 4 + ½ ln(4/3)
    Case("both answers", "nca", BOTH3, {}, 1.5 * LN43 + 0.5 * LN4),
    Case("(1 - 5)² + (-1 + 5)²", "sppo", ONE, {"beta": 0.1}, 32.0),
    Case("default beta: 499² + 499²", "sppo", ONE, {}, 2 * 499.0**2),
    Case("1/4 + 1/4", "apo_zero", BOTH3, {}, 0.5),
    Case("3/4 + 1 - 9/10", "apo_down", BOTH3, {}, 0.85),
    Case(
        # Policy margins 10 ln 3 and 0, reference 0 and -10 ln 3: sorted differences 10 ln 3.
        "two pairs, crossed",
        "aot",
        [
            PairLogps(0.0, -10 * LN3, -5.0, -5.0, 1, 1),
            PairLogps(-1.0, -1.0, -7.0 - 10 * LN3, -7.0, 1, 1),
        ],
        {},
        LN43,
    ),
    Case(
        # Chosen Δ: 0 and 10 ln 3; rejected: 0 and -10 ln 3, sorted -10 ln 3 and 0.
        "two pairs, crossed",
        "aot_unpaired",
        [moved(0.0, 0.0), moved(10 * LN3, -10 * LN3)],
        {},
        LN43,
    ),
    # ρ = ln 3, τ = 1/2: s = σ(2 ln 3) = 9/10; 0.1 ln(4/3) + 0.9 / 3
    Case("blend", "discopop", LOG3, {"blend_temperature": 0.5}, 0.1 * LN43 + 0.3),
    # 4 tokens against 5: ln 3 - 0.01
    Case("longer answer lost", "rdpo", LOG3, {}, -log_sigmoid(LN3 - 0.01)),
    Case("no penalty", "rdpo", LOG3, {"length_penalty": 0.0}, LN43),
    Case("no tail", "ld_dpo", LOG3, {}, LN43),
    Case(
        # The rejected answer's fall of 20 ln 3 lies beyond the chosen one's length; half counts.
        "half of the tail",
        "ld_dpo",
        PairLogps(-9.0, -9.0 - 20 * LN3, -9.0, -9.0, 4, 8)._replace(
            policy_tail_rejected=-3.0 - 20 * LN3, reference_tail_rejected=-3.0
        ),
        {},
        LN43,
    ),
    Case(
        # Weights (1/2)·(1/4): means log ½ and log ¼ a token.
        "unaligned weights",
        "wpo",
        HALF._replace(reference_chosen=-2 * LN2, reference_rejected=-3 * LN4),
        {"align_samples": False},
        LN2 / 8,
    ),
    Case(
        # Σ p² = 1/2 and 1/4 at every token: typical samples weigh 1.
        "aligned weights",
        "wpo",
        HALF._replace(
            reference_chosen=-2 * LN2,
            reference_rejected=-3 * LN4,
            squares_chosen=-2 * LN2,
            squares_rejected=-3 * LN4,
        ),
        {},
        LN2,
    ),
    # Δ = -1 and -11: m = 10, minus 50 · 1
    Case("chosen fell by 1", "dpop", moved(-1.0, -11.0), {"beta": 0.1}, math.log1p(math.exp(4.0))),
    Case("chosen rose", "dpop", SIX, {"beta": 0.1}, 0.437488),
    Case("NLL 10 / 4, weight 1", "rpo", LOG3, {}, LN43 + 2.5),
    Case("10 nats, 4 tokens", "chosen_nll", LOG3, {}, 2.5),
    Case(
        # m = 10 ln 3 + 4; D(rejected) - D(chosen) = 4
        "KL of 5 and 1",
        "tdpo1",
        moved(4.0, -10 * LN3)._replace(forward_kl_chosen=1.0, forward_kl_rejected=5.0),
        {},
        LN43,
    ),
    Case(
        # half of it: 2
        "half of KL of 5 and 1",
        "tdpo2",
        moved(2.0, -10 * LN3)._replace(forward_kl_chosen=1.0, forward_kl_rejected=5.0),
        {},
        LN43,
    ),
    Case("one pair is usual", "beta_dpo", LOG3, {}, LN43),
    Case(
        # M = 0.1 · 10 ln 3 against a running mean of ln 3 - 1: β = 0.1 · 1.6
        "above the running mean",
        "beta_dpo",
        LOG3._replace(margin_mean=LN3 - 1.0, margin_spread=1.0),
        {},
        -log_sigmoid(1.6 * LN3),
    ),
    Case(
        # M = 0, 0, 0, 0 and 50: the last is left out; usual 10, so β = 0.1 (1 - 0.6 · 10) → 1e-3
        "an outlier is left out",
        "beta_dpo",
        [moved(0.0, 0.0)] * 4 + [moved(250.0, -250.0)],
        {},
        LN2,
    ),
    Case(
        # β m - (3 - 1) = ln 3 when m = 10 (ln 3 + 2)
        "scores 3 and 1",
        "margin",
        moved(20.0, -10 * LN3)._replace(score_chosen=3.0, score_rejected=1.0),
        {},
        LN43,
    ),
    Case(
        # ½ (3 - 1) - 0.1 · 6
        "scores 3 and 1, half",
        "distill",
        SIX._replace(score_chosen=3.0, score_rejected=1.0),
        {"score_scale": 0.5},
        0.16,
    ),
    Case(
        "weighted sum: 0.8 DPO + 0.2 hinge",
        "0.8*sigmoid + 0.2*hinge",
        SIX,
        {},
        0.8 * 0.437488 + 0.2 * 0.4,
    ),
    Case(
        "own settings in a sum",
        "sigmoid(beta=0.2) + 2*ipo(beta=0.1)",
        SIX,
        {},
        -log_sigmoid(1.2) + 2.0,
    ),
    Case(
        "rewards 2 and 2 - ln 3: σ = 3/4",
        "bradley_terry",
        PairLogps(2.0, 2.0 - LN3, 0.0, 0.0, 1, 1),
        {},
        LN43,
    ),
    Case(
        "ln 3 and 0, centred: ln 4/3 + 0.5 (ln 3)²",
        "bradley_terry",
        PairLogps(LN3, 0.0, 0.0, 0.0, 1, 1),
        {"centre_weight": 0.5},
        LN43 + 0.5 * LN3**2,
    ),
    Case(
        "2 ln 3 apart, scores 2 apart at ln 3 / 2: σ(ln 3)",
        "bradley_terry_margin",
        PairLogps(2 * LN3, 0.0, 0.0, 0.0, 1, 1)._replace(score_chosen=3.0, score_rejected=1.0),
        {"score_scale": LN3 / 2},
        LN43,
    ),
    Case("NLL of one answer: 8 nats, 2 tokens", "nll", ONE._replace(policy_chosen=-8.0), {}, 8.0),
]
