# SPDX-License-Identifier: Apache-2.0
"""Log-probs of one pair → DPO-Positive loss."""

import jax
from jaxtyping import Array, Float

from alignax.losses.knobs import SMOOTHING, TERMS, Knob
from alignax.losses.ratios import log_ratios, logistic
from alignax.losses.spec import LossSpec
from alignax.records import PairLogps


def dpop(
    pair: PairLogps, *, beta: float, drop_penalty: float = 50.0, label_smoothing: float = 0.0
) -> Float[Array, ""]:
    """Compute DPO-Positive (Pal et al. 2024, eq. 3).

    loss = -log σ(β (m - λ max(0, log π_ref(y_w) - log π(y_w)))): as long as the chosen answer is
    less likely than under the reference, raising it outweighs the margin.
    """
    chosen, rejected = log_ratios(pair)
    margin = chosen - rejected - drop_penalty * jax.nn.relu(-chosen)
    return logistic(beta * margin, label_smoothing)


DPOP = LossSpec(
    name="dpop",
    function=dpop,
    kind="pair",
    needs_reference=True,
    length_normalised=False,
    default_beta=0.3,
    knobs={
        "drop_penalty": Knob(50.0, "λ, weight of a fall of the chosen answer"),
        **SMOOTHING,
        **TERMS,
    },
    formula="-log σ(β (m - λ max(0, -log π/π_ref of chosen))), m = margin of log π/π_ref",
    paper="Pal et al. 2024, arXiv:2402.13228",
)
