# SPDX-License-Identifier: Apache-2.0
"""Logits → next token ids: greedy, temperature, top-k, top-p.

Temperature comes first, then top-k, then top-p, as in most other tools. Tokens that tie with the
last one inside a limit stay inside. Every row draws with its own key, so what it draws does not
depend on the rows beside it.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

EXCLUDED = -jnp.inf


@dataclass(frozen=True)
class Rule:
    """What of the choice is fixed when the program is compiled.

    Attributes:
        greedy: Take the likeliest token.
        top_k: Choose among the k likeliest; None for all.
        nucleus: Whether a top-p limit applies.
    """

    greedy: bool = True
    top_k: int | None = None
    nucleus: bool = False


def row_keys(seed: int, rows_b: Int[Array, " b"]) -> Key[Array, " b"]:
    """Derive one key a row from (seed, row)."""
    return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), rows_b)


def keep_top_k(logits_bv: Float[Array, "b v"], k: int) -> Float[Array, "b v"]:
    """Exclude all but the k likeliest tokens."""
    last_b = jax.lax.top_k(logits_bv, min(k, logits_bv.shape[-1]))[0][:, -1:]
    return jnp.where(logits_bv >= last_b, logits_bv, EXCLUDED)


def keep_top_p(logits_bv: Float[Array, "b v"], p: Float[Array, ""]) -> Float[Array, "b v"]:
    """Exclude all but the likeliest tokens whose probability first reaches p (Holtzman 2020)."""
    sorted_bv = -jnp.sort(-logits_bv, axis=-1)
    probability_bv = jax.nn.softmax(sorted_bv, axis=-1)
    before_bv = jnp.cumsum(probability_bv, axis=-1) - probability_bv
    # The likeliest token stays whatever p is.
    kept_bv = (before_bv < p).at[:, 0].set(True)
    last_b = jnp.min(jnp.where(kept_bv, sorted_bv, jnp.inf), axis=-1, keepdims=True)
    return jnp.where(logits_bv >= last_b, logits_bv, EXCLUDED)


def choose(
    logits_bv: Float[Array, "b v"],
    keys_b: Key[Array, " b"],
    rule: Rule,
    temperature: Float[Array, ""],
    top_p: Float[Array, ""],
) -> tuple[Int[Array, " b"], Float[Array, " b"]]:
    """Choose the next token of each row.

    Args:
        logits_bv: Float32 logits.
        keys_b: One key a row; unused when greedy.
        rule: The kind of choice.
        temperature: Divides the logits; unused when greedy.
        top_p: Limit of a nucleus rule.

    Returns:
        Ids, and their log-probs under the untempered, unrestricted distribution.
    """
    if rule.greedy:
        ids_b = jnp.argmax(logits_bv, axis=-1)
    else:
        tempered_bv = logits_bv / temperature
        if rule.top_k is not None:
            tempered_bv = keep_top_k(tempered_bv, rule.top_k)
        if rule.nucleus:
            tempered_bv = keep_top_p(tempered_bv, top_p)
        ids_b = jax.vmap(jax.random.categorical)(keys_b, tempered_bv)
    picked_b = jnp.take_along_axis(logits_bv, ids_b[:, None], axis=-1)[:, 0]
    logp_b = picked_b - jax.nn.logsumexp(logits_bv, axis=-1)
    return ids_b.astype(jnp.int32), logp_b
