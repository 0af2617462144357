# SPDX-License-Identifier: Apache-2.0
"""Prompt ids → answers: one compiled program reads a batch of prompts and writes its answers.

A prompt goes into the bucket (64, 128, 256, … tokens) that it fits in, and a batch holds prompts
of one bucket only, with empty rows when there are too few. So there are few programs to compile,
and a row runs through the same program whatever lies beside it: its answer, greedy or sampled, is
the same alone and in any batch.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from alignax.errors import UsageError
from alignax.generate.program import Plan, Request, advance, answer, begin
from alignax.generate.sampling import Rule, row_keys
from alignax.models.decoder import Decoder
from alignax.records import Generation

BUCKET = 64
"""Tokens of the smallest prompt bucket, and the granularity of room for answers."""


class Sampler:
    """Answers prompts with one model."""

    def __init__(
        self,
        model: Decoder,
        *,
        stop_ids: Sequence[int],
        decode: Callable[[list[int]], str],
        batch_size: int = 8,
    ):
        """Take the model apart; later changes of it are not seen.

        Args:
            model: Decoder, with or without an adapter.
            stop_ids: Ids that end an answer.
            decode: Ids → text.
            batch_size: Rows of every batch. A batch of another size is another program, whose
                sums may round otherwise.
        """
        if batch_size < 1:
            raise UsageError(f"the batch size must be at least 1, got {batch_size}")
        self.stop_ids = tuple(dict.fromkeys(stop_ids))
        self.batch_size = batch_size
        self._config = model.config
        self._decode = decode
        self._graphdef, self._weights = nnx.split(model)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        adapter: bool = True,
    ) -> list[Generation]:
        """Answer prompts; the n-th answer belongs to the n-th prompt.

        Args:
            prompts: Token ids of each prompt.
            max_new_tokens: Most tokens of an answer; fewer where the model's positions end.
            temperature: 0 is greedy.
            top_k: Choose among the k likeliest tokens.
            top_p: Choose among the likeliest tokens whose probability reaches p.
            seed: With a prompt's place in the list, all that sampling depends on.
            adapter: Whether the adapter takes part.

        Raises:
            UsageError: A prompt is empty or too long, or a setting is out of range.
        """
        check_settings(max_new_tokens, temperature, top_k, top_p)
        self._check_prompts(prompts)
        rule = make_rule(temperature, top_k, top_p)
        plan = Plan(self._graphdef, rule, adapter, self._slots(max_new_tokens))
        answers: dict[int, Generation] = {}
        for rows in batches([len(prompt) for prompt in prompts], self.batch_size):
            request = self._request(prompts, rows, max_new_tokens, temperature, top_p, seed)
            results = jax.device_get(answer(plan, self._weights, request))
            for row, ids_n, logps_n, count in zip(rows, *results, strict=False):
                answers[row] = self._generation(prompts[row], ids_n[:count], logps_n[:count])
        return [answers[row] for row in range(len(prompts))]

    def stream(
        self,
        prompt: Sequence[int],
        *,
        max_new_tokens: int,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        adapter: bool = True,
    ) -> Iterator[int]:
        """Yield the ids that ``generate`` gives for a single prompt, each as soon as it is chosen.

        A stop id, if one comes, is the last that is yielded.
        """
        check_settings(max_new_tokens, temperature, top_k, top_p)
        self._check_prompts([prompt])
        rule = make_rule(temperature, top_k, top_p)
        plan = Plan(self._graphdef, rule, adapter, self._slots(max_new_tokens))
        request = self._request([prompt], [0], max_new_tokens, temperature, top_p, seed)
        progress = begin(plan, self._weights, request)
        yield int(progress.last[0])
        while not progress.done[0]:
            progress = advance(plan, self._weights, request, progress)
            yield int(progress.last[0])

    def room(self, prompt: Sequence[int]) -> int:
        """Most tokens of an answer to a prompt: what its ids leave of the model's positions."""
        return self._config.max_positions - len(prompt)

    def _slots(self, max_new_tokens: int) -> int:
        """Cache slots for an answer: all that may come, but no more than there are positions."""
        return round_up(min(max_new_tokens, self._config.max_positions - 1))

    def _check_prompts(self, prompts: Sequence[Sequence[int]]) -> None:
        """Refuse prompts that leave nothing to do or no room."""
        most = self._config.max_positions - 1
        problems = [
            f"prompt {row} has {len(prompt)} tokens, must have 1 to {most}"
            for row, prompt in enumerate(prompts)
            if not 1 <= len(prompt) <= most
        ]
        if problems:
            raise UsageError(
                f"prompts are empty or too long for the model's {most + 1} positions",
                problems=problems,
                hint="shorten them",
            )

    def _request(
        self, prompts: Sequence[Sequence[int]], rows: list[int], max_new_tokens: int,
        temperature: float, top_p: float | None, seed: int,
    ) -> Request:  # fmt: skip
        """Lay the prompts of some rows into a batch; rows at its end may stay empty."""
        width = bucket(max(len(prompts[row]) for row in rows))
        ids_bt = np.zeros((self.batch_size, width), np.int32)
        lengths_b = np.zeros(self.batch_size, np.int32)
        for place, row in enumerate(rows):
            lengths_b[place] = len(prompts[row])
            ids_bt[place, : len(prompts[row])] = prompts[row]
        rows_b = np.zeros(self.batch_size, np.int32)
        rows_b[: len(rows)] = rows
        return Request(
            ids=ids_bt,
            lengths=lengths_b,
            limits=np.minimum(max_new_tokens, self._config.max_positions - lengths_b),
            keys=row_keys(seed, jnp.asarray(rows_b)),
            stop_ids=np.asarray(self.stop_ids or (-1,), np.int32),
            temperature=np.float32(temperature),
            top_p=np.float32(1.0 if top_p is None else top_p),
        )

    def _generation(self, prompt: Sequence[int], ids: Any, logps: Any) -> Generation:
        """Decode one answer."""
        kept = ids.tolist()
        stopped = kept[-1] in self.stop_ids
        return Generation(
            prompt=self._decode(list(prompt)),
            text=self._decode(kept[:-1] if stopped else kept),
            ids=tuple(kept),
            logps=tuple(logps.tolist()),
            finish_reason="stop" if stopped else "length",
        )


