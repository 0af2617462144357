# SPDX-License-Identifier: Apache-2.0
"""Answers equal a loop over full forward passes, and belong to their row alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from alignax.errors import UsageError
from alignax.generate import program
from alignax.generate.choice import Choice
from alignax.generate.queue import bucket
from alignax.generate.sampler import Sampler, by_bucket
from alignax.models.cache import init_cache
from alignax.models.config import DecoderConfig
from alignax.models.decoder import random_model
from alignax.models.layers import LoRAParam
from alignax.models.lora import LoraSpec, adapted, add_lora

CONFIG = DecoderConfig(
    family="llama", vocab_size=61, d_model=32, mlp_dim=48, layer_count=2, head_count=4,
    kv_head_count=2, head_dim=8, max_positions=256,
)  # fmt: skip
PROMPTS = [np.random.default_rng(n).integers(0, 61, n).tolist() for n in (5, 1, 63, 64, 65, 17, 40)]


def spell(ids):
    """Decode ids to readable text."""
    return " ".join(map(str, ids))


@pytest.fixture(scope="module")
def model():
    """A random decoder with an adapter that matters."""
    model = random_model(CONFIG, seed=0)
    model.embed.weight[...] *= 20.0
    add_lora(model, LoraSpec(4, 8.0, 0.0, ("q_proj", "v_proj")), key=jax.random.key(0))
    for index, linear in enumerate(adapted(model).values()):
        shape = linear.lora_b[...].shape
        linear.lora_b = nnx.data(LoRAParam(jax.random.normal(jax.random.key(index), shape)))
    return model


@pytest.fixture(scope="module")
def sampler(model):
    """Batches of three rows; no stop id."""
    return Sampler(model, stop_ids=(), decode=spell, batch_size=3)


@pytest.fixture(scope="module")
def greedy(sampler):
    """Greedy answers to all prompts at once."""
    return sampler.generate(PROMPTS, max_new_tokens=12)


@nnx.jit
def all_logits(model, ids_bt):
    """Logits by the dense oracle."""
    b, t = ids_bt.shape
    positions = jnp.broadcast_to(jnp.arange(t), (b, t))
    ones, zeros = jnp.ones_like(ids_bt), jnp.zeros_like(ids_bt)
    tiles = jnp.full((b, 1, 2), -1)
    hidden = model.hidden(ids_bt, positions, ones, zeros, tiles, attention="dense")
    return hidden @ model.head_vd.T


@pytest.mark.parametrize("row", [0, 1, 3, 4])
def test_greedy_equals_full_forward_passes(model, greedy, row):
    """Every id is the likeliest after all before it, and its log-prob is the model's."""
    prompt, answer = PROMPTS[row], greedy[row]
    ids = np.zeros((1, 128), np.int32)
    whole = [*prompt, *answer.ids]
    ids[0, : len(whole)] = whole
    logits = np.asarray(all_logits(model, ids))[0, len(prompt) - 1 : len(whole) - 1]
    assert tuple(logits.argmax(-1).tolist()) == answer.ids
    logps = np.asarray(jax.nn.log_softmax(logits))[np.arange(12), list(answer.ids)]
    np.testing.assert_allclose(answer.logps, logps, rtol=0, atol=1e-4)
    assert answer.finish_reason == "length"
    assert answer.text == spell(answer.ids)
    assert answer.prompt == spell(prompt)


@pytest.mark.parametrize("row", range(len(PROMPTS)))
def test_greedy_is_the_same_alone(sampler, greedy, row):
    """Bit for bit, log-probs included: a row runs through the same program."""
    assert sampler.generate([PROMPTS[row]], max_new_tokens=12) == [greedy[row]]


def test_greedy_is_the_same_alone_in_bfloat16(model):
    """Coarse sums make ties likely; still nothing depends on the batch."""
    graphdef, weights, rest = nnx.split(model, nnx.Param, ...)
    narrow = nnx.merge(graphdef, jax.tree.map(lambda x: x.astype(jnp.bfloat16), weights), rest)
    sampler = Sampler(narrow, stop_ids=(), decode=spell, batch_size=3)
    together = sampler.generate(PROMPTS, max_new_tokens=12)
    assert [sampler.generate([p], max_new_tokens=12)[0] for p in PROMPTS] == together


def test_another_batch_size_gives_the_same_text(model, greedy):
    """Rows of another program agree up to rounding."""
    sampler = Sampler(model, stop_ids=(), decode=spell, batch_size=1)
    alone = sampler.generate(PROMPTS[:3], max_new_tokens=12)
    assert [a.ids for a in alone] == [g.ids for g in greedy[:3]]


def test_sampled_text_belongs_to_its_row(sampler):
    """A row keeps its text when its neighbours change; another seed or row changes it."""
    settings = {"max_new_tokens": 12, "choice": Choice(1.0)}
    first = sampler.generate(PROMPTS, seed=1, **settings)
    other = sampler.generate([PROMPTS[0], *reversed(PROMPTS[1:])], seed=1, **settings)
    assert first[0] == other[0]
    assert first == sampler.generate(PROMPTS, seed=1, **settings)
    assert first[0].ids != sampler.generate(PROMPTS[:1], seed=2, **settings)[0].ids
    twice = sampler.generate([PROMPTS[0]] * 2, seed=1, **settings)
    assert twice[0].ids == first[0].ids
    assert twice[1].ids != first[0].ids


