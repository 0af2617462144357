# SPDX-License-Identifier: Apache-2.0
"""Prompt ids → answers, by slots that are filled again as they become free (``engine``)."""

from collections.abc import Callable, Iterator, Sequence

from flax import nnx

from alignax.errors import UsageError
from alignax.generate.choice import GREEDY, Choice, check_choice
from alignax.generate.engine import Engine
from alignax.generate.program import Plan
from alignax.generate.queue import Job, Writing, bucket, round_up
from alignax.generate.sampling import Rule
from alignax.models.decoder import Decoder
from alignax.records import Generation


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
            batch_size: Answers that are written at once. Another number is another program, whose
                sums may round otherwise.
        """
        if batch_size < 1:
            raise UsageError(f"the batch size must be at least 1, got {batch_size}")
        self.stop_ids = tuple(dict.fromkeys(stop_ids))
        self.batch_size = batch_size
        self._config = model.config
        self._dtype = model.dtype
        self._decode = decode
        self._graphdef, self._weights = nnx.split(model)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        choice: Choice = GREEDY,
        seed: int = 0,
        seeds: Sequence[int] | None = None,
        stops: Sequence[str] = (),
        adapter: bool = True,
        progress: Callable[[int], None] | None = None,
    ) -> list[Generation]:
        """Answer prompts; the n-th answer belongs to the n-th prompt.

        Args:
            prompts: Token ids of each prompt. Equal ones are read once.
            max_new_tokens: Most tokens of an answer; fewer where the model's positions end.
            choice: How tokens are chosen.
            seed: With a prompt's place in the list, all that sampling depends on.
            seeds: A seed for each prompt, which then does not depend on its place.
            stops: Texts that end an answer; they are left out of it.
            adapter: Whether the adapter takes part.
            progress: Called with the number of answers that became complete.

        Raises:
            UsageError: A prompt is empty or too long, or a setting is out of range.
        """
        check_choice(choice, max_new_tokens, stops)
        check_prompts(prompts, self.positions)
        if seeds is not None and len(seeds) != len(prompts):
            raise UsageError(f"{len(seeds)} seeds were given for {len(prompts)} prompts")
        writings: dict[int, Writing] = {}
        for rows in by_bucket([len(prompt) for prompt in prompts]).values():
            engine = self._engine(prompts[rows[0]], max_new_tokens, choice, adapter)
            for row in rows:
                own = (seeds[row], 0) if seeds is not None else (seed, row)
                job = self._job(prompts[row], max_new_tokens, choice, own, stops)
                writings[row] = engine.submit(job)
            for grown in engine.run():
                if progress is not None:
                    progress(sum(writing.done for writing in grown))
        return [self._generation(writings[row]) for row in range(len(prompts))]

    def stream(
        self,
        prompt: Sequence[int],
        *,
        max_new_tokens: int,
        choice: Choice = GREEDY,
        seed: int = 0,
        stops: Sequence[str] = (),
        adapter: bool = True,
    ) -> Iterator[Generation]:
        """Yield the answer that ``generate`` gives to a single prompt, as it grows."""
        check_choice(choice, max_new_tokens, stops)
        check_prompts([prompt], self.positions)
        engine = self._engine(prompt, max_new_tokens, choice, adapter)
        writing = engine.submit(self._job(prompt, max_new_tokens, choice, (seed, 0), stops))
        for _ in engine.run(most_steps=1):
            yield self._generation(writing)

    def room(self, prompt: Sequence[int]) -> int:
        """Most tokens of an answer to a prompt: what its ids leave of the model's positions."""
        return self._config.max_positions - len(prompt)

    @property
    def positions(self) -> int:
        """Most tokens of a prompt and its answer."""
        return self._config.max_positions

    def serving(self, length: int, *, adapter: bool = True) -> Engine:
        """Make slots for prompts with answers of up to ``length`` tokens, chosen in any way."""
        capacity = bucket(length)
        rule = Rule(greedy=False, limits=True, penalty=True)
        return self._slots(rule, adapter, room=capacity, capacity=capacity)

    def _engine(
        self, prompt: Sequence[int], max_new_tokens: int, choice: Choice, adapter: bool
    ) -> Engine:
        """Make slots for prompts of a bucket."""
        room = round_up(min(max_new_tokens, self._config.max_positions - 1))
        rule = Rule.covering(choice)
        return self._slots(rule, adapter, room=room, capacity=bucket(len(prompt)) + room)

    def _slots(self, rule: Rule, adapter: bool, *, room: int, capacity: int) -> Engine:
        return Engine(
            Plan(self._graphdef, adapter, rule), self._weights, self._config,
            dtype=self._dtype, slots=self.batch_size, room=room, capacity=capacity,
            stop_ids=self.stop_ids, decode=self._decode,
        )  # fmt: skip

    def _job(
        self, prompt: Sequence[int], max_new_tokens: int, choice: Choice, own: tuple[int, int],
        stops: Sequence[str],
    ) -> Job:  # fmt: skip
        limit = min(max_new_tokens, self.room(prompt))
        return Job(tuple(prompt), limit, choice, *own, tuple(stops))

    def _generation(self, writing: Writing) -> Generation:
        """Decode one answer as far as it is written."""
        ids = writing.ids
        shown = ids[:-1] if ids and ids[-1] in self.stop_ids else ids
        return Generation(
            prompt=self._decode(list(writing.job.prompt)),
            text=self._decode(list(shown))[: writing.text_end],
            ids=tuple(ids),
            logps=tuple(writing.logps),
            finish_reason=writing.ended_by,
        )


def by_bucket(lengths: Sequence[int]) -> dict[int, list[int]]:
    """Group rows by the bucket of their prompt, and sort them by length."""
    groups: dict[int, list[int]] = {}
    for row in sorted(range(len(lengths)), key=lambda row: lengths[row]):
        groups.setdefault(bucket(lengths[row]), []).append(row)
    return groups


def check_prompts(prompts: Sequence[Sequence[int]], positions: int) -> None:
    """Refuse prompts that leave nothing to do or no room.

    Raises:
        UsageError: Naming all of them.
    """
    problems = [
        f"prompt {row} has {len(prompt)} tokens, must have 1 to {positions - 1}"
        for row, prompt in enumerate(prompts)
        if not 1 <= len(prompt) < positions
    ]
    if problems:
        raise UsageError(
            f"prompts are empty or too long for the model's {positions} positions",
            problems=problems,
            hint="shorten them",
        )
