# SPDX-License-Identifier: Apache-2.0
"""The official client asks a server on loopback and gets what the sampler writes."""

import json
import threading
import urllib.request

import numpy as np
import openai
import pytest
import uvicorn

from alignax.errors import DataError
from alignax.generate.choice import Choice
from alignax.generate.queue import Job
from alignax.generate.sampler import Sampler
from alignax.models.decoder import random_model
from alignax.serve.api import Backend, build_app
from alignax.serve.requests import Limits
from alignax.serve.service import Service
from tests.generate.test_sampler import CONFIG

KEY = "secret"
LETTERS = "".join(map(chr, range(62, 62 + 61)))
STOP = 7


def spell(ids):
    """One visible character a token."""
    return "".join(LETTERS[i] for i in ids)


def read(text):
    """The inverse of ``spell``."""
    return [LETTERS.index(letter) for letter in text]


def read_chat(messages, tools):
    """Join all turns."""
    if any(turn["role"] not in ("user", "assistant") for turn in messages):
        raise DataError("only user and assistant turns are known")
    return read("".join(turn["content"] for turn in messages))


@pytest.fixture(scope="module")
def sampler():
    """Four slots over a random model whose stop id is likely enough to come."""
    model = random_model(CONFIG, seed=0)
    model.embed.weight[...] *= 20.0
    return Sampler(model, stop_ids=(STOP,), decode=spell, batch_size=4)


@pytest.fixture(scope="module")
def served(sampler):
    """(address, service) of a running server."""
    service = Service({"tiny": sampler.serving(128)})
    service.start()
    backend = Backend(service, read_chat, read, spell, (STOP,), Limits(128), KEY, 10_000)
    config = uvicorn.Config(build_app(backend), port=0, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}", service
    server.should_exit = True
    thread.join()
    service.stop()


@pytest.fixture(scope="module")
def client(served):
    """OpenAI's own client."""
    return openai.OpenAI(base_url=f"{served[0]}/v1", api_key=KEY, max_retries=0)


def ask(client, text="hello", **settings):
    """A chat request of one turn."""
    turn = {"role": "user", "content": text}
    return client.chat.completions.create(model="tiny", messages=[turn], **settings)


def test_greedy_chat_is_the_samplers_answer(client, sampler):
    want = sampler.generate([read("hello")], max_new_tokens=20)[0]
    got = ask(client, temperature=0, top_p=0.5, max_tokens=20, logprobs=True)
    assert got.choices[0].message.content == want.text
    assert got.choices[0].finish_reason == want.finish_reason
    assert (got.usage.prompt_tokens, got.usage.completion_tokens) == (5, len(want.ids))
    logps = [token.logprob for token in got.choices[0].logprobs.content]
    np.testing.assert_allclose(logps, want.logps, rtol=0, atol=1e-4)


def test_a_stream_adds_up_to_the_answer(client):
    whole = ask(client, temperature=0, max_completion_tokens=20)
    chunks = list(
        ask(
            client, temperature=0, max_tokens=20, stream=True,
            stream_options={"include_usage": True},
        )
    )  # fmt: skip
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert len(chunks) > 3


def test_seeds_and_numbers_of_answers(client, sampler):
    """The n answers are the sampler's under that seed; another seed gives others."""
    settings = {"temperature": 0.9, "top_p": 0.95, "max_tokens": 8, "n": 6}
    got = [c.message.content for c in ask(client, seed=3, **settings).choices]
    choice = Choice(0.9, top_p=0.95)
    want = sampler.generate([read("hello")] * 6, max_new_tokens=8, choice=choice, seed=3)
    assert got == [answer.text for answer in want]
    assert got != [c.message.content for c in ask(client, seed=4, **settings).choices]


def test_plain_completions_with_stop_and_extensions(client, sampler):
    whole = sampler.generate([read("abc")], max_new_tokens=12)[0].text
    got = client.completions.create(
        model="tiny", prompt=["abc", "xyz"], temperature=0, max_tokens=12, stop=whole[4:6]
    )
    assert got.choices[0].text == whole.partition(whole[4:6])[0]
    assert got.choices[0].finish_reason == "stop"
    assert [choice.index for choice in got.choices] == [0, 1]
    narrow = client.completions.create(
        model="tiny", prompt="abc", max_tokens=12, extra_body={"min_p": 1.0}
    )
    assert narrow.choices[0].text == whole


def test_many_clients_at_once(client):
    """More than there are slots; each gets what it gets alone."""
    words = [LETTERS[n : n + 3] for n in range(12)]
    alone = [ask(client, word, temperature=0, max_tokens=6).choices[0].message for word in words]
    together = [None] * len(words)

    def work(place):
        answer = ask(client, words[place], temperature=0, max_tokens=6)
        together[place] = answer.choices[0].message

    threads = [threading.Thread(target=work, args=(place,)) for place in range(len(words))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone


def test_models_are_listed(client):
    assert [model.id for model in client.models.list()] == ["tiny"]


@pytest.mark.parametrize(
    ("settings", "status", "words"),
    [
        ({"temperature": -1}, 400, "temperature"),
        ({"top_logprobs": 3}, 400, "top_logprobs"),
        ({"frequency_penalty": 0.5}, 400, "frequency_penalty"),
        ({"response_format": {"type": "json_object"}}, 400, "response_format"),
        ({"extra_body": {"beams": 4}}, 400, "beams is not supported"),
        ({"max_tokens": 124}, 400, "128 tokens"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"stop": ["a", ""]}, 400, "none of them empty"),
        ({"extra_body": {"model": "other"}}, 404, "there is: tiny"),
        ({"extra_body": {"messages": []}}, 400, "messages"),
        ({"extra_body": {"messages": [{"role": "judge", "content": "x"}]}}, 400, "only user"),
        ({"extra_body": {"messages": [{"role": "user", "content": "x" * 10_000}]}}, 413, "10000"),
        ({"extra_headers": {"Authorization": "Bearer wrong"}}, 401, "API key"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(client, settings, status, words):
    with pytest.raises(openai.APIStatusError) as caught:
        ask(client, **settings)
    assert caught.value.status_code == status
    assert words in str(caught.value)


def test_a_body_that_is_no_json(served):
    headers = {"Authorization": f"Bearer {KEY}"}
    for raw, words in ((b"{", "not JSON"), (b"[" * 5000, "not JSON"), (b"[]", "JSON object")):
        request = urllib.request.Request(f"{served[0]}/v1/completions", raw, headers)
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request)
        assert caught.value.code == 400
        assert words in json.loads(caught.value.read())["error"]["message"]


def test_a_client_that_leaves_frees_its_slots(client, served):
    """Endless answers are given up; the next question is answered."""
    stream = ask(client, temperature=0, stream=True)
    next(iter(stream))
    stream.close()
    assert ask(client, temperature=0, max_tokens=2).choices[0].message.content
    service = served[1]
    for _ in range(200):
        if not any(engine.busy for engine in service._engines.values()):
            break
        threading.Event().wait(0.05)
    assert not service._open


def test_a_broken_engine_is_told_to_everybody(sampler):
    """Health turns bad, waiting and later questions get the reason."""

    class Broken:
        busy = True

        def submit(self, job):
            return sampler.serving(64).submit(job)

        def burst(self, most_steps):
            raise MemoryError("no room")

    service = Service({"tiny": Broken()})
    parts = []
    service.ask("tiny", Job((1,), 1), parts.append)
    service.start()
    while not service.failure:
        threading.Event().wait(0.01)
    service.ask("tiny", Job((1,), 1), parts.append)
    service.stop()
    assert [part.failure for part in parts] == ["MemoryError: no room"] * 2
