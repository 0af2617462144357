# SPDX-License-Identifier: Apache-2.0
r"""HH-RLHF: whole transcripts (``\n\nHuman: … \n\nAssistant: …``) → turns.

``chosen`` and ``rejected`` hold the dialogue; in some copies ``prompt`` does, up to the last
``Assistant:``, and the two sides hold the answers alone.
"""

import re
from collections.abc import Mapping
from typing import Any

from alignax.data.formats.turns import RowProblem, require_prompt
from alignax.records import Message

SPEAKER = re.compile(r"(?:\A\s*|\n\n)(Human|Assistant|System): ?")
CLOSE_SPEAKER = re.compile(r"(?:\A\s*|\n)(Human|Assistant|System): ?")
"""For copies that put one line break between turns."""

ROLE = {"Human": "user", "Assistant": "assistant", "System": "system"}


def _begins(text: Any) -> bool:
    return isinstance(text, str) and SPEAKER.match(text) is not None


def matches(row: Mapping[str, Any]) -> bool:
    """Recognise a pair of transcripts, or a transcript as ``prompt`` and a pair of texts."""
    sides = [row.get("chosen"), row.get("rejected")]
    if not all(isinstance(side, str) for side in sides):
        return False
    if _open_prompt(row.get("prompt")):
        return True
    return all(_begins(side) and "\nAssistant:" in side for side in sides)  # type: ignore[operator]


def _open_prompt(prompt: Any) -> bool:
    return _begins(prompt) and prompt.rstrip().endswith("\nAssistant:")


def _speakers(*texts: Any) -> re.Pattern[str]:
    """Choose how turns are set apart: by blank lines, unless no answer would be found so."""
    known = [text for text in texts if isinstance(text, str)]
    blank = all("\n\nAssistant:" in text.replace("\r", "") for text in known)
    return SPEAKER if blank else CLOSE_SPEAKER


def transcript(text: Any, field: str, speakers: re.Pattern[str] = SPEAKER) -> tuple[Message, ...]:
    """Cut a transcript into turns; texts are stripped.

    Raises:
        RowProblem: It is no transcript.
    """
    if text is None:
        raise RowProblem("null", f"{field} is null")
    if not isinstance(text, str):
        raise RowProblem("wrong_type", f"{field} is {type(text).__name__}, text expected")
    if not text.strip():
        raise RowProblem("empty_side", f"{field} is empty")
    head, *parts = speakers.split(text.replace("\r\n", "\n"))
    if head.strip() or not parts:
        raise RowProblem("no_transcript", f"{field} does not begin with a speaker: {text[:40]!r}")
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return tuple({"role": ROLE[who], "content": said.strip()} for who, said in pairs)


def parse(row: Mapping[str, Any]) -> dict[str, Any]:
    """Split at the last assistant turn; both transcripts must share what comes before."""
    if _open_prompt(row.get("prompt")):
        return _answers_apart(row)
    sides = [row.get("chosen"), row.get("rejected")]
    speakers = _speakers(*sides)
    chosen, rejected = (
        transcript(side, name, speakers)
        for side, name in zip(sides, ("chosen", "rejected"), strict=True)
    )
    for side, turns in (("chosen", chosen), ("rejected", rejected)):
        if turns[-1]["role"] != "assistant":
            raise RowProblem("role", f"{side} ends with a {turns[-1]['role']} turn")
        if len(turns) == 1:
            raise RowProblem("no_prompt", f"{side} has no turn before the answer")
    if chosen[:-1] != rejected[:-1]:
        raise RowProblem("transcripts_disagree", "the transcripts differ before the last turn")
    return {"prompt": chosen[:-1], "chosen": chosen[-1:], "rejected": rejected[-1:]}


def _answers_apart(row: Mapping[str, Any]) -> dict[str, Any]:
    """Read a transcript that ends with an open ``Assistant:``, and two answers."""
    turns = transcript(row["prompt"], "prompt", _speakers(row["prompt"]))
    answers: dict[str, Any] = {}
    for side in ("chosen", "rejected"):
        said = row.get(side)
        if not isinstance(said, str):
            raise RowProblem("null" if said is None else "wrong_type", f"{side} is no text")
        said = said.removeprefix(row["prompt"])
        answers[side] = ({"role": "assistant", "content": said.strip()},)
    return {"prompt": require_prompt(turns[:-1]), **answers}