def batches(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Group rows by bucket, sort them by length, and cut the groups into batches."""
    groups: dict[int, list[int]] = {}
    for row in sorted(range(len(lengths)), key=lambda row: lengths[row]):
        groups.setdefault(bucket(lengths[row]), []).append(row)
    return [
        group[start : start + batch_size]
        for group in groups.values()
        for start in range(0, len(group), batch_size)
    ]


def bucket(length: int) -> int:
    """Round a prompt length up to 64, 128, 256, …; a few programs serve all lengths."""
    return BUCKET * 2 ** max(0, (-(-length // BUCKET) - 1).bit_length())


def round_up(count: int) -> int:
    """Round up to whole buckets."""
    return -(-count // BUCKET) * BUCKET


def make_rule(temperature: float, top_k: int | None, top_p: float | None) -> Rule:
    """Turn settings into the static part of the choice; greedy ignores limits."""
    if temperature == 0:
        return Rule()
    return Rule(greedy=False, top_k=top_k, nucleus=top_p is not None and top_p < 1)


def check_settings(
    max_new_tokens: int, temperature: float, top_k: int | None, top_p: float | None
) -> None:
    """Refuse settings out of range, all at once.

    Raises:
        UsageError: A setting is out of range.
    """
    problems = []
    if max_new_tokens < 1:
        problems.append(f"max_new_tokens must be at least 1, got {max_new_tokens}")
    if not temperature >= 0:
        problems.append(f"temperature must be at least 0, got {temperature}")
    if top_k is not None and top_k < 1:
        problems.append(f"top_k must be at least 1, got {top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        problems.append(f"top_p must be above 0 and at most 1, got {top_p}")
    if problems:
        raise UsageError("sampling settings are not valid", problems=problems)
