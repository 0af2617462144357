# SPDX-License-Identifier: Apache-2.0
"""Parts of answers → bodies in OpenAI's form, whole or as a stream."""

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from alignax.generate.stops import settled
from alignax.serve.service import Part

Decode = Callable[[Sequence[int]], str]


@dataclass
class Reply:
    """The frame of one reply.

    Attributes:
        model: Name that the client used.
        chat: Chat or plain completion.
        prompt_tokens: Tokens of all prompts.
        logprobs: Whether log-probs are sent.
    """

    model: str
    chat: bool
    prompt_tokens: int
    logprobs: bool
    created: int = field(default_factory=lambda: int(time.time()))
    id: str = ""

    def __post_init__(self) -> None:
        """Draw an id."""
        self.id = f"{'chatcmpl' if self.chat else 'cmpl'}-{uuid.uuid4().hex}"

    def _frame(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id, "object": kind, "created": self.created, "model": self.model,
            "choices": choices,
        }  # fmt: skip

    def usage(self, tokens: int) -> dict[str, int]:
        """Count tokens."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": tokens,
            "total_tokens": self.prompt_tokens + tokens,
        }

    def whole(self, parts: Sequence[Part], texts: Sequence[str], decode: Decode) -> dict[str, Any]:
        """Build the body of complete answers."""
        choices = []
        for index, (part, text) in enumerate(zip(parts, texts, strict=True)):
            said = (
                {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
            )
            logprobs = self._logprobs(part, 0, decode)
            choices.append(
                {"index": index, **said, "logprobs": logprobs, "finish_reason": part.ended_by}
            )
        tokens = sum(len(part.ids) for part in parts)
        kind = "chat.completion" if self.chat else "text_completion"
        return self._frame(kind, choices) | {"usage": self.usage(tokens)}

    def chunk(self, index: int, part: Part, text: str, seen: int, decode: Decode) -> dict[str, Any]:
        """Build one event: ``text`` is new, and so are the ids after the first ``seen``."""
        said = {"delta": {"content": text}} if self.chat else {"text": text}
        logprobs = self._logprobs(part, seen, decode)
        choice = {
            "index": index,
            **said,
            "logprobs": logprobs,
            "finish_reason": part.ended_by or None,
        }
        return self._frame(self._chunk_kind, [choice])

    def first(self, index: int) -> dict[str, Any]:
        """Build the event that opens a chat answer."""
        choice = {
            "index": index,
            "delta": {"role": "assistant", "content": ""},
            "finish_reason": None,
        }
        return self._frame(self._chunk_kind, [choice])

    def last(self, tokens: int) -> dict[str, Any]:
        """Build the event that tells the usage."""
        return self._frame(self._chunk_kind, []) | {"usage": self.usage(tokens)}

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    def _logprobs(self, part: Part, seen: int, decode: Decode) -> dict[str, Any] | None:
        if not (self.chat and self.logprobs):
            return None
        content = []
        for token, logp in zip(part.ids[seen:], part.logps[seen:], strict=True):
            text = decode([token])
            content.append(
                {
                    "token": text, "logprob": logp, "bytes": list(text.encode()),
                    "top_logprobs": [],
                }
            )  # fmt: skip
        return {"content": content, "refusal": None}


def text_of(part: Part, stops: Sequence[str], stop_ids: Sequence[int], decode: Decode) -> str:
    """Decode what may be shown of an answer so far."""
    ids = part.ids[:-1] if part.ids and part.ids[-1] in stop_ids else part.ids
    text = decode(list(ids))[: part.text_end]
    return settled(text, stops, done=bool(part.ended_by))
