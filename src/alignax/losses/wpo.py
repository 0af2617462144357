# SPDX-License-Identifier: Apache-2.0
"""Log-probs of one pair → DPO loss weighted by how likely the policy is to write the pair."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from alignax.losses.knobs import SMOOTHING, TERMS, Knob
from alignax.losses.ratios import LIMIT, log_ratios, logistic, per_token
from alignax.losses.spec import LossSpec
from alignax.records import PairLogps


def wpo(
    pair: PairLogps, *, beta: float, align_samples: bool = True, label_smoothing: float = 0.0
) -> Float[Array, ""]:
    """Compute weighted preference optimisation (Zhou et al. 2024, eq. 2 and 4).

    loss = w(y_w) w(y_l) · DPO, w(y) = exp(mean over tokens of log π_t - log Σ_v π_t(v)²) without
    a gradient: 1 for a typical sample of the policy. ``align_samples`` false leaves Σ π² out,
    which makes weights small for long or uncertain answers.
    """
    chosen, rejected = pair.policy_chosen, pair.policy_rejected
    if align_samples:
        chosen, rejected = chosen - pair.squares_chosen, rejected - pair.squares_rejected
    likely = sum(per_token(chosen, rejected, pair))
    weight = jax.lax.stop_gradient(jnp.exp(jnp.minimum(likely, LIMIT)))
    ours, theirs = log_ratios(pair)
    return weight * logistic(beta * (ours - theirs), label_smoothing)


WPO = LossSpec(
    name="wpo",
    function=wpo,
    kind="pair",
    needs_reference=True,
    length_normalised=False,
    default_beta=0.1,
    knobs={
        "align_samples": Knob(True, "weigh against the policy's own typical samples"),
        **SMOOTHING,
        **TERMS,
    },
    formula="-w(chosen) w(rejected) log σ(β m), w = exp(mean (log π - log Σ π²))",
    paper="Zhou et al. 2024, arXiv:2406.11827",
    columns=("squares",),
)
