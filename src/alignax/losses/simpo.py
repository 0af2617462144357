# SPDX-License-Identifier: Apache-2.0
"""Log-probs of one pair → SimPO loss."""

from jaxtyping import Array, Float

from alignax.losses.knobs import SMOOTHING, TERMS, Knob
from alignax.losses.ratios import logistic, per_token
from alignax.losses.spec import LossSpec
from alignax.records import PairLogps


def simpo(
    pair: PairLogps, *, beta: float, target_margin: float = 1.0, label_smoothing: float = 0.0
) -> Float[Array, ""]:
    """Compute the SimPO loss of one pair (Meng et al. 2024, eq. 6).

    loss = -log σ(β log π(y_w) / |y_w| - β log π(y_l) / |y_l| - γ); no reference. γ is
    ``target_margin`` itself, not its ratio to β.
    """
    chosen, rejected = per_token(pair.policy_chosen, pair.policy_rejected, pair)
    return logistic(beta * (chosen - rejected) - target_margin, label_smoothing)


SIMPO = LossSpec(
    name="simpo",
    function=simpo,
    kind="pair",
    needs_reference=False,
    length_normalised=True,
    default_beta=2.0,
    knobs={
        "target_margin": Knob(1.0, "reward margin γ that chosen must win by"),
        **SMOOTHING,
        **TERMS,
    },
    formula="-log σ(β · (mean log π of chosen - mean log π of rejected) - γ)",
    paper="Meng et al. 2024, arXiv:2405.14734",
)
