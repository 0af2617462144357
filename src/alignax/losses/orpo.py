# SPDX-License-Identifier: Apache-2.0
"""Log-probs of one pair → ORPO loss."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from alignax.losses.knobs import WITH_NLL
from alignax.losses.ratios import per_token
from alignax.losses.spec import LossSpec
from alignax.records import PairLogps

CERTAIN = -1e-6
"""Mean log-probs above it count as this one: the odds of a certain answer are infinite."""


def log_odds(mean_logp: Float[Array, ""]) -> Float[Array, ""]:
    """Compute log(p / (1 - p)) of p = exp(mean log-prob)."""
    bounded = jnp.minimum(mean_logp, CERTAIN)
    return bounded - jnp.log(-jnp.expm1(bounded))


def orpo(pair: PairLogps, *, beta: float) -> Float[Array, ""]:
    """Compute the odds-ratio part of the ORPO loss (Hong et al. 2024, eq. 6 and 7).

    β · -log σ(log odds(chosen) - log odds(rejected)), odds(p) = p / (1 - p), p = exp(mean
    log-prob per token). The whole loss adds the chosen answer's NLL per token (``nll_weight``,
    1), which is taken over the answer; TRL takes it over prompt and answer. β is the paper's λ.
    """
    chosen, rejected = per_token(pair.policy_chosen, pair.policy_rejected, pair)
    return -beta * jax.nn.log_sigmoid(log_odds(chosen) - log_odds(rejected))


ORPO = LossSpec(
    name="orpo",
    function=orpo,
    kind="pair",
    needs_reference=False,
    length_normalised=True,
    default_beta=0.1,
    knobs=WITH_NLL,
    formula="-β log σ(log odds(chosen) - log odds(rejected))",
    paper="Hong et al. 2024, arXiv:2403.07691",
)
