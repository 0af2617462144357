# SPDX-License-Identifier: Apache-2.0
"""Log-probs of one pair → DPO loss."""

from typing import Any

from jaxtyping import Array, Float

from alignax.losses.knobs import RATIO, SMOOTHING, TERMS
from alignax.losses.ratios import log_ratios, logistic
from alignax.losses.spec import LossSpec
from alignax.records import PairLogps


def sigmoid(
    pair: PairLogps, *, beta: float, label_smoothing: float = 0.0, **ratio: Any
) -> Float[Array, ""]:
    """Compute the DPO loss of one pair (Rafailov et al. 2023, eq. 7).

    m = (policy - reference) of chosen - (policy - reference) of rejected;
    loss = -(1 - ε) log σ(β m) - ε log σ(-β m), where ε is the share of labels thought wrong
    (Mitchell 2023, "conservative DPO"; 0 gives plain DPO). ``ratio`` goes to ``log_ratios``.

    >>> pair = PairLogps(-10.0, -12.0, -11.0, -11.0, 1, 1)
    >>> round(float(sigmoid(pair, beta=0.1)), 6)
    0.598139
    """
    chosen, rejected = log_ratios(pair, **ratio)
    return logistic(beta * (chosen - rejected), label_smoothing)


SIGMOID = LossSpec(
    name="sigmoid",
    function=sigmoid,
    kind="pair",
    needs_reference=True,
    length_normalised=False,
    default_beta=0.1,
    knobs={**SMOOTHING, **RATIO, **TERMS},
    formula="-log σ(β · ((log π/π_ref)(chosen) - (log π/π_ref)(rejected)))",
    paper="Rafailov et al. 2023, arXiv:2305.18290",
)
