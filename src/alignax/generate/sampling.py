# SPDX-License-Identifier: Apache-2.0
"""Logits → next token ids: repetition penalty, temperature, top-k, top-p, min-p; or greedy.

The order is that of most other tools. Tokens that tie with the last one inside a limit stay inside.
Every row has its own settings and draws with its own key, so what it draws does not depend on the
rows beside it.

A limit is found by bisection on the bits of the logits: a few passes over them, where sorting a
vocabulary would cost more than a small model's step.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from alignax.generate.choice import Choice

EXCLUDED = -jnp.inf


class Rule(NamedTuple):
    """What of the choices of a batch is fixed when the program is compiled.

    Attributes:
        greedy: Every row takes the likeliest token.
        limits: Some row has a limit.
        penalty: Some row has a repetition penalty.
    """

    greedy: bool = True
    limits: bool = False
    penalty: bool = False

    @classmethod
    def covering(cls, *choices: Choice) -> "Rule":
        """The narrowest rule that serves these choices."""
        return cls(
            greedy=all(c.temperature == 0 for c in choices),
            limits=any(c.limited for c in choices),
            penalty=any(c.penalty != 1 for c in choices),
        )


class Settings(NamedTuple):
    """The choices of all rows: [s] arrays; 0 for no top_k and no min_p, 1 for no top_p."""

    temperature: Any
    top_k: Any
    top_p: Any
    min_p: Any
    penalty: Any


def row_keys(seeds_s: Int[Array, " s"], rows_s: Int[Array, " s"]) -> Key[Array, " s"]:
    """Derive one key a row from (seed, row)."""
    return jax.vmap(lambda seed, row: jax.random.fold_in(jax.random.key(seed), row))(
        seeds_s, rows_s
    )


def _ordered(logits_sv: Float[Array, "s v"]) -> Int[Array, "s v"]:
    """Map floats to unsigned integers of the same order."""
    bits = jax.lax.bitcast_convert_type(logits_sv, jnp.uint32)
    return jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(1 << 31))


def _last_inside(
    ordered_sv: Int[Array, "s v"], reaches: Callable[[Bool[Array, "s v"]], Bool[Array, " s"]]
) -> Int[Array, "s 1"]:
    """Find the largest value such that the tokens at or above it reach the limit; bit by bit."""

    def try_bit(index: Any, found_s: Any) -> Any:
        tried_s = found_s | (jnp.uint32(1) << (31 - index).astype(jnp.uint32))
        return jnp.where(reaches(ordered_sv >= tried_s[:, None]), tried_s, found_s)

    start_s = jnp.zeros(ordered_sv.shape[0], jnp.uint32)
    return jax.lax.fori_loop(0, 32, try_bit, start_s)[:, None]


def keep_top_k(logits_sv: Float[Array, "s v"], k_s: Int[Array, " s"]) -> Float[Array, "s v"]:
    """Exclude all but the k likeliest tokens; k = 0 keeps all."""
    ordered_sv = _ordered(logits_sv)
    last_s1 = _last_inside(ordered_sv, lambda inside_sv: inside_sv.sum(-1) >= k_s)
    return jnp.where((ordered_sv >= last_s1) | (k_s[:, None] == 0), logits_sv, EXCLUDED)


def keep_top_p(logits_sv: Float[Array, "s v"], p_s: Float[Array, " s"]) -> Float[Array, "s v"]:
    """Exclude all but the likeliest tokens whose probability first reaches p; p = 1 keeps all."""
    probability_sv = jax.nn.softmax(logits_sv, axis=-1)
    ordered_sv = _ordered(logits_sv)

    def reaches(inside_sv: Any) -> Any:
        # As a product: XLA sums along the last axis slowly on CPUs.
        return jnp.einsum("sv,sv->s", inside_sv.astype(jnp.float32), probability_sv) >= p_s

    last_s1 = _last_inside(ordered_sv, reaches)
    return jnp.where((ordered_sv >= last_s1) | (p_s[:, None] >= 1), logits_sv, EXCLUDED)


def keep_min_p(logits_sv: Float[Array, "s v"], p_s: Float[Array, " s"]) -> Float[Array, "s v"]:
    """Exclude tokens below a share of the likeliest one's probability; 0 keeps all."""
    floor_s = logits_sv.max(-1) + jnp.log(p_s)
    return jnp.where(logits_sv >= floor_s[:, None], logits_sv, EXCLUDED)


def penalise(
    logits_sv: Float[Array, "s v"], seen_sv: Bool[Array, "s v"], penalty_s: Float[Array, " s"]
) -> Float[Array, "s v"]:
    """Divide positive logits of seen tokens by the penalty and multiply negative ones by it."""
    penalty_s1 = penalty_s[:, None]
    lowered_sv = jnp.where(logits_sv > 0, logits_sv / penalty_s1, logits_sv * penalty_s1)
    return jnp.where(seen_sv, lowered_sv, logits_sv)


def choose(
    logits_sv: Float[Array, "s v"],
    keys_s: Key[Array, " s"],
    rule: Rule,
    settings: Settings,
    seen_sv: Bool[Array, "s v"],
) -> tuple[Int[Array, " s"], Float[Array, " s"]]:
    """Choose the next token of each row.

    Args:
        logits_sv: Float32 logits.
        keys_s: One key a row; unused when greedy.
        rule: What the settings need.
        settings: The choice of each row.
        seen_sv: Tokens that a penalty applies to; [s, 0] without one.

    Returns:
        Ids, and their log-probs under the untempered, unrestricted distribution.
    """
    altered_sv = penalise(logits_sv, seen_sv, settings.penalty) if rule.penalty else logits_sv
    ids_s = jnp.argmax(altered_sv, axis=-1)
    if not rule.greedy:
        greedy_s = settings.temperature == 0
        tempered_sv = altered_sv / jnp.where(greedy_s, 1.0, settings.temperature)[:, None]
        if rule.limits:
            tempered_sv = keep_top_k(tempered_sv, settings.top_k)
            tempered_sv = keep_top_p(tempered_sv, settings.top_p)
            tempered_sv = keep_min_p(tempered_sv, settings.min_p)
        drawn_s = jax.vmap(jax.random.categorical)(keys_s, tempered_sv)
        ids_s = jnp.where(greedy_s, ids_s, drawn_s)
    picked_s = jnp.take_along_axis(logits_sv, ids_s[:, None], axis=-1)[:, 0]
    logp_s = picked_s - jax.nn.logsumexp(logits_sv, axis=-1)
    return ids_s.astype(jnp.int32), logp_s
