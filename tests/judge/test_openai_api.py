# SPDX-License-Identifier: Apache-2.0
"""The endpoint judge against an endpoint that fails in every way; no test waits."""

import threading

import pytest

from alignax.errors import JudgeError, UsageError
from alignax.judge.asking import Endpoint
from alignax.judge.base import Opinion, Question
from alignax.judge.cache import OpinionCache
from alignax.judge.openai_api import OpenAIJudge, messages
from alignax.judge.pacing import Backoff, Budget, Clock, Pace
from tests.judge.fake_api import fake_api, reply

ERROR = {"error": {"message": "no", "type": "x", "code": None}}


class FakeTime:
    """A clock that jumps when somebody sleeps."""

    def __init__(self):
        self.time, self.slept, self.lock = 0.0, [], threading.Lock()

    def sleep(self, seconds):
        with self.lock:
            self.slept.append(seconds)
            self.time += seconds

    @property
    def clock(self):
        return Clock(lambda: self.time, self.sleep)


def questions(count):
    return [Question(f"prompt {n}", f"first {n}", f"second {n}") for n in range(count)]


def build(api, *, cache=None, time=None, **options):
    endpoint = Endpoint("fake-1", base_url=api.url, api_key="k", **{"workers": 1} | options)
    return OpenAIJudge(endpoint, cache=cache, clock=(time or FakeTime()).clock)


def test_verdicts_come_back_in_order(tmp_path):
    """The reply depends on the question, so a mix-up would show."""
    labels = "ABC"

    def script(number, request):
        return f"[[{labels[int(request['messages'][1]['content'].split()[2]) % 3]}]]"

    with fake_api(script) as api:
        opinions = build(api, workers=4).judge(questions(9))
    assert [o.outcome for o in opinions] == ["win", "loss", "tie"] * 3
    assert api.calls == 9
    assert api.most_running <= 4


@pytest.mark.parametrize(
    ("failure", "calls"),
    [
        ((429, {}, ERROR), 3), ((500, {}, ERROR), 3), ((503, {}, b"<html>busy</html>"), 3),
        ("cut", 3), (b'{"choices": [', 3), (b"", 3), ({"choices": None}, 3), ({"choices": []}, 3),
        (reply(""), 3), (reply(None), 3), ((400, {}, ERROR), 1), ((422, {}, ERROR), 1),
    ],
)  # fmt: skip
def test_failures_are_errors_after_all_tries(failure, calls, tmp_path):
    with fake_api(lambda number, request: failure) as api:
        opinions = build(api, tries=3, cache=tmp_path).judge(questions(1))
    assert opinions[0].outcome == "error"
    assert opinions[0].raw
    assert api.calls == calls
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize("failure", [(429, {}, ERROR), (500, {}, ERROR), "cut", b"{", reply("")])
def test_a_failure_that_passes_leaves_no_trace(failure):
    with fake_api(lambda number, request: failure if number < 3 else "[[A]]") as api:
        opinions = build(api).judge(questions(1))
    assert opinions[0] == Opinion("win", "[[A]]")
    assert api.calls == 3


def test_retry_after_is_obeyed_and_back_off_grows():
    time = FakeTime()
    steps = [(429, {"Retry-After": "17"}, ERROR), (503, {"retry-after-ms": "2500"}, ERROR)]
    with fake_api(lambda number, _: steps[number - 1] if number < 3 else "[[B]]") as api:
        build(api, time=time).judge(questions(1))
    assert [s for s in time.slept if s] == [17.0, 2.5]
    backoff = Backoff(first=1.0, longest=60.0)
    waits = [backoff.seconds(attempt, None) for attempt in range(9)]
    ceilings = [min(2.0**n, 60.0) for n in range(9)]
    assert all(c / 2 <= w <= c for w, c in zip(waits, ceilings, strict=True))


def test_pace_spaces_calls_and_holds_them():
    time = FakeTime()
    pace = Pace(30, time.clock)
    starts = []
    for number in range(4):
        if number == 2:
            pace.hold(100.0)
        pace.wait()
        starts.append(time.time)
    assert starts == [0.0, 2.0, 102.0, 104.0]


@pytest.mark.parametrize(
    ("status", "body", "needle"),
    [
        (401, ERROR, "check the key"), (404, ERROR, "check model and URL"),
        (429, {"error": {"message": "no", "code": "insufficient_quota"}}, "top up"),
    ],
)  # fmt: skip
def test_what_no_question_gets_past_ends_it(status, body, needle):
    with (
        fake_api(lambda number, request: (status, {}, body)) as api,
        pytest.raises(JudgeError, match="refuses fake-1") as caught,
    ):
        build(api).judge(questions(50))
    assert needle in str(caught.value)
    assert api.calls < 5


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        (reply(None, refusal="I will not."), "refused"),
        (reply("no", finish="content_filter"), "refused"),
        (reply("I'm sorry, but I can't compare these."), "refused"),
        (reply("A is better."), "unparsed"),
        (reply("[[A]] … or rather [[B]]"), "unparsed"),
        (reply("Thinking, thinking", finish="length"), "unparsed"),
    ],
)
def test_refusals_and_unparsed_replies_are_kept_apart_and_asked_again(body, outcome, tmp_path):
    with fake_api(lambda number, request: body) as api:
        for _ in range(2):
            assert build(api, cache=tmp_path).judge(questions(1))[0].outcome == outcome
    assert api.calls == 2


