# SPDX-License-Identifier: Apache-2.0
"""A model and prompts → its greedy answers, and its logits along them.

Two models are compared along the greedy answers of the first. Where the second finds every token
of an answer likeliest as well, its own greedy answer is the same one, so nothing is generated
twice. The greedy loop is a plain one of its own, at full matrix-multiply precision: a check of an
export does not rest on the sampler.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from alignax.models.cache import init_cache
from alignax.models.decoder import Decoder

PROBE_TOKENS = 32
"""Length limit of the answers that are compared."""


@dataclass(frozen=True)
class Comparison:
    """How another model fares along this one's greedy answers.

    Attributes:
        difference: Largest difference of a logit.
        scale: Largest logit of this model, in absolute value.
        tokens_equal: Share of the answers' tokens on whose place both find the same one likeliest.
        answers_equal: Answers of which that is true of every token.
    """

    difference: float
    scale: float
    tokens_equal: float
    answers_equal: int


class Probe:
    """The greedy answers of one model, with its logits."""

    def __init__(self, model: Decoder, prompts: Sequence[Sequence[int]], stop_ids: Sequence[int]):
        """Answer the prompts.

        Attributes:
            prompts: Token ids of each prompt.
            answers: Token ids of each answer, the stop id included when one came.
            stopped: Answers that ended with a stop id.
        """
        self.prompts = [list(prompt) for prompt in prompts]
        graphdef, weights = nnx.split(model)
        lengths_b = np.asarray([len(prompt) for prompt in self.prompts], np.int32)
        ids_bt = _padded(self.prompts, _width(max(lengths_b)))
        stops = np.asarray([*stop_ids, -1], np.int32)
        with jax.default_matmul_precision("highest"):
            answers_ba = _greedy(graphdef, weights, ids_bt, lengths_b, stops)
        cut = [_cut(row_a.tolist(), set(stop_ids)) for row_a in np.asarray(answers_ba)]
        self.answers = [ids for ids, _ in cut]
        self.stopped = sum(stopped for _, stopped in cut)
        self._logits = self._along_answers(model)

    def compare(self, other: Decoder) -> Comparison:
        """Compare another model with this one along this one's answers."""
        pairs = list(zip(self._logits, self._along_answers(other), strict=True))
        equal = [a_av.argmax(-1) == b_av.argmax(-1) for a_av, b_av in pairs]
        return Comparison(
            difference=float(np.max([np.abs(a_av - b_av).max() for a_av, b_av in pairs])),
            scale=float(np.max([np.abs(a_av).max() for a_av, _ in pairs])),
            tokens_equal=float(np.concatenate(equal).mean()),
            answers_equal=sum(bool(row_a.all()) for row_a in equal),
        )

    def _along_answers(self, model: Decoder) -> list[np.ndarray]:
        """Logits [a, v] of a model that predict each token of the answers."""
        wholes = [[*p, *a] for p, a in zip(self.prompts, self.answers, strict=True)]
        ids_bt = _padded(wholes, _width(max(map(len, wholes))))
        graphdef, weights = nnx.split(model)
        rows = []
        for ids_t, prompt, answer in zip(ids_bt, self.prompts, self.answers, strict=True):
            start = np.int32(len(prompt) - 1)
            with jax.default_matmul_precision("highest"):
                logits_av = _logits(graphdef, weights, ids_t, start)
            rows.append(np.asarray(logits_av)[: len(answer)])
        return rows


def _greedy_answers(
    graphdef: Any,
    weights: Any,
    ids_bt: Int[Array, "b t"],
    lengths_b: Int[Array, " b"],
    stops: Int[Array, " n"],
) -> Int[Array, "b a"]:
    """Write likeliest tokens until every row has had a stop id, or ``PROBE_TOKENS``."""
    model = nnx.merge(graphdef, weights)
    b, t = ids_bt.shape
    index_1t = jnp.arange(t)[None]
    positions_bt = jnp.where(index_1t < lengths_b[:, None], index_1t, -1)
    cache = init_cache(model.config, b, t + PROBE_TOKENS, model.dtype)
    hidden_btd, cache = model.decode(ids_bt, positions_bt, cache)

    def note(answers_ba: Any, hidden_bd: Any, step: Any, done_b: Any) -> tuple[Any, Any, Any]:
        last_b = model.logits(hidden_bd).argmax(-1).astype(jnp.int32)
        done_b = done_b | (last_b[:, None] == stops[None]).any(-1)
        return answers_ba.at[:, step].set(last_b), last_b, done_b

    def extend(carry: Any) -> Any:
        step, answers_ba, last_b, done_b, cache = carry
        position_b1 = (lengths_b + step - 1)[:, None]
        hidden_b1d, cache = model.decode(last_b[:, None], position_b1, cache)
        return (step + 1, *note(answers_ba, hidden_b1d[:, 0], step, done_b), cache)

    answers_ba = jnp.zeros((b, PROBE_TOKENS), jnp.int32)
    first_bd = hidden_btd[jnp.arange(b), lengths_b - 1]
    start = (1, *note(answers_ba, first_bd, 0, jnp.zeros(b, bool)), cache)
    return jax.lax.while_loop(lambda c: (c[0] < PROBE_TOKENS) & ~c[3].all(), extend, start)[1]


def _answer_logits(
    graphdef: Any, weights: Any, ids_t: Int[Array, " t"], start: Int[Array, ""]
) -> Float[Array, "a v"]:
    """Logits of one sequence from a position on; at most ``PROBE_TOKENS`` of them."""
    model = nnx.merge(graphdef, weights)
    t = ids_t.shape[0]
    cache = init_cache(model.config, 1, t, model.dtype)
    hidden_btd, _ = model.decode(ids_t[None], jnp.arange(t)[None], cache)
    index_a = jnp.minimum(start + jnp.arange(PROBE_TOKENS), t - 1)
    return model.logits(hidden_btd[0, index_a])


_greedy = jax.jit(_greedy_answers, static_argnums=0)
_logits = jax.jit(_answer_logits, static_argnums=0)


def _cut(ids: list[int], stops: set[int]) -> tuple[list[int], bool]:
    """Cut an answer after its first stop id; tell whether there was one."""
    for place, token in enumerate(ids):
        if token in stops:
            return ids[: place + 1], True
    return ids, False


def _width(length: int) -> int:
    """Round up to 32 tokens, so that like prompts share a program."""
    return -(-int(length) // 32) * 32


def _padded(rows: Sequence[Sequence[int]], width: int) -> np.ndarray:
    """Lay rows into one array, padded on the right."""
    ids_bt = np.zeros((len(rows), width), np.int32)
    for ids_t, row in zip(ids_bt, rows, strict=True):
        ids_t[: len(row)] = row
    return ids_bt
