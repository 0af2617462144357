# SPDX-License-Identifier: Apache-2.0
r"""HH-RLHF: whole transcripts (``\n\nHuman: … \n\nAssistant: …``) → turns.

``chosen`` and ``rejected`` hold the dialogue; in some copies ``prompt`` does, up to the last
``Assistant:``, and the two sides hold the answers alone.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from alignax.data.formats.turns import RowProblem, empty, require_prompt, required
from alignax.records import Message

LABELS = (
    ("Human", "Assistant", "System"), ("human", "assistant", "system"),
    ("User", "Assistant", "System"), ("user", "assistant", "system"),
    ("HUMAN", "ASSISTANT", "SYSTEM"), ("USER", "ASSISTANT", "SYSTEM"), ("H", "A", "S"),
)  # fmt: skip
"""How a transcript may call the speakers: user, assistant, system. It keeps to one set."""

ROLES = ("user", "assistant", "system")


@dataclass(frozen=True)
class Speakers:
    """How one row's transcripts set turns apart.

    Attributes:
        labels: The names of user, assistant and system.
        gap: What precedes a name: a blank line, or a line break in copies that are set closer.
    """

    labels: tuple[str, str, str]
    gap: str = "\n\n"

    def split(self, text: str) -> list[str]:
        """Cut into what comes first, then name and speech by turns."""
        return re.split(rf"(?:\A\s*|{self.gap})({'|'.join(self.labels)}): ?", text)

    def role(self, label: str) -> str:
        """Turn a name into a role."""
        return ROLES[self.labels.index(label)]


def _labels(text: Any) -> tuple[str, str, str] | None:
    """Find the set of names that a transcript keeps to; None if it begins with none of them."""
    found = re.match(r"\s*([A-Za-z]+): ?", text) if isinstance(text, str) else None
    sets = (labels for labels in LABELS if found and found[1] in labels)
    return next((s for s in sets if f"\n{s[1]}:" in text or text.lstrip().startswith(s[1])), None)


def matches(row: Mapping[str, Any]) -> bool:
    """Recognise a pair of transcripts, or a transcript as ``prompt`` and a pair of texts."""
    sides = [row.get("chosen"), row.get("rejected")]
    if not all(isinstance(side, str) for side in sides):
        return False
    if _open_prompt(row.get("prompt")):
        return True
    found = {_labels(side) for side in sides}
    return len(found) == 1 and all(
        labels is not None and f"\n{labels[1]}:" in side  # type: ignore[operator]
        for labels in found
        for side in sides
    )


def _open_prompt(prompt: Any) -> bool:
    labels = _labels(prompt)
    return labels is not None and prompt.rstrip().endswith(f"\n{labels[1]}:")


def _speakers(*texts: Any) -> Speakers:
    """Choose how turns are set apart: by blank lines, unless no answer would be found so."""
    known = [text.replace("\r", "") for text in texts if isinstance(text, str)]
    labels = next((found for text in known if (found := _labels(text))), LABELS[0])
    blank = all(f"\n\n{labels[1]}:" in text for text in known)
    return Speakers(labels, "\n\n" if blank else "\n")


def transcript(text: Any, field: str, speakers: Speakers) -> tuple[Message, ...]:
    """Cut a transcript into turns; texts are stripped.

    Raises:
        RowProblem: It is no transcript.
    """
    if not isinstance(text, str):
        raise RowProblem("wrong_type", f"{field} is {type(text).__name__}, text expected")
    if not text.strip():
        raise empty(field)
    head, *parts = speakers.split(text.replace("\r\n", "\n"))
    if head.strip() or not parts:
        raise RowProblem("no_transcript", f"{field} does not begin with a speaker: {text[:40]!r}")
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return tuple({"role": speakers.role(who), "content": said.strip()} for who, said in pairs)


def parse(row: Mapping[str, Any]) -> dict[str, Any]:
    """Split at the last assistant turn; both transcripts must share what comes before."""
    if _open_prompt(row.get("prompt")):
        return _answers_apart(row)
    sides = [required(row, "chosen"), required(row, "rejected")]
    speakers = _speakers(*sides)
    chosen, rejected = (
        transcript(side, name, speakers)
        for side, name in zip(sides, ("chosen", "rejected"), strict=True)
    )
    for side, turns in (("chosen", chosen), ("rejected", rejected)):
        if turns[-1]["role"] != "assistant":
            raise RowProblem(
                "roles_not_alternating", f"{side} ends with a {turns[-1]['role']} turn"
            )
        if len(turns) == 1:
            raise RowProblem("no_prompt", f"{side} has no turn before the answer")
    if chosen[:-1] != rejected[:-1]:
        raise RowProblem("prompt_differs", "the transcripts differ before the last turn")
    return {"prompt": chosen[:-1], "chosen": chosen[-1:], "rejected": rejected[-1:]}


def _answers_apart(row: Mapping[str, Any]) -> dict[str, Any]:
    """Read a transcript that ends with an open ``Assistant:``, and two answers."""
    turns = transcript(row["prompt"], "prompt", _speakers(row["prompt"]))
    answers: dict[str, Any] = {}
    for side in ("chosen", "rejected"):
        said = required(row, side)
        if not isinstance(said, str):
            raise RowProblem("wrong_type", f"{side} is {type(said).__name__}, text expected")
        said = said.removeprefix(row["prompt"])
        answers[side] = ({"role": "assistant", "content": said.strip()},)
    return {"prompt": require_prompt(turns[:-1]), **answers}
