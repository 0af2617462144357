# SPDX-License-Identifier: Apache-2.0
"""Slots are filled again while others go on, and nothing of that shows in an answer."""

from collections import Counter

import numpy as np
import pytest
from flax import nnx

from alignax.generate import engine as engine_module
from alignax.generate.choice import Choice
from alignax.generate.engine import Engine
from alignax.generate.program import Plan
from alignax.generate.queue import Job
from alignax.generate.sampler import Sampler
from alignax.generate.sampling import Rule
from alignax.generate.stops import StopText, settled
from alignax.models.decoder import random_model
from tests.generate.test_sampler import CONFIG, spell

PROMPTS = [np.random.default_rng(n).integers(0, 61, n).tolist() for n in range(3, 14)]
LONG = {"max_new_tokens": 12}


@pytest.fixture(scope="module")
def model():
    """A random decoder."""
    model = random_model(CONFIG, seed=0)
    model.embed.weight[...] *= 20.0
    return model


@pytest.fixture(scope="module")
def sampler(model):
    """Four slots; a prompt is read at a time."""
    return Sampler(model, stop_ids=(), decode=spell, batch_size=4)


def engine_of(model):
    """An engine of four slots."""
    graphdef, weights = nnx.split(model)
    return Engine(
        Plan(graphdef, True, Rule()), weights, model.config, dtype=model.dtype, slots=4, room=64,
        capacity=128, stop_ids=(), decode=spell,
    )  # fmt: skip


def test_answers_of_different_lengths_fill_free_slots(model, sampler):
    """Eleven jobs in four slots, each with a limit of its own: all as when alone."""
    limits = [3, 12, 1, 7, 2, 12, 5, 1, 9, 4, 12]
    whole = sampler.generate(PROMPTS, **LONG)
    engine = engine_of(model)
    jobs = [Job(tuple(p), n) for p, n in zip(PROMPTS, limits, strict=True)]
    writings = [engine.submit(job) for job in jobs]
    bursts = list(engine.run())
    assert not engine.busy
    assert len(bursts) > 3
    for writing, limit, answer in zip(writings, limits, whole, strict=True):
        assert writing.done
        assert tuple(writing.ids) == answer.ids[:limit]
        assert tuple(writing.logps) == answer.logps[:limit]


def test_samples_of_a_prompt_share_its_reading(sampler, monkeypatch):
    """Nine answers to one prompt: one reading, and each as by a call of its own."""
    reads = Counter()
    plain = engine_module.read

    def counted(plan, weights, ids, lengths):
        reads["rows"] += int((lengths > 0).sum())
        return plain(plan, weights, ids, lengths)

    monkeypatch.setattr(engine_module, "read", counted)
    choice = Choice(1.0)
    answers = sampler.generate([PROMPTS[3]] * 9, **LONG, choice=choice, seeds=range(9))
    assert reads["rows"] == 1
    assert len({answer.ids for answer in answers}) > 5
    alone = sampler.generate([PROMPTS[3]], **LONG, choice=choice, seeds=[6])
    assert alone[0] == answers[6]


def test_a_row_with_a_seed_does_not_depend_on_its_place(sampler):
    choice = Choice(0.9, top_k=20, top_p=0.9, min_p=0.01, penalty=1.2)
    seeds = [n * 7 for n in range(len(PROMPTS))]
    answers = sampler.generate(PROMPTS, **LONG, choice=choice, seeds=seeds)
    turned = sampler.generate(PROMPTS[::-1], **LONG, choice=choice, seeds=seeds[::-1])
    assert turned[::-1] == answers


def test_a_strong_penalty_forbids_repetition(sampler):
    """No token of prompt or answer comes again, while there are others."""
    for prompt, answer in zip(
        PROMPTS, sampler.generate(PROMPTS, **LONG, choice=Choice(penalty=1e9)), strict=True
    ):
        assert len(set(answer.ids)) == 12
        assert not set(answer.ids) & set(prompt)


def test_stop_texts_end_answers_whatever_the_burst(sampler, monkeypatch):
    """A text of parts of two tokens is found; it is left out, its tokens stay in the ids."""
    whole = sampler.generate(PROMPTS, **LONG)
    first, second = str(whole[2].ids[9]), str(whole[2].ids[10])
    stop = f"{first[-1]} {second}"
    for look in (1, 8, 50):
        monkeypatch.setattr(engine_module, "LOOK", look)
        answers = sampler.generate(PROMPTS, **LONG, stops=[stop, "no such text"])
        for answer, full in zip(answers, whole, strict=True):
            text, at, _ = full.text.partition(stop)
            assert answer.text == text
            assert answer.finish_reason == ("stop" if at else "length")
            ends = (n for n in range(13) if stop in spell(full.ids[:n]))
            assert answer.ids == full.ids[: next(ends, 12)]
            assert len(answer.logps) == len(answer.ids)


def test_a_cancelled_answer_frees_its_slot(model, sampler):
    """One at work, one in the queue; the others are as always."""
    engine = engine_of(model)
    writings = [engine.submit(Job(tuple(prompt), 12)) for prompt in PROMPTS]
    for burst, _ in enumerate(engine.run(most_steps=2)):
        if burst == 0:
            engine.cancel(writings[0])
            engine.cancel(writings[10])
    whole = sampler.generate(PROMPTS, **LONG)
    assert [w.ended_by for w in writings] == ["cancelled", *["length"] * 9, "cancelled"]
    assert [tuple(w.ids) for w in writings[1:10]] == [answer.ids for answer in whole[1:10]]


def test_progress_counts_every_answer(sampler):
    counts = []
    sampler.generate(PROMPTS, **LONG, progress=counts.append)
    assert sum(counts) == len(PROMPTS)


def test_stop_text_is_the_earliest_of_the_first_completing_token():
    stop = StopText(["cd", "b"], lambda ids: "".join(chr(97 + i) for i in ids))
    assert stop.find([0, 2]) is None
    assert stop.find([0, 2, 3, 1]) == (3, 1)


def test_a_growing_text_holds_back_what_may_change():
    assert settled("one tw\N{REPLACEMENT CHARACTER}", [], done=False) == "one tw"
    assert settled("one\nUs", ["\nUser:"], done=False) == "one"
    assert settled("one\nUs", ["\nUser:"], done=True) == "one\nUs"
    assert settled("one\nOs", ["\nUser:"], done=False) == "one\nOs"
