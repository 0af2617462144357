# SPDX-License-Identifier: Apache-2.0
"""What a language model wrote as a judge → a grade or an outcome; anything doubtful is unparsed."""

import re

from alignax.records import Outcome

LOWEST, HIGHEST = 1.0, 10.0
GRADES = (re.compile(r"\[\[(-?\d+(?:\.\d+)?)\]\]"), re.compile(r"\[(-?\d+(?:\.\d+)?)\]"))
LABEL = re.compile(r"\[\[([ABC])\]\]")
LABELS: dict[str, Outcome] = {"A": "win", "B": "loss", "C": "tie"}
REFUSAL = re.compile(
    r"\s*(?:i['’]?m sorry|i am sorry|sorry,|i can['’]?t|i can ?not|i won['’]?t|i am unable"
    r"|i['’]?m unable|i must decline|i apologi[sz]e)",
    re.IGNORECASE,
)


def parse_grade(text: str) -> float | None:
    """Read ``[[7]]`` (or ``[7]``, which judges also write); None outside of 1 … 10.

    >>> parse_grade("Rating: [[7.5]]"), parse_grade("Rating: [[11]]"), parse_grade("seven")
    (7.5, None, None)
    """
    for pattern in GRADES:
        found = pattern.search(text)
        if found:
            value = float(found[1])
            return value if LOWEST <= value <= HIGHEST else None
    return None


def parse_label(text: str) -> Outcome:
    """Read ``[[A]]``, ``[[B]]`` or ``[[C]]`` as a win, loss or tie of A.

    A text with different labels contradicts itself and is unparsed; one without a label that opens
    like a refusal is refused.
    """
    labels = set(LABEL.findall(text))
    if len(labels) == 1:
        return LABELS[labels.pop()]
    return "refused" if not labels and REFUSAL.match(text) else "unparsed"
