# SPDX-License-Identifier: Apache-2.0
"""One request to an OpenAI-compatible endpoint → an opinion, through every way it can fail.

What passes (rate limits, server errors, cut connections, broken bodies) is tried again, paced and
within the budget. What no request can get past (a wrong key, an unknown model) is raised.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from alignax.errors import JudgeError, MissingExtra
from alignax.judge.base import Opinion
from alignax.judge.pacing import Backoff, Budget, Clock, Pace
from alignax.judge.replies import parse_label

CHARACTERS_A_TOKEN = 3.0
"""Fewer than English text has, so that the estimate is on the safe side."""

FATAL = (401, 403, 404)
RETRIED = (408, 409, 425, 429)
MILLION = 1e6


@dataclass(frozen=True)
class Endpoint:
    """Where and how to ask.

    Attributes:
        model: Model name.
        base_url: Address of the API, up to ``/v1``; None: the client's default.
        api_key: Key; None: from ``OPENAI_API_KEY``.
        workers: Calls at a time.
        per_minute: Calls a minute; None: no limit of our own.
        tries: How often one question is asked at most.
        timeout: Seconds of one call.
        max_tokens: Tokens of one reply at most.
        prices: Money a million input and output tokens.
        max_cost: Hard cap on money.
        options: Further fields of the request; null removes one.
        patience: Failed questions in a row after which no more are asked.
    """

    model: str
    base_url: str | None = None
    api_key: str | None = None
    workers: int = 8
    per_minute: float | None = None
    tries: int = 6
    timeout: float = 60.0
    max_tokens: int = 512
    prices: tuple[float, float] = (0.0, 0.0)
    max_cost: float = 5.0
    options: Mapping[str, Any] = field(default_factory=dict)
    patience: int = 10

    def price(self, inputs: float, outputs: float) -> float:
        """Money for so many input and output tokens."""
        one, two = self.prices
        return (inputs * one + outputs * two) / MILLION


class Failure(NamedTuple):
    """A try that brought no reply."""

    why: str
    again: bool
    retry_after: float | None = None


class Asker:
    """Asks an endpoint; may be used by several threads at once."""

    def __init__(self, endpoint: Endpoint, budget: Budget, pace: Pace, clock: Clock):
        """Open the client; retries are ours, because they have to be paced and counted.

        Raises:
            MissingExtra: The package ``openai`` is not installed.
            JudgeError: There is no key.
        """
        try:
            import openai
        except ImportError as error:
            raise MissingExtra("openai", extra="judge") from error
        self._endpoint, self._budget, self._pace, self._clock = endpoint, budget, pace, clock
        self._backoff = Backoff()
        try:
            self._client = openai.OpenAI(
                api_key=endpoint.api_key,
                base_url=endpoint.base_url,
                timeout=endpoint.timeout,
                max_retries=0,
            )
        except openai.OpenAIError as error:
            raise JudgeError(
                f"no client for {endpoint.model}: {error}", hint="set OPENAI_API_KEY"
            ) from error

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def ask(self, text: Sequence[Mapping[str, str]]) -> Opinion:
        """Ask one question (chat messages) until it is answered, hopeless or tried often enough."""
        worst = self._endpoint.price(token_bound(text), self._endpoint.max_tokens)
        failure = Failure("never asked", again=False)
        for attempt in range(self._endpoint.tries):
            if not self._budget.reserve(worst):
                return Opinion("error", f"the cost cap was reached; before: {failure.why}")
            self._pace.wait()
            spent = 0.0
            try:
                reply, spent = self._call(text, worst)
            finally:
                self._budget.settle(worst, spent)
            if isinstance(reply, Opinion):
                return reply
            failure = reply
            if not failure.again:
                break
            if attempt + 1 < self._endpoint.tries:
                wait = self._backoff.seconds(attempt, failure.retry_after)
                if failure.retry_after is not None:
                    self._pace.hold(wait)
                self._clock.sleep(wait)
        return Opinion("error", failure.why)

    def _call(
        self, text: Sequence[Mapping[str, str]], worst: float
    ) -> tuple[Opinion | Failure, float]:
        """Make one call; the opinion, or what went wrong, and the cost.

        A reply that was cut or came without counts may be charged in full, and is counted so.
        """
        import openai

        request = {
            "model": self._endpoint.model, "messages": text, "temperature": 0.0,
            "max_tokens": self._endpoint.max_tokens,
        } | dict(self._endpoint.options)  # fmt: skip
        try:
            reply = self._client.chat.completions.create(
                **{name: value for name, value in request.items() if value is not None}
            )
            return _opinion(reply), self._cost(reply, worst)
        except openai.APIStatusError as error:
            return self._failure(error), 0.0
        except (openai.APIError, ValueError, LookupError, TypeError, AttributeError) as error:
            # Cut connections, time-outs, bodies that are no JSON or not of the API's form.
            return Failure(f"{type(error).__name__}: {error}", again=True), worst

    def _cost(self, reply: Any, worst: float) -> float:
        usage = getattr(reply, "usage", None)
        if usage is None or usage.prompt_tokens is None or usage.completion_tokens is None:
            return worst
        return self._endpoint.price(usage.prompt_tokens, usage.completion_tokens)

    def _failure(self, error: Any) -> Failure:
        """Tell an error that passes from one that stays; one that stays for all is raised."""
        status, why = error.status_code, f"HTTP {error.status_code}: {error.message}"
        broke = getattr(error, "code", None) == "insufficient_quota"
        if status in FATAL or broke:
            hints = {
                401: "check the key",
                403: "check the key's rights",
                404: "check model and URL",
            }
            raise JudgeError(
                f"the endpoint refuses {self._endpoint.model}: {why}",
                hint=hints.get(status, "top up the account") + "; verdicts so far are kept",
            ) from error
        again = status in RETRIED or status >= 500
        return Failure(why, again, _retry_after(error.response.headers))


def token_bound(text: Sequence[Mapping[str, str]]) -> float:
    """Bound the tokens of a request: one every three bytes."""
    return sum(len(message["content"].encode()) for message in text) / CHARACTERS_A_TOKEN


def _opinion(reply: Any) -> Opinion:
    """Read a reply; ValueError if it holds no message."""
    choice = reply.choices[0]
    refusal = getattr(choice.message, "refusal", None)
    text = choice.message.content or ""
    if refusal or choice.finish_reason == "content_filter":
        return Opinion("refused", refusal or text or "content filter")
    if not text:
        raise ValueError("an empty reply")
    return Opinion(parse_label(text), text)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Read ``Retry-After`` in seconds (or in milliseconds, as some endpoints send it)."""
    for name, scale in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers[name]) * scale)
        except (KeyError, ValueError):
            continue
    return None
