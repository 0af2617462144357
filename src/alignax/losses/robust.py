# SPDX-License-Identifier: Apache-2.0
"""Log-probs of one pair → DPO loss that is unbiased under flipped labels."""

from typing import Any

import jax
from jaxtyping import Array, Float

from alignax.losses.knobs import RATIO, TERMS, Knob
from alignax.losses.ratios import log_ratios
from alignax.losses.spec import LossSpec
from alignax.records import PairLogps


def robust(
    pair: PairLogps, *, beta: float, label_smoothing: float = 0.1, **ratio: Any
) -> Float[Array, ""]:
    """Compute robust DPO (Chowdhury et al. 2024, "Provably robust DPO", eq. 12).

    loss = (-(1 - ε) log σ(β m) + ε log σ(-β m)) / (1 - 2ε). Its mean under labels that are
    flipped with probability ε is the DPO loss under the right ones. Unlike DPO with label
    smoothing it is not bounded below.
    """
    chosen, rejected = log_ratios(pair, **ratio)
    logit = beta * (chosen - rejected)
    right, flipped = jax.nn.log_sigmoid(logit), jax.nn.log_sigmoid(-logit)
    wrong = label_smoothing
    return (-(1.0 - wrong) * right + wrong * flipped) / (1.0 - 2.0 * wrong)


ROBUST = LossSpec(
    name="robust",
    function=robust,
    kind="pair",
    needs_reference=True,
    length_normalised=False,
    default_beta=0.1,
    knobs={
        "label_smoothing": Knob(0.1, "share of labels thought wrong", high=0.5),
        **RATIO,
        **TERMS,
    },
    formula="(-(1-ε) log σ(β m) + ε log σ(-β m)) / (1 - 2ε), m = margin of log π/π_ref",
    paper="Chowdhury et al. 2024, arXiv:2403.00409",
)
