# SPDX-License-Identifier: Apache-2.0
"""Log-probs of one pair → CPO loss."""

from jaxtyping import Array, Float

from alignax.losses.knobs import SMOOTHING, WITH_NLL
from alignax.losses.ratios import logistic
from alignax.losses.spec import LossSpec
from alignax.records import PairLogps


def cpo(pair: PairLogps, *, beta: float, label_smoothing: float = 0.0) -> Float[Array, ""]:
    """Compute the preference part of the CPO loss (Xu et al. 2024, eq. 3 to 5).

    -log σ(β log π(y_w) - β log π(y_l)): DPO under a uniform reference. The whole loss adds the
    chosen answer's NLL (``nll_weight``, 1), here per token.
    """
    return logistic(beta * (pair.policy_chosen - pair.policy_rejected), label_smoothing)


CPO = LossSpec(
    name="cpo",
    function=cpo,
    kind="pair",
    needs_reference=False,
    length_normalised=False,
    default_beta=0.1,
    knobs={**SMOOTHING, **WITH_NLL},
    formula="-log σ(β · (log π(chosen) - log π(rejected)))",
    paper="Xu et al. 2024, arXiv:2401.08417",
)
