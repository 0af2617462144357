# SPDX-License-Identifier: Apache-2.0
"""Continuous batching: a slot that becomes free takes the next prompt while the others go on.

Prompts are read a few at a time, each in the bucket (64, 128, 256, … tokens) that it fits in, with
empty rows when there are too few; one program for all slots writes the answers. So there are few
programs to compile, and a row runs through the same ones whatever lies beside it: its answer,
greedy or sampled, is the same alone and in any company. Answers to one prompt share its reading.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from alignax.generate.program import Block, Entry, Plan, Slots, empty_slots, enter, read, write
from alignax.generate.queue import Job, Queue, Writing
from alignax.generate.sampling import Settings, row_keys
from alignax.generate.stops import StopText

LOOK = 8
"""Tokens between two looks at texts that may hold a stop text."""


class Engine:
    """Slots of one size, filled from a queue of jobs."""

    def __init__(
        self,
        plan: Plan,
        weights: Any,
        config: Any,
        *,
        dtype: Any,
        slots: int,
        room: int,
        capacity: int,
        stop_ids: Sequence[int],
        decode: Callable[[list[int]], str],
    ):
        """Allocate the slots.

        Args:
            plan: What the programs are compiled for.
            weights: Arrays of the model.
            config: Its configuration.
            dtype: Of keys and values.
            slots: Answers that are written at once.
            room: Most tokens of an answer.
            capacity: Most tokens of a prompt's bucket and its answer.
            stop_ids: Ids that end an answer.
            decode: Ids → text.
        """
        self._plan = plan
        self._weights = weights
        self._stop_ids = frozenset(stop_ids)
        self._stop_array = np.asarray(tuple(stop_ids) or (-1,), np.int32)
        self._decode = decode
        self._slots: Slots = empty_slots(config, plan.rule, slots, room, capacity, dtype)
        self._owners: list[Writing | None] = [None] * slots
        self._stop_texts: dict[int, StopText] = {}
        self._at_once = max(1, slots // 4)
        self._queue = Queue(lambda ids, lengths: read(plan, weights, ids, lengths), self._at_once)

    def submit(self, job: Job) -> Writing:
        """Queue a job; the record that comes back fills as ``run`` goes on."""
        writing = Writing(job)
        self._queue.add(writing)
        return writing

    def cancel(self, writing: Writing) -> None:
        """Give up an answer: its slot is free for another."""
        writing.done, writing.ended_by = True, writing.ended_by or "cancelled"
        self._queue.remove(writing)
        if any(owner is writing for owner in self._owners):
            self._finish([owner is writing for owner in self._owners])

    @property
    def busy(self) -> bool:
        """Whether there is something to do."""
        return bool(self._queue or any(self._owners))

    def run(self, most_steps: int | None = None) -> Iterator[list[Writing]]:
        """Write until nothing is left; yield the answers that grew after each burst of tokens.

        Args:
            most_steps: Tokens of a burst; None: as many as can be written without a look.
        """
        while self.busy:
            yield self.burst(most_steps)

    def burst(self, most_steps: int | None = None) -> list[Writing]:
        """Fill free slots, write some tokens, and tell which answers grew."""
        self._fill()
        looking = LOOK if self._stop_texts else np.iinfo(np.int32).max
        steps = min(looking, most_steps or looking)
        free = sum(owner is None for owner in self._owners)
        wanted = free + self._at_once if self._queue else len(self._owners) + 1
        self._slots = write(
            self._plan, self._weights, self._stop_array, self._slots,
            np.int32(steps), np.int32(wanted),
        )  # fmt: skip
        return self._harvest()

    def _fill(self) -> None:
        """Give free slots to waiting prompts."""
        free = [slot for slot, owner in enumerate(self._owners) if owner is None]
        while free and self._queue:
            block, taken = self._queue.take(len(free))
            self._enter(block, dict(zip(free, taken, strict=False)))
            free = free[len(taken) :]

    def _enter(self, block: Block, placed: Mapping[int, tuple[int, Writing]]) -> None:
        """Put prompts of a block into slots."""
        for slot, (_, writing) in placed.items():
            self._owners[slot] = writing
            if writing.job.stops:
                self._stop_texts[slot] = StopText(writing.job.stops, self._decode)
        entry = entry_of(placed, len(self._owners))
        self._slots = enter(self._plan, self._stop_array, self._slots, block, entry)

    def _harvest(self) -> list[Writing]:
        """Take what was written; free the slots of complete answers."""
        slots = self._slots
        ids_sn, logps_sn, counts_s, done_s = jax.device_get(
            (slots.ids, slots.logps, slots.counts, slots.done)
        )
        grown, stopped_s = [], [False] * len(self._owners)
        for slot, writing in enumerate(self._owners):
            if writing is None:
                continue
            count = int(counts_s[slot])
            writing.ids = ids_sn[slot, :count].tolist()
            writing.logps = logps_sn[slot, :count].tolist()
            writing.done = bool(done_s[slot])
            if writing.done:
                writing.ended_by = "stop" if writing.ids[-1] in self._stop_ids else "length"
            if slot in self._stop_texts and self._cut(self._stop_texts[slot], writing):
                stopped_s[slot] = True
            grown.append(writing)
        ended_s = [writing is not None and writing.done for writing in self._owners]
        if any(stopped_s):
            self._finish(stopped_s)
        for slot, ended in enumerate(ended_s):
            if ended:
                self._owners[slot] = None
                self._stop_texts.pop(slot, None)
        return grown

    def _cut(self, stop: StopText, writing: Writing) -> bool:
        """End an answer at its first stop text, if one came."""
        whole = writing.ended_by == "stop"
        found = stop.find(writing.ids[:-1] if whole else writing.ids)
        if found is None:
            return False
        count, writing.text_end = found
        writing.ids, writing.logps = writing.ids[:count], writing.logps[:count]
        writing.done, writing.ended_by = True, "stop"
        return True

    def _finish(self, ended_s: Sequence[bool]) -> None:
        """Tell the slots that answers are complete."""
        done_s = self._slots.done | jnp.asarray(ended_s)
        self._slots = self._slots._replace(done=done_s)
        for slot, ended in enumerate(ended_s):
            if ended:
                self._owners[slot] = None
                self._stop_texts.pop(slot, None)


def entry_of(placed: Mapping[int, tuple[int, Writing]], count: int) -> Entry:
    """Describe what goes into which of ``count`` slots: slot → (row of the block, answer)."""
    source_s, jobs = np.full(count, -1, np.int32), [Job((), 0)] * count
    for slot, (row, writing) in placed.items():
        source_s[slot], jobs[slot] = row, writing.job
    choices = [job.choice for job in jobs]
    return Entry(
        source=source_s,
        limits=np.asarray([job.limit for job in jobs], np.int32),
        keys=row_keys(
            jnp.asarray([job.seed % 2**32 for job in jobs], jnp.uint32),
            jnp.asarray([job.draw for job in jobs], jnp.uint32),
        ),
        settings=Settings(
            np.asarray([c.temperature for c in choices], np.float32),
            np.asarray([c.top_k or 0 for c in choices], np.int32),
            np.asarray([1.0 if c.top_p is None else c.top_p for c in choices], np.float32),
            np.asarray([c.min_p or 0.0 for c in choices], np.float32),
            np.asarray([c.penalty for c in choices], np.float32),
        ),
    )
