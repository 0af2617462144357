# SPDX-License-Identifier: Apache-2.0
"""Prompts of an evaluation → which rows ask them too: the same first turn, or shared 8-grams."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from alignax.data.near import squeezed
from alignax.data.texts import fingerprint

GRAM = 8
"""Words of a gram."""

SHARE = 0.5
"""Share of an evaluation prompt's grams that a row must hold."""

PROMPTS = ("instruction", "prompt", "question", "query", "turns", "input", "text")
"""Columns that may hold an evaluation's prompt, the first that is there counts."""

_WORD = re.compile(r"[^\W_]+")


class EvalPrompts:
    """Prompts of evaluations, by hashes: a few numbers a prompt.

    Attributes:
        count: Different prompts.
    """

    def __init__(self, prompts: Iterable[str]):
        """Index prompts; those without a word are left out."""
        self._turns: set[bytes] = set()
        self._grams: dict[bytes, list[int]] = {}
        self._sizes: list[int] = []
        for prompt in prompts:
            self._add(prompt)
        self.count = len(self._turns)
        digest = blake2b(digest_size=8)
        for turn in sorted(self._turns):
            digest.update(turn)
        self.digest = digest.hexdigest()

    def _add(self, prompt: str) -> None:
        key = squeezed(prompt)
        if not key or (name := fingerprint(key)) in self._turns:
            return
        self._turns.add(name)
        grams = set(_grams(prompt))
        for gram in grams:
            self._grams.setdefault(gram, []).append(len(self._sizes))
        self._sizes.append(len(grams))

    def asks(self, turn: str) -> bool:
        """Tell whether a first turn is one of the prompts, or holds most of one."""
        if fingerprint(squeezed(turn)) in self._turns:
            return True
        shared: dict[int, int] = {}
        for gram in set(_grams(turn)):
            for prompt in self._grams.get(gram, ()):
                shared[prompt] = shared.get(prompt, 0) + 1
        return any(count >= SHARE * self._sizes[prompt] for prompt, count in shared.items())


def _grams(text: str) -> Iterator[bytes]:
    words = _WORD.findall(text.casefold())
    for start in range(len(words) - GRAM + 1):
        yield fingerprint(" ".join(words[start : start + GRAM]))


def prompts_of(rows: Iterable[Any]) -> Iterator[str]:
    """Read the first user turn of evaluation rows: AlpacaEval, MT-Bench, pairs, or plain texts."""
    for row in rows:
        if isinstance(row, str):
            yield row
        elif isinstance(row, Mapping):
            found = next((row[name] for name in PROMPTS if row.get(name)), None)
            yield from _first(found)


def _first(value: Any) -> Iterator[str]:
    """The first text of a prompt: of turns, what the user says first."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Sequence) and value:
        turns = [t for t in value if not isinstance(t, Mapping) or _is_user(t)]
        head = turns[0] if turns else None
        text = head.get("content", head.get("value")) if isinstance(head, Mapping) else head
        if isinstance(text, str):
            yield text


def _is_user(turn: Mapping[str, Any]) -> bool:
    return str(turn.get("role", turn.get("from"))).lower() in ("user", "human", "prompter")
