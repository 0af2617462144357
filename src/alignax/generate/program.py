# SPDX-License-Identifier: Apache-2.0
"""Compiled programs: read prompts, put them into slots, and write answers in all slots at once.

A slot holds one answer with its keys and values. Slots are of different ages: a finished one is
given to the next prompt while the others go on. Every row counts its own positions and attends to
its own part of the cache only, so neighbours and former owners take no part in its answer.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool

from alignax.generate.sampling import Rule, Settings, choose
from alignax.models.cache import KVCache, init_cache


class Plan(NamedTuple):
    """What of the programs is fixed when they are compiled.

    Attributes:
        graphdef: Structure of the model.
        adapter: Whether the adapter takes part.
        rule: What the choices of tokens need.
    """

    graphdef: Any
    adapter: bool
    rule: Rule


class Block(NamedTuple):
    """Prompts that were read and wait for slots.

    Attributes:
        logits: [p, v] after the last token of each prompt.
        keys: [l, p, k, h, t] of the prompts.
        values: [l, p, k, t, h].
        ids: [p, t] prompt ids, padded on the right.
        lengths: [p] tokens of each prompt; 0 for none.
    """

    logits: Any
    keys: Any
    values: Any
    ids: Any
    lengths: Any


class Entry(NamedTuple):
    """What goes into which slot; all arrays are [s].

    Attributes:
        source: Row of the block, or -1 where the slot stays as it is.
        limits: Most tokens of the answer.
        keys: Random keys.
        settings: How tokens are chosen.
    """

    source: Any
    limits: Any
    keys: Any
    settings: Settings


class Slots(NamedTuple):
    """Answers at work.

    Attributes:
        ids: [s, n] answer ids.
        logps: [s, n] their log-probs.
        counts: [s] tokens of each answer.
        limits: [s] most tokens of each.
        lengths: [s] tokens of its prompt.
        done: [s] whether the slot is free or its answer complete.
        seen: [s, v] tokens of prompt and answer; [s, 0] without repetition penalties.
        keys: [s] random keys.
        settings: How each row chooses.
        cache: Keys and values of prompts and answers but for the newest token; [s] lengths.
    """

    ids: Any
    logps: Any
    counts: Any
    limits: Any
    lengths: Any
    done: Any
    seen: Any
    keys: Any
    settings: Settings
    cache: KVCache


def empty_slots(config: Any, rule: Rule, count: int, room: int, capacity: int, dtype: Any) -> Slots:
    """Allocate free slots: ``room`` tokens of answers, ``capacity`` of prompt and answer."""

    def full(value: float, dtype: Any) -> Any:
        return jnp.full(count, value, dtype)

    cache = init_cache(config, count, capacity, dtype)
    return Slots(
        ids=jnp.zeros((count, room), jnp.int32),
        logps=jnp.zeros((count, room), jnp.float32),
        counts=full(0, jnp.int32),
        limits=full(0, jnp.int32),
        lengths=full(0, jnp.int32),
        done=jnp.ones(count, bool),
        seen=jnp.zeros((count, config.vocab_size if rule.penalty else 0), bool),
        keys=jax.random.split(jax.random.key(0), count),
        settings=Settings(
            temperature=full(0, jnp.float32),
            top_k=full(0, jnp.int32),
            top_p=full(1, jnp.float32),
            min_p=full(0, jnp.float32),
            penalty=full(1, jnp.float32),
        ),
        cache=cache._replace(length=full(0, jnp.int32)),
    )


def _read(plan: Plan, weights: Any, ids_pt: Any, lengths_p: Any) -> Block:
    """Read prompts."""
    model = nnx.merge(plan.graphdef, weights)
    p, t = ids_pt.shape
    index_1t = jnp.arange(t)[None]
    positions_pt = jnp.where(index_1t < lengths_p[:, None], index_1t, -1)
    cache = init_cache(model.config, p, t, model.dtype)
    hidden_ptd, cache = model.decode(ids_pt, positions_pt, cache, adapter=plan.adapter)
    last_p = jnp.maximum(lengths_p - 1, 0)
    hidden_pd = jnp.take_along_axis(hidden_ptd, last_p[:, None, None], axis=1)[:, 0]
    return Block(model.logits(hidden_pd), cache.keys, cache.values, ids_pt, lengths_p)


def _enter(plan: Plan, stop_ids: Any, slots: Slots, block: Block, entry: Entry) -> Slots:
    """Give slots to prompts of a block and choose the first token of their answers."""
    new_s, row_s = entry.source >= 0, jnp.maximum(entry.source, 0)
    t = block.ids.shape[1]

    def renew(old: Any, value: Any) -> Any:
        return jnp.where(new_s.reshape(-1, *(1,) * (old.ndim - 1)), value, old)

    def stored(old: Any, read: Any, axis: int) -> Any:
        held = jax.lax.slice_in_dim(old, 0, t, axis=axis)
        part = jnp.where(new_s[:, None, None, None], read[:, row_s], held)
        return jax.lax.dynamic_update_slice_in_dim(old, part, 0, axis=axis)

    lengths_s = block.lengths[row_s]
    index_1c = jnp.arange(slots.cache.room)[None]
    positions_sc = jnp.where(index_1c < lengths_s[:, None], index_1c, -1)
    slots = slots._replace(
        counts=renew(slots.counts, 0),
        limits=renew(slots.limits, entry.limits),
        lengths=renew(slots.lengths, lengths_s),
        done=slots.done & ~new_s,
        seen=renew(slots.seen, _mentioned(slots.seen, block.ids[row_s], lengths_s)),
        keys=jnp.where(new_s, entry.keys, slots.keys),
        settings=jax.tree.map(renew, slots.settings, entry.settings),
        cache=KVCache(
            stored(slots.cache.keys, block.keys, 4),
            stored(slots.cache.values, block.values, 3),
            renew(slots.cache.positions, positions_sc),
            renew(slots.cache.length, lengths_s),
        ),
    )
    return _note(plan, stop_ids, slots, block.logits[row_s], new_s)


def _mentioned(seen_sv: Any, ids_st: Any, lengths_s: Any) -> Any:
    """Mark the tokens of prompts: [s, v]; [s, 0] if nothing is to be marked."""
    if not seen_sv.shape[1]:
        return seen_sv
    read_st = jnp.arange(ids_st.shape[1])[None] < lengths_s[:, None]
    mark = jax.vmap(lambda row, ids, read: row.at[ids].max(read))
    return mark(jnp.zeros_like(seen_sv), ids_st, read_st)


def _note(
    plan: Plan, stop_ids: Any, slots: Slots, logits_sv: Any, writing_s: Bool[Array, " s"]
) -> Slots:
    """Choose the next token of the rows that write, and note it."""
    keys_s = jax.vmap(jax.random.fold_in)(slots.keys, slots.counts)
    ids_s, logp_s = choose(logits_sv, keys_s, plan.rule, slots.settings, slots.seen)
    rows_s = jnp.arange(len(ids_s))
    # A place beyond the end: what is written there is dropped.
    place_s = jnp.where(writing_s, slots.counts, slots.ids.shape[1])
    counts_s = slots.counts + writing_s
    over_s = (ids_s[:, None] == stop_ids[None]).any(axis=-1) | (counts_s >= slots.limits)
    seen_sv = slots.seen
    if plan.rule.penalty:
        seen_sv = seen_sv.at[rows_s, ids_s].max(writing_s)
    return slots._replace(
        ids=slots.ids.at[rows_s, place_s].set(ids_s, mode="drop"),
        logps=slots.logps.at[rows_s, place_s].set(logp_s, mode="drop"),
        counts=counts_s,
        done=slots.done | (writing_s & over_s),
        seen=seen_sv,
    )


def _advance(plan: Plan, weights: Any, stop_ids: Any, slots: Slots) -> Slots:
    """Read the newest token of each row at work and choose the next."""
    model = nnx.merge(plan.graphdef, weights)
    newest_s = jnp.maximum(slots.counts - 1, 0)
    ids_s1 = jnp.take_along_axis(slots.ids, newest_s[:, None], axis=1)
    positions_s = jnp.where(slots.done, -1, slots.lengths + newest_s)
    hidden_s1d, cache = model.decode(
        ids_s1, positions_s[:, None], slots.cache, adapter=plan.adapter
    )
    # A finished row writes padding into a place of its own, again and again.
    cache = cache._replace(length=slots.cache.length + ~slots.done)
    logits_sv = model.logits(hidden_s1d[:, 0])
    return _note(plan, stop_ids, slots._replace(cache=cache), logits_sv, ~slots.done)


def _write(
    plan: Plan, weights: Any, stop_ids: Any, slots: Slots, most_steps: Any, wanted: Any
) -> Slots:
    """Write until all answers are done, ``most_steps`` tokens came, or enough slots are free."""

    def goes_on(carry: Any) -> Any:
        steps, slots = carry
        return (steps < most_steps) & ~slots.done.all() & (slots.done.sum() < wanted)

    def step(carry: Any) -> Any:
        return carry[0] + 1, _advance(plan, weights, stop_ids, carry[1])

    return jax.lax.while_loop(goes_on, step, (jnp.int32(0), slots))[1]


# One program for all samplers of like models: a run makes a new sampler at every evaluation.
read = jax.jit(_read, static_argnums=0)
enter = jax.jit(_enter, static_argnums=0, donate_argnums=2)
write = jax.jit(_write, static_argnums=0, donate_argnums=3)
