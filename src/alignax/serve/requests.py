# SPDX-License-Identifier: Apache-2.0
"""Bodies of requests in OpenAI's form → jobs; what cannot be honoured is refused by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from alignax.generate.choice import Choice
from alignax.generate.queue import Job

MOST_ANSWERS = 128
MOST_STOPS = 4


class Refusal(Exception):
    """A request that is not answered: status, message and the parameter at fault."""

    def __init__(
        self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None
    ):
        """Keep the parts."""
        super().__init__(message)
        self.status = status
        self.body = {
            "error": {
                "message": message, "type": "invalid_request_error", "param": param, "code": code,
            }
        }  # fmt: skip


class StreamOptions(BaseModel):
    """What a stream ends with."""

    model_config = ConfigDict(extra="forbid")
    include_usage: bool = False
    include_obfuscation: bool = False


class Body(BaseModel):
    """What both endpoints take.

    ``top_k``, ``min_p`` and ``repetition_penalty`` are extensions that other servers have, too.
    """

    model_config = ConfigDict(extra="forbid")
    model: str
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=100)
    top_p: float | None = Field(default=None, gt=0, le=1)
    n: int = Field(default=1, ge=1, le=MOST_ANSWERS)
    stop: str | list[str] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    seed: int | None = None
    top_k: int | None = Field(default=None, ge=1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float = Field(default=1.0, gt=0)
    frequency_penalty: Literal[0] = 0
    presence_penalty: Literal[0] = 0
    logit_bias: dict[str, float] | None = Field(default=None, max_length=0)
    user: str | None = None
    metadata: dict[str, str] | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop texts."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def choice(self) -> Choice:
        """How tokens are chosen; limits mean nothing to a greedy choice and are left out of it."""
        temperature = 1.0 if self.temperature is None else self.temperature
        if temperature == 0:
            return Choice(penalty=self.repetition_penalty)
        return Choice(temperature, self.top_k, self.top_p, self.min_p, self.repetition_penalty)


class ChatBody(Body):
    """A request to ``/v1/chat/completions``."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    tools: list[dict[str, Any]] = []
    logprobs: bool = False
    top_logprobs: Literal[0] | None = None
    response_format: dict[Literal["type"], Literal["text"]] | None = None
    store: Literal[False] | None = None


class TextBody(Body):
    """A request to ``/v1/completions``."""

    prompt: str | list[str] | list[int]
    echo: Literal[False] = False
    best_of: Literal[1] | None = None
    logprobs: Literal[0] | None = None
    suffix: None = None


@dataclass(frozen=True)
class Limits:
    """What a slot holds.

    Attributes:
        length: Tokens of a prompt and its answer.
    """

    length: int


def parse(form: type[Any], raw: Any) -> Any:
    """Check a body.

    Raises:
        Refusal: Naming every parameter at fault.
    """
    if not isinstance(raw, Mapping):
        raise Refusal(f"the body must be a JSON object, got {type(raw).__name__}")
    try:
        body = form.model_validate(raw)
    except ValidationError as error:
        faults = [(".".join(map(str, e["loc"])), e["msg"], e["type"]) for e in error.errors()]
        words = {"extra_forbidden": "is not supported", "missing": "is missing"}
        said = "; ".join(
            f"{name} {words.get(kind, f'cannot be used: {text}')}" for name, text, kind in faults
        )
        raise Refusal(said, param=faults[0][0]) from error
    if len(body.stops) > MOST_STOPS or "" in body.stops:
        raise Refusal(f"stop takes up to {MOST_STOPS} texts, none of them empty", param="stop")
    return body


def jobs_of(
    body: Body, prompts: Sequence[Sequence[int]], limits: Limits, draw_seed: Callable[[], int]
) -> list[Job]:
    """Make the jobs of a request: ``n`` for each prompt.

    Args:
        body: The request.
        prompts: Token ids of its prompts.
        limits: What a slot holds.
        draw_seed: Makes a seed for requests that give none.

    Raises:
        Refusal: A prompt leaves no room for an answer.
    """
    wanted = getattr(body, "max_completion_tokens", None) or body.max_tokens
    seed = draw_seed() if body.seed is None else body.seed
    jobs = []
    for prompt in prompts:
        room = limits.length - len(prompt)
        if room < 1 or (wanted or 0) > room:
            raise Refusal(
                f"this server holds {limits.length} tokens of prompt and answer together; the "
                f"prompt has {len(prompt)}, {wanted or 1} more were asked for",
                param="messages" if isinstance(body, ChatBody) else "prompt",
                code="context_length_exceeded",
            )
        jobs += [
            Job(tuple(prompt), wanted or room, body.choice, seed, len(jobs) + i, body.stops)
            for i in range(body.n)
        ]
    return jobs
