# SPDX-License-Identifier: Apache-2.0
"""Log-probs of a pair → what the losses compare, and the shapes that they share."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from alignax.records import PairLogps

LIMIT = 30.0
"""Above this exponent ``bounded_exp`` grows linearly: exp(30) is 1e13."""


def bounded_exp(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Compute exp(x), continued by its tangent above ``LIMIT``; never infinite in float32."""
    return jnp.exp(jnp.minimum(x, LIMIT)) * (1.0 + jnp.maximum(x - LIMIT, 0.0))


def log_ratios(
    pair: PairLogps,
    *,
    divergence: str = "reverse_kl",
    divergence_alpha: float = 0.5,
    reference_free: bool = False,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Compute how far the policy moved on each answer: chosen and rejected.

    log u = log π - log π_ref under the reverse KL. Under another f-divergence f'(u) takes its
    place (Wang et al. 2023, arXiv:2309.16240, eq. 8 and table 1): forward KL 1 - 1/u,
    Jensen-Shannon log(2u / (1 + u)), α-divergence (1 - u^-α) / α. ``reference_free`` leaves the
    reference out (Rafailov et al. 2023's uniform reference).
    """
    chosen, rejected = pair.policy_chosen, pair.policy_rejected
    if not reference_free:
        chosen, rejected = chosen - pair.reference_chosen, rejected - pair.reference_rejected
    if divergence == "forward_kl":
        return 1.0 - bounded_exp(-chosen), 1.0 - bounded_exp(-rejected)
    if divergence == "js":
        log2 = jnp.log(2.0)
        return log2 + jax.nn.log_sigmoid(chosen), log2 + jax.nn.log_sigmoid(rejected)
    if divergence == "alpha":
        return power(chosen, divergence_alpha), power(rejected, divergence_alpha)
    return chosen, rejected


def power(log_u: Float[Array, ""], alpha: float) -> Float[Array, ""]:
    """Compute (1 - u^-α) / α, and its limit log u where α is 0."""
    safe = jnp.where(jnp.abs(alpha) < 1e-6, 1.0, alpha)
    return jnp.where(jnp.abs(alpha) < 1e-6, log_u, (1.0 - bounded_exp(-safe * log_u)) / safe)


def per_token(
    chosen: Float[Array, ""], rejected: Float[Array, ""], pair: PairLogps
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Divide sums by the answers' scored tokens."""
    return chosen / pair.chosen_tokens, rejected / pair.rejected_tokens


def logistic(logit: Float[Array, ""], label_smoothing: float = 0.0) -> Float[Array, ""]:
    """Compute -(1 - ε) log σ(x) - ε log σ(-x)."""
    right, flipped = jax.nn.log_sigmoid(logit), jax.nn.log_sigmoid(-logit)
    return -(1.0 - label_smoothing) * right - label_smoothing * flipped
