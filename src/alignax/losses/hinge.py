# SPDX-License-Identifier: Apache-2.0
"""Log-probs of one pair → hinge loss."""

from typing import Any

import jax
from jaxtyping import Array, Float

from alignax.losses.knobs import RATIO, TERMS
from alignax.losses.ratios import log_ratios
from alignax.losses.spec import LossSpec
from alignax.records import PairLogps


def hinge(pair: PairLogps, *, beta: float, **ratio: Any) -> Float[Array, ""]:
    """Compute max(0, 1 - β m) (Liu et al. 2023, "RSO", eq. 9, after SLiC, Zhao et al. 2023).

    m = (policy - reference) of chosen - (policy - reference) of rejected. SLiC's own form has no
    reference (``reference_free``). A pair whose margin is above 1/β no longer trains.
    """
    chosen, rejected = log_ratios(pair, **ratio)
    return jax.nn.relu(1.0 - beta * (chosen - rejected))


HINGE = LossSpec(
    name="hinge",
    function=hinge,
    kind="pair",
    needs_reference=True,
    length_normalised=False,
    default_beta=0.1,
    knobs={**RATIO, **TERMS},
    formula="max(0, 1 - β · ((log π/π_ref)(chosen) - (log π/π_ref)(rejected)))",
    paper="Zhao et al. 2023, arXiv:2305.10425; Liu et al. 2023, arXiv:2309.06657",
)
