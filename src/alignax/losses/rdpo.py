# SPDX-License-Identifier: Apache-2.0
"""Log-probs of one pair → DPO loss with a length penalty."""

from jaxtyping import Array, Float

from alignax.losses.knobs import SMOOTHING, TERMS, Knob
from alignax.losses.ratios import log_ratios, logistic
from alignax.losses.spec import LossSpec
from alignax.records import PairLogps


def rdpo(
    pair: PairLogps, *, beta: float, length_penalty: float = 0.01, label_smoothing: float = 0.0
) -> Float[Array, ""]:
    """Compute R-DPO for one pair (Park et al. 2024, eq. 9).

    loss = -log σ(β m + α (|y_w| - |y_l|)): a longer chosen answer has won by its length already
    and trains less, a shorter one more. α is in reward units a token.
    """
    chosen, rejected = log_ratios(pair)
    longer = pair.chosen_tokens - pair.rejected_tokens
    return logistic(beta * (chosen - rejected) + length_penalty * longer, label_smoothing)


RDPO = LossSpec(
    name="rdpo",
    function=rdpo,
    kind="pair",
    needs_reference=True,
    length_normalised=False,
    default_beta=0.1,
    knobs={
        "length_penalty": Knob(0.01, "reward a token of length difference"),
        **SMOOTHING,
        **TERMS,
    },
    formula="-log σ(β m + α (|chosen| - |rejected|)), m = margin of log π/π_ref",
    paper="Park et al. 2024, arXiv:2403.19159",
)
