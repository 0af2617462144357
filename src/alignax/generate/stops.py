# SPDX-License-Identifier: Apache-2.0
"""Texts that end an answer, found however tokens cut them."""

from collections.abc import Callable, Sequence


class StopText:
    """Looks for the first stop text of one growing answer."""

    def __init__(self, stops: Sequence[str], decode: Callable[[list[int]], str]):
        """Remember the texts.

        Args:
            stops: Texts, none of them empty.
            decode: Ids → text.
        """
        self._stops = tuple(stops)
        self._decode = decode
        self._looked = 0

    def find(self, ids: Sequence[int]) -> tuple[int, int] | None:
        """Find the first token that completes a stop text, whatever was looked at before.

        Returns:
            Tokens up to and including that one, and characters of the text before the stop text;
            None if there is none yet.
        """
        for count in range(self._looked + 1, len(ids) + 1):
            text = self._decode(list(ids[:count]))
            places = [place for stop in self._stops if (place := text.find(stop)) >= 0]
            if places:
                return count, min(places)
        self._looked = len(ids)
        return None


def settled(text: str, stops: Sequence[str], *, done: bool) -> str:
    """Hold back the end of a growing text: what may still become a character or a stop text."""
    if done:
        return text
    text = text.rstrip("\N{REPLACEMENT CHARACTER}")
    longest = max(map(len, stops), default=1) - 1
    for start in range(max(0, len(text) - longest), len(text)):
        if any(stop.startswith(text[start:]) for stop in stops):
            return text[:start]
    return text
