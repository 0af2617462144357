# SPDX-License-Identifier: Apache-2.0
"""Engines in a thread of their own: questions come from any thread, parts of answers go back."""

import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from alignax.generate.engine import Engine
from alignax.generate.queue import Job, Writing

BURST = 4
"""Tokens between two looks at new questions."""


@dataclass(frozen=True)
class Part:
    """An answer as far as it is written.

    Attributes:
        ids: Ids so far, a stop id included.
        logps: Their log-probs.
        ended_by: ``"stop"``, ``"length"``, or ``""`` while it grows.
        text_end: Characters before a stop text, if one came.
        failure: What broke the service, if it broke.
    """

    ids: tuple[int, ...] = ()
    logps: tuple[float, ...] = ()
    ended_by: str = ""
    text_end: int | None = None
    failure: str = ""


@dataclass
class Asked:
    """A question, and who listens to its answer.

    Attributes:
        engine: Name of the engine.
        job: What is written.
        listen: Called from the service's thread with each part.
        writing: The engine's record, once it has one.
    """

    engine: str
    job: Job
    listen: Callable[[Part], None]
    writing: Writing | None = None


class Service:
    """Runs engines in turn."""

    def __init__(self, engines: Mapping[str, Engine]):
        """Take over the engines: nobody else may use them while the service runs."""
        self._engines = dict(engines)
        self._inbox: queue.SimpleQueue[tuple[str, Asked | None]] = queue.SimpleQueue()
        self._open: dict[int, Asked] = {}
        self._failure = ""
        self._thread = threading.Thread(target=self._work, name="answers", daemon=True)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the engines."""
        return tuple(self._engines)

    @property
    def failure(self) -> str:
        """What broke the service; empty while it works."""
        return self._failure

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the burst at hand and end; open questions stay without an answer."""
        self._inbox.put(("stop", None))
        self._thread.join()

    def ask(self, engine: str, job: Job, listen: Callable[[Part], None]) -> Asked:
        """Queue a question; the last part has ``ended_by`` or ``failure`` set."""
        asked = Asked(engine, job, listen)
        self._inbox.put(("ask", asked))
        return asked

    def cancel(self, asked: Asked) -> None:
        """Give a question up; no further part comes for long."""
        self._inbox.put(("cancel", asked))

    def _work(self) -> None:
        """Answer until told to stop, or until something breaks."""
        try:
            while self._take_in():
                for engine in self._engines.values():
                    if engine.busy:
                        self._tell(engine.burst(BURST))
        except Exception as error:  # told to every client and by every later answer
            self._failure = f"{type(error).__name__}: {error}"
            for asked in self._open.values():
                asked.listen(Part(failure=self._failure))
            self._refuse()

    def _refuse(self) -> None:
        """Answer every further question with the failure."""
        while True:
            command, asked = self._inbox.get()
            if command == "stop":
                return
            if command == "ask" and asked is not None:
                asked.listen(Part(failure=self._failure))

    def _take_in(self) -> bool:
        """Read the inbox; wait for something if there is nothing to do. False: stop."""
        idle = not any(engine.busy for engine in self._engines.values())
        while True:
            try:
                command, asked = self._inbox.get(block=idle)
            except queue.Empty:
                return True
            if command == "stop" or asked is None:
                return False
            self._obey(command, asked)
            idle = False

    def _obey(self, command: str, asked: Asked) -> None:
        engine = self._engines[asked.engine]
        if command == "ask":
            asked.writing = engine.submit(asked.job)
            self._open[id(asked.writing)] = asked
        elif asked.writing is not None and not asked.writing.done:
            engine.cancel(asked.writing)
            self._open.pop(id(asked.writing), None)

    def _tell(self, grown: list[Writing]) -> None:
        """Send parts to those who listen."""
        for writing in grown:
            asked = self._open.get(id(writing))
            if asked is None:
                continue
            if writing.done:
                del self._open[id(writing)]
            asked.listen(part_of(writing))


def part_of(writing: Writing) -> Part:
    """Copy what is written so far."""
    ended_by = writing.ended_by if writing.done else ""
    return Part(tuple(writing.ids), tuple(writing.logps), ended_by, writing.text_end)


def error_text(part: Part) -> dict[str, Any]:
    """The failure as a body in OpenAI's form."""
    return {"error": {"message": part.failure, "type": "server_error", "param": None, "code": None}}
