# SPDX-License-Identifier: Apache-2.0
"""Self-tests pass on right runs and stop wrong ones (C15, C16, L1, L3, L5)."""

import jax
import numpy as np
import pytest

from alignax.errors import SelfTestFailed, UsageError
from alignax.models.lora import LoraSpec, add_lora
from alignax.records import EncodedExample
from alignax.train.selftest import (
    check_equal_start,
    check_first_loss,
    check_first_update,
    check_packed_equals_padded,
)
from tests.train.tiny import Rows, Run, policy


def test_packed_equals_padded_and_a_fault_is_seen():
    run = Run(Rows(4), model=policy(warm=True))
    packed = run.score(run.start)
    examples = [run.rows[0], run.rows[1]]
    check_packed_equals_padded(run.network, run.start, examples, packed[:2], dtype="float32")
    with pytest.raises(SelfTestFailed, match="row0"):
        check_packed_equals_padded(
            run.network, run.start, examples, packed[:2] * 1.01, dtype="float32"
        )


def test_an_answer_of_two_turns_scores_as_its_turns_do():
    """log p(a, b) = log p(a | prompt) + log p(b | prompt, a, what lies between)."""
    rows = Rows(3, answers=1)
    first, second, prompt = (rows[i].answers[0] for i in range(3))
    between = rows[0].prompt
    whole = np.concatenate([first, between, second])
    marks = np.concatenate([first >= 0, between < 0, second >= 0])
    rows._examples = [
        EncodedExample("both", prompt, (whole,), (True,), scored=(marks,)),
        EncodedExample("one", prompt, (first,), (True,)),
        EncodedExample("two", np.concatenate([prompt, first, between]), (second,), (True,)),
    ]
    rows.lengths = np.array([[len(e.prompt), len(e.answers[0])] for e in rows._examples])
    run = Run(rows, kind="sft", mode="none", model=policy(warm=True))
    packed = run.score(run.start)
    np.testing.assert_allclose(packed[0], packed[1] + packed[2], rtol=1e-5)
    check_packed_equals_padded(
        run.network, run.start, list(rows._examples), packed, dtype="float32"
    )


def test_wrong_reference_is_named():
    """C15: base -60/-62 under a policy at -20/-70 must not start."""
    policy_logps, base = np.array([[-20.0, -70.0]]), np.array([[-60.0, -62.0]])
    identities = {"policy": "base b1, adapter a1", "reference": "base b1, adapter none"}
    with pytest.raises(SelfTestFailed) as caught:
        check_equal_start(policy_logps, base, identities, dtype="float32")
    assert "adapter a1" in str(caught.value)
    assert "adapter none" in str(caught.value)
    assert check_equal_start(base, base, identities, dtype="float32") == 0.0


def test_first_loss():
    check_first_loss(0.693147, beta=0.1, dtype="float32")
    for loss in (0.008196, 0.6999, float("nan")):
        with pytest.raises(SelfTestFailed, match="ln 2"):
            check_first_loss(loss, beta=0.1, dtype="float32")


def test_nothing_moves():
    """C16 a: frozen arrays give no gradient, and bf16-like rounding moves nothing."""
    weights = {"w": np.ones(4, np.float32)}
    with pytest.raises(SelfTestFailed, match="gradient"):
        check_first_update(weights, weights, 0.0)
    with pytest.raises(SelfTestFailed, match="changed none of 4"):
        check_first_update(weights, weights, 0.5)
    moved = {"w": np.array([1, 1, 2, 1], np.float32)}
    assert check_first_update(weights, moved, 0.5) == 0.25


@pytest.mark.parametrize("targets", [("query",), ("q_proj", "attn"), ()])
def test_targets_that_match_nothing_are_listed(targets):
    """C16 b."""
    with pytest.raises(UsageError) as caught:
        add_lora(policy(spec=None), LoraSpec(4, 8.0, 0.0, targets), key=jax.random.key(0))
    assert "gate_proj" in str(caught.value)
    assert all(t in str(caught.value) for t in targets)
