# SPDX-License-Identifier: Apache-2.0
"""Log-probs and given scores of one pair → losses that know by how much an answer is better."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from alignax.losses.knobs import SMOOTHING, TERMS, Knob
from alignax.losses.ratios import log_ratios, logistic
from alignax.losses.spec import LossSpec
from alignax.records import PairLogps

SCALE = {"score_scale": Knob(1.0, "reward units that one point of score is worth")}


def margin(
    pair: PairLogps, *, beta: float, score_scale: float = 1.0, label_smoothing: float = 0.0
) -> Float[Array, ""]:
    """Compute DPO with an offset (Amini et al. 2024, "ODPO", eq. 8, with the identity as f).

    loss = -log σ(β m - α (s_w - s_l)): a clearly better answer must win by more.
    """
    chosen, rejected = log_ratios(pair)
    offset = score_scale * (pair.score_chosen - pair.score_rejected)
    return logistic(beta * (chosen - rejected) - offset, label_smoothing)


def distill(pair: PairLogps, *, beta: float, score_scale: float = 1.0) -> Float[Array, ""]:
    """Compute reward distillation (Fisch et al. 2024, eq. 7).

    loss = (α (s_w - s_l) - β m)²: the implicit reward margin becomes the given one; equal scores
    ask for equal rewards, whichever answer is called chosen.
    """
    chosen, rejected = log_ratios(pair)
    wanted = score_scale * (pair.score_chosen - pair.score_rejected)
    return jnp.square(wanted - beta * (chosen - rejected))


MARGIN = LossSpec(
    name="margin",
    function=margin,
    kind="pair",
    needs_reference=True,
    length_normalised=False,
    default_beta=0.1,
    knobs={**SCALE, **SMOOTHING, **TERMS},
    formula="-log σ(β m - α (score of chosen - score of rejected)), m = margin of log π/π_ref",
    paper="Amini et al. 2024, arXiv:2402.10571",
    columns=("score",),
)

DISTILL = LossSpec(
    name="distill",
    function=distill,
    kind="pair",
    needs_reference=True,
    length_normalised=False,
    default_beta=0.1,
    knobs={**SCALE, **TERMS},
    formula="(α (score of chosen - score of rejected) - β m)², m = margin of log π/π_ref",
    paper="Fisch et al. 2024, arXiv:2405.19316",
    columns=("score",),
)
