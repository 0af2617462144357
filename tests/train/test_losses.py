# SPDX-License-Identifier: Apache-2.0
"""Losses that need more than sums, through the compiled step: columns, batches, schedules."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from alignax.train.columns import answer_columns
from alignax.train.forward import answer_logps
from alignax.train.step import ReferencePlan
from tests.train.test_step import SGD, one_update
from tests.train.tiny import Rows, Run, flat, policy


def test_columns_equal_a_loop_over_the_answers():
    """Tail, KL and squares of every answer from full distributions, token by token."""
    run = Run(Rows(6), model=policy(warm=True), rows=1, microbatches=1)
    batch = jax.tree.map(lambda x: jnp.asarray(x[0]), run.batch(0))
    ours = answer_logps(run.network, run.start, batch)
    theirs = answer_logps(run.network, run.reference, batch, adapter=False)
    names = ("forward_kl", "kl", "squares", "tail")
    got = answer_columns(names, run.network, ours, theirs, batch)
    logps = {
        side: np.asarray(jax.nn.log_softmax(x.hidden @ x.head.T), np.float64)
        for side, x in (("policy", ours), ("reference", theirs))
    }
    count, slots = int(batch.answer_count[0]), np.asarray(batch.answer_slot[0])
    tokens = np.bincount(slots[:count], minlength=ours.tokens[0].size)
    np.testing.assert_array_equal(tokens, np.ravel(ours.tokens[0]))
    assert len(set(tokens.tolist())) > 3
    want = {name: np.zeros(tokens.size) for name in got}
    seen = np.zeros(tokens.size, int)
    for place in range(count):
        slot, token = slots[place], int(batch.answer_target[0, place])
        p, q = logps["policy"][0, place], logps["reference"][0, place]
        want["forward_kl"][slot] += (np.exp(q) * (q - p)).sum()
        want["kl"][slot] += (np.exp(p) * (p - q)).sum() / tokens[slot]
        want["squares"][slot] += np.log(np.square(np.exp(p)).sum())
        if seen[slot] >= min(tokens[slot], tokens[slot ^ 1]):
            want["policy_tail"][slot] += p[token]
            want["reference_tail"][slot] += q[token]
        seen[slot] += 1
    assert (want["policy_tail"] != 0).sum() > 2
    for name, values in want.items():
        np.testing.assert_allclose(np.ravel(got[name][0]), values, rtol=1e-4, atol=1e-5)


def test_a_whole_batch_loss_does_not_depend_on_the_split():
    """Sorting and batch means are those of the step, not of a micro-batch; so are gradients."""
    rows, model = Rows(8), policy(warm=True)
    settings = {"loss": "kto + 0.5*aot + 0.1*tdpo1 + beta_dpo", "mode": "live", "model": model}
    loss, norm, gradient = one_update(rows, microbatches=1, **settings)
    split = one_update(rows, microbatches=4, **settings)
    np.testing.assert_allclose(split[0], loss, rtol=1e-6)
    np.testing.assert_allclose(split[1], norm, rtol=1e-5)
    np.testing.assert_allclose(split[2], gradient, rtol=1e-4, atol=1e-6 * norm)


@pytest.mark.parametrize("microbatches", [1, 2])
def test_a_batch_level_sum_of_pairs_has_the_gradient_of_its_pairs(microbatches):
    """AOT over one pair a step is DPO; here every step holds one pair."""
    rows, model = Rows(2), policy(warm=True)
    alone = {"model": model, "batch_size": 1, "packing": False}
    one = one_update(rows, loss="sigmoid", **alone)
    other = one_update(rows, loss="aot", **alone, microbatches=microbatches)
    np.testing.assert_allclose(other[0], one[0], rtol=1e-5)
    np.testing.assert_allclose(other[2], one[2], rtol=1e-4, atol=1e-7)


def test_a_schedule_follows_the_steps():
    """At learning rate 0 only β moves: the loss is that of the scheduled β."""
    rows, model = Rows(24), policy(warm=True)
    still = optax.sgd(0.0)
    settings = {"model": model, "optimizer": still, "loss": "ipo"}
    moving = Run(rows, knobs={"length_normalised": False}, **settings)
    moving_beta = Run(
        rows, loss="ipo(beta=0.1 -> 0.5, length_normalised=false)", model=model, optimizer=still
    )
    first = [moving.update(i)["loss"] for i in range(3)]
    second = [moving_beta.update(i)["loss"] for i in range(3)]
    assert moving.plan.steps == 3
    np.testing.assert_allclose(second[0], first[0], rtol=1e-6)
    fixed = Run(rows, loss="ipo(beta=0.5, length_normalised=false)", model=model, optimizer=still)
    np.testing.assert_allclose(second[2], fixed.update(2)["loss"], rtol=1e-5)
    assert abs(second[1] - first[1]) > 1e-3


def test_a_reference_free_loss_trains_without_a_reference():
    run = Run(Rows(24), mode="none", loss="simpo", learning_rate=1e-2)
    values = [run.update(i) for i in range(3)]
    assert not {name for name in values[0] if "logratio" in name}
    assert values[-1]["loss"] != values[0]["loss"]
    with_zeros = Run(Rows(24), mode="cached", loss="simpo", learning_rate=1e-2)
    np.testing.assert_allclose(with_zeros.losses(3), [v["loss"] for v in values], rtol=1e-6)


def test_running_margins_live_in_the_state():
    """They are what a checkpoint holds, and a step that is not finite leaves them alone."""
    run = Run(Rows(24), loss="beta_dpo", model=policy(warm=True), optimizer=SGD)
    assert [float(x) for x in run.state.memory.values()] == [0.0, 0.0]
    run.update(0)
    first = {name: float(x) for name, x in run.state.memory.items()}
    assert first["margin_spread"] > 0
    run.update(1)
    assert run.state.memory["margin_spread"] != first["margin_spread"]
    assert len(flat(run.state.memory)) == 2


def test_a_reference_that_jumps_to_the_policy_every_step_keeps_the_loss_at_ln_2():
    run = Run(Rows(24), moving=ReferencePlan("moving", True, 1, 1.0))
    before = flat(run.state.trainable)
    np.testing.assert_allclose(run.losses(3), np.log(2), rtol=1e-6)
    np.testing.assert_array_equal(flat(run.state.reference), flat(run.state.trainable))
    assert np.abs(flat(run.state.trainable) - before).max() > 1e-3


def test_a_soft_reference_goes_its_share_every_second_step():
    run = Run(Rows(24), moving=ReferencePlan("moving", True, 2, 0.6))
    start = flat(run.state.reference)
    first = run.update(0)["loss"]
    np.testing.assert_array_equal(flat(run.state.reference), start)
    run.update(1)
    want = 0.6 * flat(run.state.trainable) + 0.4 * start
    np.testing.assert_allclose(flat(run.state.reference), want, rtol=1e-6, atol=1e-7)
    still = Run(Rows(24), mode="live")
    assert still.update(0)["loss"] == pytest.approx(first, rel=1e-6)
