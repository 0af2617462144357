# SPDX-License-Identifier: Apache-2.0
"""Log-probs of one pair → DPO loss with the chosen answer's likelihood."""

from jaxtyping import Array, Float

from alignax.losses.dpo import sigmoid
from alignax.losses.knobs import SMOOTHING, WITH_NLL
from alignax.losses.spec import LossSpec
from alignax.records import PairLogps


def rpo(pair: PairLogps, *, beta: float, label_smoothing: float = 0.0) -> Float[Array, ""]:
    """Compute the DPO part of iterative RPO (Pang et al. 2024, eq. 1).

    The whole loss is -log σ(β m) - α log π(y_w) / |y_w|; α is ``nll_weight``, 1 in the paper.
    """
    return sigmoid(pair, beta=beta, label_smoothing=label_smoothing)


RPO = LossSpec(
    name="rpo",
    function=rpo,
    kind="pair",
    needs_reference=True,
    length_normalised=False,
    default_beta=0.1,
    knobs={**SMOOTHING, **WITH_NLL},
    formula="-log σ(β m), m = margin of log π/π_ref",
    paper="Pang et al. 2024, arXiv:2404.19733",
)
