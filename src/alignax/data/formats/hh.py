# SPDX-License-Identifier: Apache-2.0
r"""HH-RLHF: ``chosen`` and ``rejected`` are whole transcripts (``\n\nHuman: … \n\nAssistant: …``)."""

import re
from collections.abc import Mapping
from typing import Any

from alignax.data.formats.turns import RowProblem
from alignax.records import Message

SPEAKER = re.compile(r"(?:\A\s*|\n\n)(Human|Assistant|System): ?")
ROLE = {"Human": "user", "Assistant": "assistant", "System": "system"}


def matches(row: Mapping[str, Any]) -> bool:
    """Recognise a pair of transcripts without a prompt column."""
    return all(
        isinstance(row.get(side), str)
        and SPEAKER.match(row[side]) is not None
        and "\n\nAssistant:" in row[side]
        for side in ("chosen", "rejected")
    )


def transcript(text: Any, field: str) -> tuple[Message, ...]:
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
    head, *parts = SPEAKER.split(text)
    if head.strip() or not parts:
        raise RowProblem("no_transcript", f"{field} does not begin with a speaker: {text[:40]!r}")
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return tuple({"role": ROLE[who], "content": said.strip()} for who, said in pairs)


def parse(row: Mapping[str, Any]) -> dict[str, Any]:
    """Split at the last assistant turn; both transcripts must share what comes before."""
    chosen, rejected = (transcript(row.get(side), side) for side in ("chosen", "rejected"))
    for side, turns in (("chosen", chosen), ("rejected", rejected)):
        if turns[-1]["role"] != "assistant":
            raise RowProblem("role", f"{side} ends with a {turns[-1]['role']} turn")
        if len(turns) == 1:
            raise RowProblem("no_prompt", f"{side} has no turn before the answer")
    if chosen[:-1] != rejected[:-1]:
        raise RowProblem("transcripts_disagree", "the transcripts differ before the last turn")
    return {"prompt": chosen[:-1], "chosen": chosen[-1:], "rejected": rejected[-1:]}
