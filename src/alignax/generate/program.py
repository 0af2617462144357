# SPDX-License-Identifier: Apache-2.0
"""A batch of prompts → answers, inside one compiled program; the head sees the last position only.

Prompts are padded on the right, where positions are -1; every row counts its own positions, so
padding and neighbours take no part in its answer.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from alignax.generate.sampling import Rule, choose
from alignax.models.cache import KVCache, init_cache
from alignax.models.decoder import Decoder


class Request(NamedTuple):
    """A batch of prompts.

    Attributes:
        ids: [b, t] prompt ids, padded on the right.
        lengths: [b] prompt lengths; 0 for an empty row.
        limits: [b] most tokens of each answer.
        keys: [b] random keys.
        stop_ids: Ids that end an answer.
        temperature: Divides the logits.
        top_p: Limit of a nucleus rule.
    """

    ids: Any
    lengths: Any
    limits: Any
    keys: Any
    stop_ids: Any
    temperature: Any
    top_p: Any


class Progress(NamedTuple):
    """Answers as far as they are written.

    Attributes:
        ids: [b, n] answer ids.
        logps: [b, n] their log-probs.
        counts: [b] tokens of each answer.
        done: [b] whether the answer is complete.
        last: [b] the newest token.
        step: Tokens chosen so far by rows that are not done.
        cache: Keys and values of everything before the newest token.
    """

    ids: Any
    logps: Any
    counts: Any
    done: Any
    last: Any
    step: Any
    cache: KVCache


class Plan(NamedTuple):
    """What of a program is fixed when it is compiled: model, choice, room for answers."""

    graphdef: Any
    rule: Rule
    adapter: bool
    room: int


def head_logits(model: Decoder, hidden_bd: Float[Array, "b d"]) -> Float[Array, "b v"]:
    """Apply the output head; float32 whatever the model's dtype."""
    return jnp.einsum("bd,vd->bv", hidden_bd, model.head_vd, preferred_element_type=jnp.float32)


def _note(plan: Plan, request: Request, progress: Progress, logits_bv: Any) -> Progress:
    """Choose the next token of each row and note it."""
    keys_b = jax.vmap(jax.random.fold_in, (0, None))(request.keys, progress.step)
    ids_b, logp_b = choose(logits_bv, keys_b, plan.rule, request.temperature, request.top_p)
    counts_b = progress.counts + ~progress.done
    stopped_b = (ids_b[:, None] == request.stop_ids[None]).any(axis=-1)
    return progress._replace(
        ids=progress.ids.at[:, progress.step].set(ids_b),
        logps=progress.logps.at[:, progress.step].set(logp_b),
        counts=counts_b,
        done=progress.done | stopped_b | (counts_b >= request.limits),
        last=ids_b,
        step=progress.step + 1,
    )


def _begin(plan: Plan, weights: Any, request: Request) -> Progress:
    """Read the prompts and choose the first token of each answer."""
    model = nnx.merge(plan.graphdef, weights)
    b, t = request.ids.shape
    index_1t = jnp.arange(t)[None]
    positions_bt = jnp.where(index_1t < request.lengths[:, None], index_1t, -1)
    cache = init_cache(model.config, b, t + plan.room, model.dtype)
    hidden_btd, cache = model.decode(request.ids, positions_bt, cache, adapter=plan.adapter)
    last_b = jnp.maximum(request.lengths - 1, 0)
    hidden_bd = jnp.take_along_axis(hidden_btd, last_b[:, None, None], axis=1)[:, 0]
    empty = Progress(
        ids=jnp.zeros((b, plan.room), jnp.int32),
        logps=jnp.zeros((b, plan.room), jnp.float32),
        counts=jnp.zeros(b, jnp.int32),
        done=request.lengths == 0,
        last=jnp.zeros(b, jnp.int32),
        step=jnp.zeros((), jnp.int32),
        cache=cache,
    )
    return _note(plan, request, empty, head_logits(model, hidden_bd))


def _advance(plan: Plan, weights: Any, request: Request, progress: Progress) -> Progress:
    """Read the newest token of each row and choose the next."""
    model = nnx.merge(plan.graphdef, weights)
    positions_b1 = (request.lengths + progress.step - 1)[:, None]
    hidden_b1d, cache = model.decode(
        progress.last[:, None], positions_b1, progress.cache, adapter=plan.adapter
    )
    logits_bv = head_logits(model, hidden_b1d[:, 0])
    return _note(plan, request, progress._replace(cache=cache), logits_bv)


def _answer(plan: Plan, weights: Any, request: Request) -> tuple[Any, Any, Any]:
    """Write whole answers: (ids, log-probs, counts)."""
    progress = jax.lax.while_loop(
        lambda progress: ~progress.done.all(),
        lambda progress: _advance(plan, weights, request, progress),
        _begin(plan, weights, request),
    )
    return progress.ids, progress.logps, progress.counts


# One program for all samplers of like models: a run makes a new sampler at every evaluation.
begin = jax.jit(_begin, static_argnums=0)
advance = jax.jit(_advance, static_argnums=0, donate_argnums=3)
answer = jax.jit(_answer, static_argnums=0)
