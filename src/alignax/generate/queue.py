# SPDX-License-Identifier: Apache-2.0
"""Answers that wait: for their prompt to be read, then for a slot."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from alignax.generate.choice import GREEDY, Choice
from alignax.generate.program import Block

BUCKET = 64
"""Tokens of the smallest prompt bucket, and the granularity of room for answers."""


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


class Queue:
    """Reads prompts a few at a time and remembers which of them wait for slots."""

    def __init__(self, read: Callable[[Any, Any], Block], at_once: int):
        """Start empty.

        Args:
            read: ``([p, t] ids, [p] lengths) → block``.
            at_once: Prompts of a block.
        """
        self._read = read
        self._at_once = at_once
        self._unread: deque[Writing] = deque()
        self._waiting: deque[tuple[int, Writing]] = deque()
        self._block: Block | None = None

    def __len__(self) -> int:
        """Answers that have no slot yet."""
        return len(self._unread) + len(self._waiting)

    def add(self, writing: Writing) -> None:
        """Queue an answer."""
        self._unread.append(writing)

    def remove(self, writing: Writing) -> None:
        """Forget an answer, if it is here."""
        self._unread = deque(other for other in self._unread if other is not writing)
        self._waiting = deque(pair for pair in self._waiting if pair[1] is not writing)

    def take(self, most: int) -> tuple[Block, list[tuple[int, Writing]]]:
        """Take up to ``most`` answers whose prompts lie in one block: (row of it, answer)."""
        if not self._waiting:
            self._read_some()
        assert self._block is not None
        block = self._block
        taken = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
        if not self._waiting:
            self._block = None
        return block, taken

    def _read_some(self) -> None:
        """Read the next few different prompts of one bucket, with all answers that they get."""
        width = bucket(len(self._unread[0].job.prompt))
        rows: dict[tuple[int, ...], int] = {}
        later: deque[Writing] = deque()
        for writing in self._unread:
            prompt = writing.job.prompt
            new = prompt not in rows
            if bucket(len(prompt)) != width or (new and len(rows) == self._at_once):
                later.append(writing)
                continue
            self._waiting.append((rows.setdefault(prompt, len(rows)), writing))
        self._unread = later
        ids_pt = np.zeros((self._at_once, width), np.int32)
        lengths_p = np.zeros(self._at_once, np.int32)
        for prompt, row in rows.items():
            ids_pt[row, : len(prompt)], lengths_p[row] = prompt, len(prompt)
        self._block = self._read(ids_pt, lengths_p)


def bucket(length: int) -> int:
    """Round a prompt length up to 64, 128, 256, …; a few programs serve all lengths."""
    return BUCKET * 2 ** max(0, (-(-length // BUCKET) - 1).bit_length())


def round_up(count: int) -> int:
    """Round up to whole buckets."""
    return -(-count // BUCKET) * BUCKET
