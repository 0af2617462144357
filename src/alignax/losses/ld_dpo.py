# SPDX-License-Identifier: Apache-2.0
"""Log-probs of one pair, split at the shorter answer's length → LD-DPO loss."""

from jaxtyping import Array, Float

from alignax.losses.knobs import SMOOTHING, TERMS, Knob
from alignax.losses.ratios import logistic
from alignax.losses.spec import LossSpec
from alignax.records import PairLogps


def ld_dpo(
    pair: PairLogps, *, beta: float, tail_weight: float = 0.5, label_smoothing: float = 0.0
) -> Float[Array, ""]:
    """Compute length-desensitised DPO (Liu et al. 2024, eq. 9 to 11).

    DPO on log π̂ = Σ_{t ≤ n} log π_t + α Σ_{t > n} log π_t with n = min(|y_w|, |y_l|), for policy
    and reference: tokens beyond the shorter answer's length count α (``tail_weight``). α = 1 is
    DPO.
    """
    less = 1.0 - tail_weight
    chosen = pair.policy_chosen - pair.reference_chosen
    chosen -= less * (pair.policy_tail_chosen - pair.reference_tail_chosen)
    rejected = pair.policy_rejected - pair.reference_rejected
    rejected -= less * (pair.policy_tail_rejected - pair.reference_tail_rejected)
    return logistic(beta * (chosen - rejected), label_smoothing)


LD_DPO = LossSpec(
    name="ld_dpo",
    function=ld_dpo,
    kind="pair",
    needs_reference=True,
    length_normalised=False,
    default_beta=0.1,
    knobs={
        "tail_weight": Knob(
            0.5, "weight α of tokens beyond the shorter answer's length", high=1.0 + 1e-9
        ),
        **SMOOTHING,
        **TERMS,
    },
    formula="-log σ(β m), tokens beyond the shorter answer's length weighted by α",
    paper="Liu et al. 2024, arXiv:2409.06411",
    columns=("tail",),
)
