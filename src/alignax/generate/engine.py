# SPDX-License-Identifier: Apache-2.0
"""Continuous batching: a slot that becomes free takes the next prompt while the others go on.

Prompts are read a few at a time, each in the bucket (64, 128, 256, … tokens) that it fits in, with
empty rows when there are too few; one program for all slots writes the answers. So there are few
programs to compile, and a row runs through the same ones whatever lies beside it: its answer,
greedy or sampled, is the same alone and in any company. Answers to one prompt share its reading.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from alignax.generate.choice import GREEDY, Choice
from alignax.generate.program import Block, Entry, Plan, Slots, empty_slots, enter, read, write
from alignax.generate.sampling import Settings, row_keys
from alignax.generate.stops import StopText

BUCKET = 64
"""Tokens of the smallest prompt bucket, and the granularity of room for answers."""

LOOK = 8
"""Tokens between two looks at texts that may hold a stop text."""


@dataclass(frozen=True)
class Job:
    """One answer to write.

    Attributes:
        prompt: Prompt ids.
        limit: Most tokens of the answer.
        choice: How its tokens are chosen.
        seed: With ``draw``, all that sampling depends on.
        draw: Which of several answers under this seed.
        stops: Texts that end it.
    """

    prompt: tuple[int, ...]
    limit: int
    choice: Choice = GREEDY
    seed: int = 0
    draw: int = 0
    stops: tuple[str, ...] = ()


@dataclass
class Writing:
    """An answer at work.

    Attributes:
        job: What is written.
        ids: Ids so far, a stop id included.
        logps: Their log-probs.
        done: Whether it is complete.
        ended_by: ``"stop"`` or ``"length"``, once it is complete.
        text_end: Characters of the text before a stop text, if one came.
    """

    job: Job
    ids: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    done: bool = False
    ended_by: str = ""
    text_end: int | None = None


class Engine:
    """Slots of one size, filled from a queue of jobs."""

    def __init__(
        self,
        plan: Plan,
        weights: Any,
        config: Any,
        *,
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
        dtype = jax.tree.leaves(weights)[0].dtype
        self._slots: Slots = empty_slots(config, plan.rule, slots, room, capacity, dtype)
        self._owners: list[Writing | None] = [None] * slots
        self._stop_texts: dict[int, StopText] = {}
        self._queue: deque[Writing] = deque()
        self._block: Block | None = None
        self._waiting: deque[tuple[int, Writing]] = deque()
        self._at_once = max(1, slots // 4)

    def submit(self, job: Job) -> Writing:
        """Queue a job; the record that comes back fills as ``run`` goes on."""
        writing = Writing(job)
        self._queue.append(writing)
        return writing

    def cancel(self, writing: Writing) -> None:
        """Give up an answer: its slot is free for another."""
        writing.done, writing.ended_by = True, writing.ended_by or "cancelled"
        if writing in self._queue:
            self._queue.remove(writing)
        self._waiting = deque(pair for pair in self._waiting if pair[1] is not writing)
        if any(owner is writing for owner in self._owners):
            self._finish([owner is writing for owner in self._owners])

    @property
    def busy(self) -> bool:
        """Whether there is something to do."""
        return bool(self._queue or self._waiting or any(self._owners))

    def run(self, most_steps: int | None = None) -> Iterator[list[Writing]]:
        """Write until nothing is left; yield the answers that grew after each burst of tokens.

        Args:
            most_steps: Tokens of a burst; None: as many as can be written without a look.
        """
        while self.busy:
            self._fill()
            looking = LOOK if self._stop_texts else np.iinfo(np.int32).max
            steps = min(looking, most_steps or looking)
            more = bool(self._queue or self._waiting)
            free = sum(owner is None for owner in self._owners)
            wanted = free + self._at_once if more else len(self._owners) + 1
            if any(owner is not None and not owner.done for owner in self._owners):
                self._slots = write(
                    self._plan, self._weights, self._stop_array, self._slots,
                    np.int32(steps), np.int32(wanted),
                )  # fmt: skip
            yield self._harvest()

    def _fill(self) -> None:
        """Give free slots to waiting prompts."""
        free = deque(slot for slot, owner in enumerate(self._owners) if owner is None)
        while free and (self._waiting or self._queue):
            if not self._waiting:
                self._read_some()
            placed: dict[int, tuple[int, Writing]] = {}
            while free and self._waiting:
                placed[free.popleft()] = self._waiting.popleft()
            self._enter(placed)
        if not self._waiting:
            self._block = None

    def _read_some(self) -> None:
        """Read the next few different prompts of one bucket, with all jobs that ask them."""
        width = bucket(len(self._queue[0].job.prompt))
        rows: dict[tuple[int, ...], int] = {}
        later: deque[Writing] = deque()
        for writing in self._queue:
            prompt = writing.job.prompt
            new = prompt not in rows
            if bucket(len(prompt)) != width or (new and len(rows) == self._at_once):
                later.append(writing)
                continue
            row = rows.setdefault(prompt, len(rows))
            self._waiting.append((row, writing))
        self._queue = later
        ids_pt = np.zeros((self._at_once, width), np.int32)
        lengths_p = np.zeros(self._at_once, np.int32)
        for prompt, row in rows.items():
            ids_pt[row, : len(prompt)], lengths_p[row] = prompt, len(prompt)
        self._block = read(self._plan, self._weights, ids_pt, lengths_p)

    def _enter(self, placed: dict[int, tuple[int, Writing]]) -> None:
        """Put prompts of the block into slots."""
        count = len(self._owners)
        source_s = np.full(count, -1, np.int32)
        jobs = [Job((), 0)] * count
        for slot, (row, writing) in placed.items():
            source_s[slot], jobs[slot], self._owners[slot] = row, writing.job, writing
            if writing.job.stops:
                self._stop_texts[slot] = StopText(writing.job.stops, self._decode)
        choices = [job.choice for job in jobs]
        entry = Entry(
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
        assert self._block is not None
        self._slots = enter(self._plan, self._stop_array, self._slots, self._block, entry)

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


def bucket(length: int) -> int:
    """Round a prompt length up to 64, 128, 256, …; a few programs serve all lengths."""
    return BUCKET * 2 ** max(0, (-(-length // BUCKET) - 1).bit_length())


def round_up(count: int) -> int:
    """Round up to whole buckets."""
    return -(-count // BUCKET) * BUCKET
