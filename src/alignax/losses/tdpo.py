# SPDX-License-Identifier: Apache-2.0
"""Log-probs of one pair and its KL divergences, summed over tokens → the two TDPO losses."""

import jax
from jaxtyping import Array, Float

from alignax.losses.knobs import TERMS, Knob
from alignax.losses.ratios import log_ratios, logistic
from alignax.losses.spec import LossSpec
from alignax.records import PairLogps


def tdpo1(pair: PairLogps, *, beta: float) -> Float[Array, ""]:
    """Compute TDPO₁ (Zeng et al. 2024, eq. 14 and 15).

    loss = -log σ(β m - δ), δ = β D(y_l) - β D(y_w), with D(y) = Σ_t KL(π_ref ‖ π) after each
    prefix of y, over the whole vocabulary.
    """
    chosen, rejected = log_ratios(pair)
    excess = pair.forward_kl_rejected - pair.forward_kl_chosen
    return logistic(beta * (chosen - rejected - excess))


def tdpo2(pair: PairLogps, *, beta: float, kl_balance: float = 0.5) -> Float[Array, ""]:
    """Compute TDPO₂ (Zeng et al. 2024, eq. 16 and 17).

    As TDPO₁ with δ = α (β D(y_l) - sg(β D(y_w))): the KL along chosen answers is a yardstick and
    gets no gradient.
    """
    chosen, rejected = log_ratios(pair)
    excess = pair.forward_kl_rejected - jax.lax.stop_gradient(pair.forward_kl_chosen)
    return logistic(beta * (chosen - rejected - kl_balance * excess))


TDPO1 = LossSpec(
    name="tdpo1",
    function=tdpo1,
    kind="pair",
    needs_reference=True,
    length_normalised=False,
    default_beta=0.1,
    knobs=TERMS,
    formula="-log σ(β m - β (D(rejected) - D(chosen))), D = Σ_t KL(π_ref ‖ π)",
    paper="Zeng et al. 2024, arXiv:2404.11999",
    columns=("forward_kl",),
)

TDPO2 = LossSpec(
    name="tdpo2",
    function=tdpo2,
    kind="pair",
    needs_reference=True,
    length_normalised=False,
    default_beta=0.1,
    knobs={"kl_balance": Knob(0.5, "α, weight of the difference of KLs"), **TERMS},
    formula="-log σ(β m - α β (D(rejected) - sg D(chosen))), D = Σ_t KL(π_ref ‖ π)",
    paper="Zeng et al. 2024, arXiv:2404.11999",
    columns=("forward_kl",),
)