def test_interrupted_work_goes_on_where_it_stopped(tmp_path):
    """The second run asks only what failed, and a third asks nothing."""
    asked = questions(6)
    with fake_api(lambda n, _: "[[A]]" if n <= 4 else (500, {}, ERROR)) as api:
        first = build(api, cache=tmp_path, tries=1).judge(asked)
        api.script = lambda number, request: "[[B]]"
        second = build(api, cache=tmp_path).judge(asked)
        third = build(api, cache=tmp_path).judge(asked)
        other = build(api, cache=tmp_path, max_tokens=7).judge(asked[:1])
    assert [o.outcome for o in first] == ["win"] * 4 + ["error"] * 2
    assert [o.outcome for o in second] == ["win"] * 4 + ["loss"] * 2
    assert third == second
    assert other[0].outcome == "loss"  # another judge: another key
    assert api.calls == 6 + 2 + 1


def test_a_damaged_cache_file_is_asked_again(tmp_path):
    with fake_api(lambda number, request: "[[A]]") as api:
        build(api, cache=tmp_path).judge(questions(1))
        (file,) = tmp_path.rglob("*.json")
        file.write_text('{"outcome": "win"')
        assert build(api, cache=tmp_path).judge(questions(1))[0].outcome == "win"
    assert api.calls == 2
    assert OpinionCache(tmp_path).get(file.stem) == Opinion("win", "[[A]]")


def test_the_cap_is_checked_before_the_first_call():
    """6 bytes make 2 tokens: the estimate covers input and full replies of every question."""
    told = []
    endpoint = Endpoint("m", base_url="http://127.0.0.1:9/v1", prices=(3.0, 10.0), max_cost=0.01)
    judge = OpenAIJudge(endpoint, announce=told.append)
    with pytest.raises(UsageError, match=r"more than the cap of 0\.01; nothing was asked"):
        judge.judge(questions(2))
    size = sum(len(m["content"].encode()) for q in questions(2) for m in messages(q))
    assert told[0].calls == 2
    assert told[0].output_tokens == 1024
    assert told[0].cost == pytest.approx((size / 3 * 3.0 + 1024 * 10.0) / 1e6)


def test_the_cap_holds_while_replies_are_cut():
    """Each cut reply may be charged: worst case 0.01024, so that a cap of 0.025 allows two."""
    options = {"prices": (0.0, 20.0), "max_cost": 0.025, "tries": 9}
    with fake_api(lambda number, request: "cut") as api:
        judge = build(api, **options)
        opinion = judge.judge(questions(1))[0]
    assert api.calls == 2
    assert opinion.outcome == "error"
    assert "cost cap" in opinion.raw
    assert judge.spent == pytest.approx(2 * 512 * 20 / 1e6)


def test_what_was_spent_is_the_endpoints_count():
    with fake_api(lambda number, request: "[[A]]") as api:
        judge = build(api, prices=(2.0, 10.0))
        judge.judge(questions(3))
    assert judge.spent == pytest.approx(3 * (100 * 2.0 + 10 * 10.0) / 1e6)


def test_budget_counts_what_is_under_way():
    budget = Budget(1.0)
    assert budget.reserve(0.6)
    assert not budget.reserve(0.6)
    budget.settle(0.6, 0.1)
    assert budget.reserve(0.6)


def test_a_dead_endpoint_is_given_up():
    with fake_api(lambda number, request: (500, {}, ERROR)) as api:
        opinions = build(api, tries=2, patience=3).judge(questions(40))
    assert {o.outcome for o in opinions} == {"error"}
    assert api.calls == 6
    assert "not asked" in opinions[-1].raw


def test_answers_are_inserted_as_they_are():
    """Braces, also those of our own template, stay what the model wrote."""
    text = messages(Question("p {first}", "{second} {x}", "{0}", "{prompt}"))[1]["content"]
    assert "<request>\np {first}\n</request>" in text
    assert "<A>\n{second} {x}\n</A>" in text
    assert "<reference>\n{prompt}\n</reference>" in text


def test_options_reach_the_request_and_null_removes():
    with fake_api(lambda number, request: "[[C]]") as api:
        build(api, options={"temperature": None, "seed": 3}).judge(questions(1))
    assert api.requests[0]["seed"] == 3
    assert "temperature" not in api.requests[0]


def test_the_family_is_the_names_beginning():
    def family(name):
        return OpenAIJudge(Endpoint(name)).family

    names = ["gpt-4o", "org/Llama-3-8B", "x/y/qwen2.5", "7b"]
    assert [family(name) for name in names] == ["gpt", "llama", "qwen", ""]
