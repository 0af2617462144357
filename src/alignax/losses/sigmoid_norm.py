# SPDX-License-Identifier: Apache-2.0
"""Log-probs of one pair → DPO loss on per-token means."""

from typing import Any

from jaxtyping import Array, Float

from alignax.losses.knobs import RATIO, SMOOTHING, TERMS
from alignax.losses.ratios import log_ratios, logistic, per_token
from alignax.losses.spec import LossSpec
from alignax.records import PairLogps


def sigmoid_norm(
    pair: PairLogps, *, beta: float, label_smoothing: float = 0.0, **ratio: Any
) -> Float[Array, ""]:
    """Compute length-normalised DPO (Lambert et al. 2024, "Tülu 3", eq. 6).

    loss = -log σ(β (Δ_chosen / |y_w| - Δ_rejected / |y_l|)) with Δ = log π/π_ref. Per-token
    means are a hundred times smaller than sums, hence β = 5, the paper's.
    """
    chosen, rejected = per_token(*log_ratios(pair, **ratio), pair)
    return logistic(beta * (chosen - rejected), label_smoothing)


SIGMOID_NORM = LossSpec(
    name="sigmoid_norm",
    function=sigmoid_norm,
    kind="pair",
    needs_reference=True,
    length_normalised=True,
    default_beta=5.0,
    knobs={**SMOOTHING, **RATIO, **TERMS},
    formula="-log σ(β · (mean log π/π_ref of chosen - the same of rejected))",
    paper="Lambert et al. 2024, arXiv:2411.15124",
)