def test_limits_of_the_choice(sampler, greedy):
    """The likeliest one token, by count or by share, is the greedy one."""
    for limit in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}):
        choice = Choice(2.0, **limit)
        answers = sampler.generate(PROMPTS[:2], max_new_tokens=12, choice=choice)
        assert [a.ids for a in answers] == [g.ids for g in greedy[:2]]


def test_every_stop_id_ends_an_answer(model, greedy):
    """Two rows stop on two different ids; the text leaves the stop id out, the ids keep it."""
    stops = (greedy[0].ids[3], greedy[4].ids[6])
    sampler = Sampler(model, stop_ids=stops, decode=spell, batch_size=3)
    for row, answer in enumerate(sampler.generate(PROMPTS, max_new_tokens=12)):
        places = [i for i, token in enumerate(greedy[row].ids) if token in stops]
        if places:
            assert answer.ids == greedy[row].ids[: places[0] + 1]
            assert answer.text == spell(answer.ids[:-1])
            assert answer.finish_reason == "stop"
        else:
            assert answer == greedy[row]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_stream_yields_what_generate_gives(model, greedy, temperature):
    """Token by token, to the stop id included."""
    sampler = Sampler(model, stop_ids=(greedy[0].ids[5],), decode=spell, batch_size=3)
    settings = {"max_new_tokens": 12, "choice": Choice(temperature), "seed": 4}
    answer = sampler.generate([PROMPTS[0]], **settings)[0]
    parts = list(sampler.stream(PROMPTS[0], **settings))
    assert parts[-1] == answer
    assert all(answer.text.startswith(part.text) for part in parts)
    assert len({len(part.ids) for part in parts}) == len(parts) >= len(answer.ids) - 1


def test_adapter_can_be_left_out(model, sampler, greedy):
    """Without it the base answers."""
    base = sampler.generate(PROMPTS[:2], max_new_tokens=12, adapter=False)
    assert [a.ids for a in base] != [g.ids for g in greedy[:2]]
    plain = random_model(CONFIG, seed=0)
    plain.embed.weight[...] *= 20.0
    want = Sampler(plain, stop_ids=(), decode=spell, batch_size=3)
    assert want.generate(PROMPTS[:2], max_new_tokens=12) == base


def test_programs_are_compiled_once(model, sampler, greedy):
    """A further call and a new sampler of a like model compile nothing."""
    before = program.read._cache_size(), program.enter._cache_size(), program.write._cache_size()
    sampler.generate(PROMPTS, max_new_tokens=9)
    copy = nnx.merge(*nnx.split(model))
    Sampler(copy, stop_ids=(), decode=spell, batch_size=3).generate(PROMPTS, max_new_tokens=12)
    after = program.read._cache_size(), program.enter._cache_size(), program.write._cache_size()
    assert after == before


def test_answers_end_where_positions_end(sampler):
    """A prompt of 250 tokens leaves room for six more in 256 positions."""
    answer = sampler.generate([[1] * 250], max_new_tokens=12)[0]
    assert (len(answer.ids), answer.finish_reason) == (6, "length")


def test_an_answer_without_limit_takes_no_more_memory_than_the_positions(sampler):
    answer = sampler.generate([[1] * 250], max_new_tokens=10**9)[0]
    assert (len(answer.ids), sampler.room([1] * 250)) == (6, 6)


def test_a_cache_refuses_what_it_has_no_room_for(model):
    cache = init_cache(CONFIG, 1, 4, jnp.float32)
    ones = jnp.ones((1, 2), jnp.int32)
    _, grown = model.decode(ones, jnp.asarray([[0, 1]]), cache._replace(length=jnp.int32(2)))
    assert grown.positions.tolist() == [[-1, -1, 0, 1]]
    with pytest.raises(ValueError, match="2 tokens from slot 3 on do not fit into a cache of 4"):
        model.decode(ones, jnp.asarray([[0, 1]]), cache._replace(length=jnp.asarray([1, 3])))
    with pytest.raises(ValueError, match="5 tokens do not fit into a cache of 4"):
        jax.jit(lambda cache: model.decode(jnp.ones((1, 5), int), jnp.ones((1, 5), int), cache))(
            cache
        )


def test_buckets():
    """Buckets double from 64; rows are sorted in each."""
    assert [bucket(n) for n in (1, 64, 65, 128, 129, 500)] == [64, 64, 128, 128, 256, 512]
    assert by_bucket([70, 3, 200, 1, 64, 65]) == {64: [3, 1, 4], 128: [5, 0], 256: [2]}
    assert by_bucket([]) == {}


def test_bad_requests_are_refused(sampler):
    """All problems at once."""
    with pytest.raises(UsageError) as caught:
        sampler.generate([[1]], max_new_tokens=0, choice=Choice(-1, 0, 2.0, -0.5, 0), stops=("",))
    assert len(caught.value.problems) == 7
    with pytest.raises(UsageError, match="no effect on greedy"):
        sampler.generate([[1]], max_new_tokens=1, choice=Choice(0, top_k=3))
    with pytest.raises(UsageError, match="1 seeds were given for 2 prompts"):
        sampler.generate([[1], [2]], max_new_tokens=1, seeds=[4])
    with pytest.raises(UsageError, match="prompt 1 has 0 tokens.*\n.*prompt 2 has 256 tokens"):
        sampler.generate([[1], [], [1] * 256], max_new_tokens=1)
    assert sampler.generate([], max_new_tokens=1) == []
