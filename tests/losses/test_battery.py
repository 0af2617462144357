# SPDX-License-Identifier: Apache-2.0
"""What every registered loss must satisfy, its hand-derived values, and refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alignax.errors import UsageError
from alignax.losses import KNOBS, LOSSES, build_loss
from alignax.metrics.weighted import merge
from alignax.records import PairLogps, Weighted
from tests.losses.cases import CASES

PAIR_LOSSES = [name for name, spec in LOSSES.items() if spec.kind == "pair"]
MARGIN_LOSSES = ["sigmoid"]

PAIRS = PairLogps(
    policy_chosen=jnp.array([-10.0, -7.0, -30.0]),
    policy_rejected=jnp.array([-12.0, -3.0, -20.0]),
    reference_chosen=jnp.array([-11.0, -7.5, -25.0]),
    reference_rejected=jnp.array([-11.0, -4.0, -21.0]),
    chosen_tokens=jnp.array([3, 2, 9]),
    rejected_tokens=jnp.array([4, 1, 6]),
    kl_chosen=jnp.array([0.1, 0.2, 0.3]),
)
ALL_TERMS = {"label_smoothing": 0.1, "nll_weight": 0.3, "kl_weight": 0.2}


def run(name, pair, valid_p, **settings) -> Weighted:
    """Apply a loss of either kind to pairs; SFT reads the chosen answers."""
    kind = LOSSES[name].kind
    objective = build_loss(name, kind=kind, **settings)
    if kind == "sft":
        return objective(pair.policy_chosen, pair.chosen_tokens, valid_p)
    return objective(pair, valid_p)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.loss}: {case.name}")
def test_hand_derived_values(case):
    pair = jax.tree.map(lambda x: jnp.asarray(x)[None], case.pair)
    value = run(case.loss, pair, jnp.array([True]), **case.settings)
    np.testing.assert_allclose(value.total, case.expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_has_a_hand_derived_value(name):
    assert name in {case.loss for case in CASES}
    assert LOSSES[name].name == name


@pytest.mark.parametrize("name", LOSSES)
def test_jit_gives_the_same_value(name):
    valid_p = jnp.ones(3, bool)
    eager = run(name, PAIRS, valid_p)
    compiled = jax.jit(lambda pair: run(name, pair, valid_p))(PAIRS)
    np.testing.assert_allclose(compiled.total, eager.total, rtol=1e-6)
    np.testing.assert_allclose(compiled.weight, eager.weight)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("size", [1e3, -1e3, 3e4, -3e4])
def test_extreme_margins_have_finite_loss_and_gradient(name, size):
    pair = PAIRS._replace(policy_chosen=PAIRS.policy_chosen + size)
    value, gradient = jax.value_and_grad(
        lambda x: run(name, pair._replace(policy_chosen=x), jnp.ones(3, bool)).total
    )(pair.policy_chosen)
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("filler", [np.nan, np.inf, -1e30, 0.0])
def test_unused_slots_are_inert_in_value_and_gradient(name, filler):
    settings = ALL_TERMS if LOSSES[name].kind == "pair" else {}
    padded = jax.tree.map(
        lambda x: (
            jnp.concatenate([x, jnp.full((2,), filler if x.dtype == jnp.float32 else 0)])
            if x.dtype == jnp.float32
            else jnp.concatenate([x, jnp.zeros(2, x.dtype)])
        ),
        PAIRS,
    )

    def total(chosen, pair, count):
        valid_p = jnp.arange(len(chosen)) < count
        value = run(name, pair._replace(policy_chosen=chosen), valid_p, **settings)
        return value.total, value.weight

    (want, weight), gradient = jax.value_and_grad(total, has_aux=True)(
        PAIRS.policy_chosen, PAIRS, 3
    )
    (got, padded_weight), padded_gradient = jax.value_and_grad(total, has_aux=True)(
        padded.policy_chosen, padded, 3
    )
    np.testing.assert_allclose(got, want, rtol=1e-6)
    np.testing.assert_allclose(padded_weight, weight)
    np.testing.assert_allclose(padded_gradient[:3], gradient, rtol=1e-6)
    np.testing.assert_array_equal(padded_gradient[3:], 0)


@pytest.mark.parametrize("name", LOSSES)
def test_no_valid_slot_gives_weight_zero(name):
    value = run(name, PAIRS, jnp.zeros(3, bool))
    assert float(value.total) == 0.0
    assert float(value.weight) == 0.0
    assert np.isnan(value.mean)


@pytest.mark.parametrize("name", MARGIN_LOSSES)
def test_swapping_the_answers_negates_the_margin(name):
    objective = build_loss(name, kind="pair")
    negated = PairLogps(*[-x for x in PAIRS[:4]], *PAIRS[4:])
    swapped = PairLogps(
        PAIRS.policy_rejected,
        PAIRS.policy_chosen,
        PAIRS.reference_rejected,
        PAIRS.reference_chosen,
        PAIRS.rejected_tokens,
        PAIRS.chosen_tokens,
        PAIRS.kl_chosen,
    )
    np.testing.assert_allclose(
        objective.per_example(swapped), objective.per_example(negated), rtol=1e-6
    )


@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_the_spec_tells_the_truth_about_the_reference(name):
    objective = build_loss(name, kind="pair")
    gradient = jax.grad(lambda x: objective.per_example(PAIRS._replace(reference_chosen=x)).sum())(
        PAIRS.reference_chosen
    )
    assert bool((gradient != 0).any()) == LOSSES[name].needs_reference
    assert objective.needs_reference == LOSSES[name].needs_reference


@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_bfloat16_log_probs_are_summed_in_float32(name):
    """256 + 1 is 256 in bfloat16: many equal losses must not stop adding up."""
    count = 2048
    pair = jax.tree.map(lambda x: jnp.full((count,), x[0]), PAIRS)
    rounded = pair._replace(policy_chosen=pair.policy_chosen.astype(jnp.bfloat16))
    value = run(name, rounded, jnp.ones(count, bool))
    single = run(name, jax.tree.map(lambda x: x[:1], pair), jnp.ones(1, bool))
    np.testing.assert_allclose(value.total, count * single.total, rtol=1e-3)


def test_accumulation_by_sums_equals_one_batch():
    """Eight pairs split in every way, uneven ones too, give one loss and gradient (C19 a)."""
    margins = jnp.array([0.0, 2, -2, 4, -4, 6, -6, 8])
    objective = build_loss("sigmoid", kind="pair", beta=0.1)

    def total(margins):
        zeros, ones = jnp.zeros_like(margins), jnp.ones(len(margins), int)
        pair = PairLogps(margins, zeros, zeros, zeros, ones, ones, zeros)
        value = objective(pair, jnp.ones(len(margins), bool))
        return value.total, value

    whole = jax.grad(total, has_aux=True)(margins)[0] / 8
    for size in (8, 4, 2, 1, 3):
        parts = [
            jax.grad(total, has_aux=True)(margins[start : start + size])
            for start in range(0, 8, size)
        ]
        (loss,) = merge(*({"loss": value} for _, value in parts)).values()
        np.testing.assert_allclose(loss.mean, 0.670191, atol=1e-6)
        gradient = jnp.concatenate([part for part, _ in parts]) / loss.weight
        np.testing.assert_allclose(gradient, whole, rtol=1e-6)


def test_sft_weighs_tokens_not_batches():
    """Two tokens at 4 nats and six at 1 give (8 + 6) / 8 = 1.75, not 2.5 (C19 b)."""
    objective = build_loss(kind="sft")
    first = objective(jnp.array([-8.0]), jnp.array([2]), jnp.array([True]))
    second = objective(jnp.array([-6.0, -99.0]), jnp.array([6, 5]), jnp.array([True, False]))
    assert (first + second).mean == pytest.approx(1.75)


@pytest.mark.parametrize(
    ("name", "kind", "settings", "words"),
    [
        ("sigmod", "pair", {}, ["unknown loss 'sigmod'", "sigmoid"]),
        ("nll", "pair", {}, ["'nll' is a sft loss", "sigmoid"]),
        ("sigmoid", "sft", {}, ["'sigmoid' is a pair loss", "nll"]),
        ("sigmoid", "pair", {"beta": 0.0}, ["loss.beta", "got 0.0"]),
        ("sigmoid", "pair", {"beta": -1.0}, ["loss.beta", "got -1.0"]),
        ("sigmoid", "pair", {"beta": float("nan")}, ["loss.beta", "nan"]),
        ("sigmoid", "pair", {"label_smoothing": 0.5}, ["label_smoothing", "0.5"]),
        ("sigmoid", "pair", {"nll_weight": -0.1}, ["nll_weight", "-0.1"]),
        ("sigmoid", "pair", {"gamma": 1.0}, ["gamma", "unknown", "label_smoothing"]),
        ("nll", "sft", {"beta": 0.1}, ["beta=0.1 has no effect"]),
        ("nll", "sft", {"beta": 0.1, "kl_weight": 1.0}, ["beta=0.1", "kl_weight=1.0"]),
    ],
)
def test_refusals_name_value_and_way_out(name, kind, settings, words):
    with pytest.raises(UsageError) as caught:
        build_loss(name, kind=kind, **settings)
    for word in words:
        assert word in str(caught.value)


def test_settings_at_their_defaults_are_accepted_by_every_loss():
    for name, spec in LOSSES.items():
        objective = build_loss(name, kind=spec.kind, beta=None, **KNOBS)
        assert objective.kind == spec.kind
        assert spec.formula in objective.describe()


def test_the_header_names_every_setting():
    text = build_loss("sigmoid", kind="pair", beta=0.2, **ALL_TERMS).describe()
    for word in ("β=0.2", "label_smoothing=0.1", "0.3 · NLL", "0.2 · KL", "summed over tokens"):
        assert word in text


def test_an_objective_is_hashable():
    assert hash(build_loss(kind="pair")) == hash(build_loss("sigmoid", kind="pair", beta=0.1))


def test_a_kl_term_needs_the_reference():
    assert build_loss(kind="pair", kl_weight=0.1).needs_reference
    assert not build_loss(kind="sft").needs_reference
