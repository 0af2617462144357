# SPDX-License-Identifier: Apache-2.0
"""Questions → opinions of a model behind an OpenAI-compatible endpoint.

Every question ends in an opinion: what cannot be had is `error`, counted and never cached.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from alignax.errors import UsageError
from alignax.judge.asking import Asker, Endpoint, token_bound
from alignax.judge.base import Opinion, Question
from alignax.judge.cache import OpinionCache
from alignax.judge.pacing import Budget, Clock, Pace, Patience
from alignax.judge.wording import CRITERIA, REFERENCE, TEMPLATE, family_of, question_text

SYSTEM = (
    f"{CRITERIA}Think briefly, then end with exactly one of [[A]] (A is better), [[B]] (B is "
    "better) or [[C]] (equally good)."
)


class Estimate(NamedTuple):
    """What the questions that are not cached will cost at most."""

    calls: int
    cached: int
    input_tokens: int
    output_tokens: int
    cost: float


class OpenAIJudge:
    """A judge behind an OpenAI-compatible endpoint."""

    symmetric = False

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        cache: Path | None = None,
        announce: Callable[[Estimate], None] = lambda _: None,
        clock: Clock | None = None,
    ):
        """Prepare; nothing is asked yet.

        Args:
            endpoint: Where and how to ask.
            cache: Folder of final opinions.
            announce: Told the estimate before the first call.
            clock: Time, for tests.
        """
        self._endpoint = endpoint
        self._cache = OpinionCache(cache)
        self._announce = announce
        self._clock = clock or Clock()
        self._pace = Pace(endpoint.per_minute, self._clock)
        self._budget = Budget(endpoint.max_cost)
        self.name = endpoint.model
        self.family = family_of(endpoint.model)
        identity = [
            endpoint.model, endpoint.base_url, SYSTEM, TEMPLATE, REFERENCE, endpoint.max_tokens,
            dict(endpoint.options),
        ]  # fmt: skip
        text = json.dumps(identity, sort_keys=True)
        self.fingerprint = hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def spent(self) -> float:
        """Money spent so far, by the endpoint's own token counts."""
        return self._budget.spent

    def judge(
        self, questions: Sequence[Question], *, done: Callable[[int], None] = lambda _: None
    ) -> list[Opinion]:
        """Judge all questions, those in the cache without a call.

        Raises:
            UsageError: The estimate is above the cap; nothing was asked.
            JudgeError: The endpoint refuses the key or the model.
            MissingExtra: The package ``openai`` is not installed.
        """
        keys = [OpinionCache.key(self.fingerprint, messages(q)) for q in questions]
        known = {key: opinion for key in set(keys) if (opinion := self._cache.get(key))}
        todo = {k: q for k, q in zip(keys, questions, strict=True) if k not in known}
        estimate = self.estimate(list(todo.values()), cached=len(keys) - len(todo))
        self._announce(estimate)
        if estimate.cost > self._endpoint.max_cost:
            raise UsageError(
                f"judging may cost {estimate.cost:.2f}, more than the cap of "
                f"{self._endpoint.max_cost:.2f}; nothing was asked",
                hint="raise --max-cost, or judge fewer items",
            )
        done(len(keys) - len(todo))
        if todo:
            known |= self._ask_all(todo, done)
        return [known[key] for key in keys]

    def estimate(self, questions: Sequence[Question], *, cached: int = 0) -> Estimate:
        """Bound what questions cost: a token every three characters, replies of full length."""
        inputs = sum(token_bound(messages(question)) for question in questions)
        outputs = len(questions) * self._endpoint.max_tokens
        cost = self._endpoint.price(inputs, outputs)
        return Estimate(len(questions), cached, int(inputs), outputs, cost)

    def _ask_all(
        self, todo: Mapping[str, Question], done: Callable[[int], None]
    ) -> dict[str, Opinion]:
        """Ask with several workers; each final opinion is kept at once."""
        asker = Asker(self._endpoint, self._budget, self._pace, self._clock)
        patience = Patience(self._endpoint.patience)

        def ask(key: str, question: Question) -> Opinion:
            if patience.lost:
                return Opinion("error", "not asked: too many questions in a row failed")
            opinion = asker.ask(messages(question))
            patience.note(failed=opinion.outcome == "error")
            self._cache.put(key, opinion)
            done(1)
            return opinion

        pool = ThreadPoolExecutor(self._endpoint.workers)
        try:
            futures = {key: pool.submit(ask, key, question) for key, question in todo.items()}
            return {key: future.result() for key, future in futures.items()}
        finally:
            pool.shutdown(cancel_futures=True)
            asker.close()


def messages(question: Question) -> list[dict[str, str]]:
    """Write the request."""
    user = question_text(question)
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": user}]
