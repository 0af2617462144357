# SPDX-License-Identifier: Apache-2.0
"""What every registered loss must satisfy, its hand-derived values, and refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alignax.errors import UsageError
from alignax.losses import KNOBS, LOSSES, build_loss
from alignax.losses.knobs import TERMS
from alignax.metrics.weighted import merge
from alignax.recipe import LossSection
from alignax.records import PairLogps, Weighted
from tests.losses.cases import CASES

PAIR_LOSSES = [name for name, spec in LOSSES.items() if spec.kind == "pair"]
MARGIN_LOSSES = [
    "sigmoid", "robust", "hinge", "exo", "discopop", "beta_dpo", "aot", "sigmoid_norm", "simpo",
    "cpo", "rpo", "ipo",
]  # fmt: skip
"""Losses of the margin alone, once their NLL term is off."""

PAIRS = PairLogps(
    policy_chosen=jnp.array([-10.0, -7.0, -30.0]),
    policy_rejected=jnp.array([-12.0, -3.0, -20.0]),
    reference_chosen=jnp.array([-11.0, -7.5, -25.0]),
    reference_rejected=jnp.array([-4.0, -4.0, -21.0]),
    chosen_tokens=jnp.array([3, 2, 8]),
    rejected_tokens=jnp.array([5, 1, 6]),
    kl_chosen=jnp.array([0.1, 0.2, 0.3]),
    policy_tail_chosen=jnp.array([0.0, -2.0, -8.0]),
    policy_tail_rejected=jnp.array([-1.0, 0.0, 0.0]),
    reference_tail_chosen=jnp.array([0.0, -3.0, -6.0]),
    reference_tail_rejected=jnp.array([-2.0, 0.0, 0.0]),
    forward_kl_chosen=jnp.array([0.5, 0.3, 1.0]),
    forward_kl_rejected=jnp.array([0.9, 0.1, 2.0]),
    squares_chosen=jnp.array([-4.0, -3.0, -9.0]),
    squares_rejected=jnp.array([-5.0, -1.0, -7.0]),
    score_chosen=jnp.array([7.0, 4.0, 9.0]),
    score_rejected=jnp.array([3.0, 3.5, 2.0]),
    margin_mean=jnp.full(3, 0.1),
    margin_spread=jnp.full(3, 0.5),
)
COLUMNS = {
    "tail": ("policy_tail_chosen", "reference_tail_chosen"),
    "forward_kl": ("forward_kl_rejected",),
    "squares": ("squares_chosen",),
    "score": ("score_chosen",),
}
SIDES = {
    "policy_chosen": "policy_rejected",
    "reference_chosen": "reference_rejected",
    "chosen_tokens": "rejected_tokens",
}
OTHER_VALUES = {
    "label_smoothing": 0.2, "nll_weight": 0.3, "kl_weight": 0.2, "divergence": "js",
    "divergence_alpha": 0.9, "reference_free": True, "length_normalised": False,
    "target_margin": 0.7, "reward_shape": 0.1, "length_penalty": 0.5, "tail_weight": 0.1,
    "drop_penalty": 5.0, "kl_balance": 0.9, "batch_beta": 3.0, "keep_share": 0.3,
    "desirable_weight": 2.0, "undesirable_weight": 0.5, "reward_shift": False,
    "blend_temperature": 0.9, "align_samples": False, "score_scale": 0.3,
    "centre_weight": 0.2,
}  # fmt: skip
"""A value of each knob that is nobody's default."""


def run(name, pair, valid_p=None, **settings) -> Weighted:
    """Apply a loss of either kind to pairs; SFT reads the chosen answers."""
    kind = LOSSES[name].kind if name in LOSSES else "pair"
    valid_p = jnp.ones(len(pair.policy_chosen), bool) if valid_p is None else valid_p
    objective = build_loss(name, kind=kind, **settings)
    if kind == "sft":
        return objective(pair.policy_chosen, pair.chosen_tokens, valid_p)
    return objective(pair, valid_p)


def plain(name):
    """Settings without the NLL of the losses of which it is a part."""
    return {"nll_weight": 0.0} if "nll_weight" in LOSSES[name].knobs else {}


def swapped(pair):
    """Exchange the answers, sums and token counts."""
    back = {rejected: chosen for chosen, rejected in SIDES.items()}
    pairs = {**SIDES, **back}
    return pair._replace(**{name: getattr(pair, other) for name, other in pairs.items()})


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.loss}: {case.name}")
def test_hand_derived_values(case):
    batch = case.pair if isinstance(case.pair, list) else [case.pair]
    pair = PairLogps(*[jnp.asarray(field) for field in zip(*batch, strict=True)])
    value = run(case.loss, pair, **case.settings)
    np.testing.assert_allclose(value.total / len(batch), case.expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_has_a_hand_derived_value(name):
    assert name in {case.loss for case in CASES}
    assert LOSSES[name].name == name


@pytest.mark.parametrize("name", LOSSES)
def test_jit_gives_the_same_value(name):
    eager = run(name, PAIRS)
    compiled = jax.jit(lambda pair: run(name, pair))(PAIRS)
    np.testing.assert_allclose(compiled.total, eager.total, rtol=2e-6)
    np.testing.assert_allclose(compiled.weight, eager.weight)


def variants():
    """Every loss as it is, and those with a divergence under each of them."""
    for name, spec in LOSSES.items():
        yield name, {}
        for choice in ("forward_kl", "js", "alpha") if "divergence" in spec.knobs else ():
            yield name, {"divergence": choice}


@pytest.mark.parametrize(("name", "settings"), variants())
def test_extreme_margins_have_finite_loss_and_gradient(name, settings):
    sizes = (0.0, 1e4, -1e4, 3e4, -3e4)
    moves = [(c, r) for c in sizes for r in sizes]

    def total(chosen, rejected):
        pair = PAIRS._replace(policy_chosen=chosen, policy_rejected=rejected)
        return run(name, pair, **settings).total

    stacked = [
        jnp.stack([getattr(PAIRS, f"policy_{side}") + move[i] for move in moves])
        for i, side in enumerate(("chosen", "rejected"))
    ]
    values, gradients = jax.vmap(jax.value_and_grad(total, (0, 1)))(*stacked)
    for move, value, *parts in zip(moves, values, *gradients, strict=True):
        assert np.isfinite(value), move
        assert np.isfinite(parts).all(), move


@pytest.mark.parametrize("name", LOSSES)
def test_unused_slots_are_inert_in_value_and_gradient(name):
    """Whatever they hold, also when they lie between used ones: packing leaves gaps."""
    order = jnp.array([0, 3, 1, 2, 4])
    settings = {knob: OTHER_VALUES[knob] for knob in TERMS if knob in LOSSES[name].knobs}

    def total(chosen, rejected, pair, valid_p):
        pair = pair._replace(policy_chosen=chosen, policy_rejected=rejected)
        value = run(name, pair, valid_p, **settings)
        return value.total, value.weight

    measure = jax.jit(jax.value_and_grad(total, (0, 1), has_aux=True))
    (want, weight), gradient = measure(*PAIRS[:2], PAIRS, jnp.ones(3, bool))
    for filler in (np.nan, np.inf, -1e30, 0.0):
        padded = jax.tree.map(
            lambda x, filler=filler: jnp.concatenate(
                [x, jnp.full(2, filler if x.dtype == jnp.float32 else 0).astype(x.dtype)]
            )[order],
            PAIRS,
        )
        (got, padded_weight), padded_gradient = measure(*padded[:2], padded, order < 3)
        np.testing.assert_allclose(got, want, rtol=2e-6)
        np.testing.assert_allclose(padded_weight, weight)
        for ours, theirs in zip(padded_gradient, gradient, strict=True):
            np.testing.assert_allclose(ours[jnp.array([0, 2, 3])], theirs, rtol=1e-5, atol=1e-8)
            np.testing.assert_array_equal(ours[jnp.array([1, 4])], 0)


@pytest.mark.parametrize("name", LOSSES)
def test_no_valid_slot_gives_weight_zero(name):
    value = run(name, PAIRS, jnp.zeros(3, bool))
    assert float(value.total) == 0.0
    assert float(value.weight) == 0.0
    assert np.isnan(value.mean)


@pytest.mark.parametrize("name", MARGIN_LOSSES)
def test_swapping_the_answers_negates_the_margin(name):
    negated = PAIRS._replace(**{field: -getattr(PAIRS, field) for field in PAIRS._fields[:4]})
    if LOSSES[name].length_normalised:
        same = {"chosen_tokens": PAIRS.rejected_tokens, "rejected_tokens": PAIRS.rejected_tokens}
        one, other = swapped(PAIRS._replace(**same)), negated._replace(**same)
    else:
        one, other = swapped(PAIRS), negated
    settings = plain(name)
    np.testing.assert_allclose(
        run(name, one, **settings).total, run(name, other, **settings).total, rtol=2e-6
    )


@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_the_spec_tells_the_truth_about_the_reference(name):
    other = PAIRS._replace(
        reference_chosen=PAIRS.reference_chosen - jnp.array([0.0, 3.0, 1.0]),
        reference_rejected=PAIRS.reference_rejected - 2.0,
    )
    objective = build_loss(name, kind="pair")
    assert objective.needs_reference == LOSSES[name].needs_reference
    same = float(run(name, other).total) == float(run(name, PAIRS).total)
    assert same != LOSSES[name].needs_reference


@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_the_spec_tells_the_truth_about_length(name):
    """Twice the tokens with twice the log-probs change all but length-normalised losses."""
    doubled = PAIRS._replace(**{name: 2 * getattr(PAIRS, name) for name in PAIRS._fields[:6]})
    same = np.isclose(run(name, doubled).total, run(name, PAIRS).total, rtol=1e-6)
    assert same == LOSSES[name].length_normalised


@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_the_spec_tells_the_truth_about_pairing(name):
    """An unpaired loss does not notice which rejected answer belongs to which chosen one."""
    rolled = {
        field: jnp.roll(getattr(PAIRS, field), 1) for field in PAIRS._fields if "rejected" in field
    }
    beta = LOSSES[name].default_beta
    settings = {"beta": 10 * beta} if beta else {}  # so that the hinge is not linear all along
    other = run(name, PAIRS._replace(**rolled), **settings)
    same = np.isclose(other.total, run(name, PAIRS, **settings).total, rtol=1e-6)
    assert same != LOSSES[name].paired


@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_the_spec_tells_the_truth_about_the_batch(name):
    """Others leave a batch's loss the sum of its pairs' losses."""
    alone = sum(run(name, jax.tree.map(lambda x, i=i: x[i : i + 1], PAIRS)).total for i in range(3))
    same = np.isclose(run(name, PAIRS).total, alone, rtol=1e-6)
    assert same != LOSSES[name].batch_level


@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_the_spec_tells_the_truth_about_columns(name):
    for column, fields in COLUMNS.items():
        for field in fields:
            other = PAIRS._replace(**{field: getattr(PAIRS, field) * 0.5 - 0.1})
            same = float(run(name, other).total) == float(run(name, PAIRS).total)
            assert same == (column not in LOSSES[name].columns), field
    assert set(LOSSES[name].columns) <= set(COLUMNS)
    assert LOSSES[name].token_level == bool(set(LOSSES[name].columns) - {"score"})


@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_every_setting_has_an_effect_and_all_others_are_refused(name):
    spec = LOSSES[name]
    for knob, value in OTHER_VALUES.items():
        if knob not in spec.knobs:
            with pytest.raises(UsageError, match=f"loss.{knob}"):
                build_loss(name, kind="pair", **{knob: value})
            continue
        needed = dict([spec.knobs[knob].only_with]) if spec.knobs[knob].only_with else {}
        base, changed = run(name, PAIRS, **needed), run(name, PAIRS, **needed, **{knob: value})
        assert float(base.total) != float(changed.total), knob
        if needed:
            with pytest.raises(UsageError, match=f"loss.{knob}.* has no effect without"):
                build_loss(name, kind="pair", **{knob: value})
    if spec.default_beta is None:
        with pytest.raises(UsageError, match="no β"):
            build_loss(name, kind="pair", beta=0.1)
    else:
        other = run(name, PAIRS, beta=spec.default_beta * 1.7)
        assert not np.isclose(other.total, run(name, PAIRS).total, rtol=1e-6)


def test_the_recipe_has_every_setting():
    assert set(OTHER_VALUES) == set(KNOBS)
    assert set(LossSection.model_fields) == {"type", "beta", *KNOBS}


@pytest.mark.parametrize("name", LOSSES)
def test_bfloat16_log_probs_are_computed_with_in_float32(name):
    """256 + 1 is 256 in bfloat16: many equal losses must not stop adding up."""
    count = 2048
    rounded = jax.tree.map(
        lambda x: jnp.full((count,), x[0]).astype(
            jnp.bfloat16 if x.dtype == jnp.float32 else x.dtype
        ),
        PAIRS,
    )
    value = run(name, rounded)
    wide = jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x, rounded)
    assert value.total.dtype == jnp.float32
    np.testing.assert_allclose(value.total, run(name, wide).total, rtol=1e-6)
    one = run(name, jax.tree.map(lambda x: x[:1], wide))
    np.testing.assert_allclose(value.total, count * one.total, rtol=1e-4)


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
        ("sigmod", "pair", {}, ["unknown loss 'sigmod'", "did you mean 'sigmoid'", "ipo"]),
        ("nll", "pair", {}, ["'nll' is a sft loss", "sigmoid"]),
        ("sigmoid", "sft", {}, ["'sigmoid' is a pair loss", "nll"]),
        ("sigmoid", "pair", {"beta": 0.0}, ["loss.beta", "got 0.0"]),
        ("sigmoid", "pair", {"beta": -1.0}, ["loss.beta", "got -1.0"]),
        ("sigmoid", "pair", {"beta": float("nan")}, ["loss.beta", "nan"]),
        ("sigmoid", "pair", {"beta": "much"}, ["loss.beta", "schedule", "'much'"]),
        ("sigmoid", "pair", {"beta": "0.1 -> 0"}, ["loss.beta", "got 0.0"]),
        ("sigmoid", "pair", {"beta": "0.1 -> 0.2 over 2"}, ["share of the run"]),
        ("sigmoid", "pair", {"label_smoothing": 0.5}, ["label_smoothing", "0.5"]),
        ("sigmoid", "pair", {"nll_weight": -0.1}, ["nll_weight", "-0.1"]),
        ("sigmoid", "pair", {"gamma": 1.0}, ["gamma", "unknown", "label_smoothing"]),
        ("simpo", "pair", {"target_margins": 1.0}, ["did you mean target_margin"]),
        ("sigmoid", "pair", {"divergence": "kl"}, ["one of reverse_kl", "'kl'"]),
        ("sigmoid", "pair", {"reference_free": 1.0}, ["true or false", "1.0"]),
        ("exo", "pair", {"label_smoothing": 0.0}, ["label_smoothing", "got 0.0"]),
        ("nll", "sft", {"beta": 0.1}, ["beta=0.1 has no effect"]),
        ("nll", "sft", {"beta": 0.1, "kl_weight": 1.0}, ["beta=0.1", "kl_weight=1.0"]),
        ("sigmoid + ", "pair", {}, ["neither a loss nor a sum"]),
        ("sigmoid hinge", "pair", {}, ["neither a loss nor a sum"]),
        ("0*sigmoid + ipo", "pair", {}, ["weight 0"]),
        ("sigmoid + ipo", "pair", {"nll_weight": 1.0}, ["which loss", "sigmoid(nll_weight=1.0)"]),
        ("sigmoid + ipo(tau=1)", "pair", {}, ["tau", "unknown"]),
        ("sigmoid + ipo(target_margin=1)", "pair", {}, ["target_margin", "simpo"]),
        ("sigmoid + ipo", "pair", {"target_margin": 1.0}, ["target_margin", "simpo"]),
    ],
)
def test_refusals_name_value_and_way_out(name, kind, settings, words):
    with pytest.raises(UsageError) as caught:
        build_loss(name, kind=kind, **settings)
    for word in words:
        assert word in str(caught.value)


def test_settings_that_are_not_given_are_accepted_by_every_loss():
    for name, spec in LOSSES.items():
        objective = build_loss(name, kind=spec.kind, beta=None, **dict.fromkeys(KNOBS))
        assert objective.kind == spec.kind
        assert spec.formula in objective.describe()


def test_the_header_names_every_setting():
    terms = {"label_smoothing": 0.1, "nll_weight": 0.3, "kl_weight": 0.2}
    text = build_loss("sigmoid", kind="pair", beta=0.2, **terms).describe()
    for word in ("β=0.2", "label_smoothing=0.1", "0.3 · NLL", "0.2 · KL", "summed over tokens"):
        assert word in text
    ipo = build_loss("0.5*ipo(length_normalised=false) + kto", kind="pair", beta="0.1 -> 0.2")
    for word in ("0.5 × (ipo", "summed over tokens", "β=0.1 -> 0.2 linear", "1 × (kto", "batch"):
        assert word in ipo.describe()
    assert "averaged over tokens" in build_loss("ipo", kind="pair").describe()


def test_an_objective_is_hashable():
    assert hash(build_loss(kind="pair")) == hash(build_loss("sigmoid", kind="pair", beta=0.1))


def test_a_kl_term_needs_the_reference():
    assert build_loss(kind="pair", kl_weight=0.1).needs_reference
    assert build_loss(kind="pair", kl_weight=0.1).needs_live_reference
    assert build_loss("simpo", kind="pair", kl_weight="0 -> 0.1").needs_reference
    assert not build_loss(kind="pair", reference_free=True).needs_reference
    assert not build_loss(kind="pair").needs_live_reference
    assert not build_loss(kind="sft").needs_reference
    assert build_loss("tdpo2", kind="pair").needs_live_reference
    assert not build_loss("wpo", kind="pair").needs_live_reference
    assert build_loss("wpo", kind="pair").columns == ("squares",)
    assert build_loss("wpo", kind="pair", align_samples=False).columns == ()


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("0.1 -> 0.5", [0.1, 0.2, 0.3, 0.4, 0.5]),
        ("0.5->0.1 linear over 0.5", [0.5, 0.3, 0.1, 0.1, 0.1]),
        ("1 -> 3 cosine", [1.0, 2 - 0.5**0.5, 2.0, 2 + 0.5**0.5, 3.0]),
    ],
)
def test_a_schedule_by_hand(text, values):
    objective = build_loss(kind="pair", beta=text).over(5)
    got = [objective.at(step).beta for step in (0, 1, 2, 3, 4)]
    np.testing.assert_allclose(got, values, rtol=1e-6)
    np.testing.assert_allclose(objective.at(99).beta, values[-1], rtol=1e-6)
    pair = PAIRS._replace(margin_mean=jnp.zeros(3))
    compiled = jax.jit(lambda step: objective.at(step)(pair, jnp.ones(3, bool)).total)
    want = run("sigmoid", pair, beta=values[1]).total
    np.testing.assert_allclose(compiled(1), want, rtol=1e-6)


def test_a_schedule_of_another_setting():
    objective = build_loss("rpo", kind="pair", nll_weight="1 -> 0").over(3)
    for step, weight in enumerate((1.0, 0.5, 0.0)):
        value = objective.at(step)(PAIRS, jnp.ones(3, bool)).total
        np.testing.assert_allclose(value, run("rpo", PAIRS, nll_weight=weight).total, rtol=1e-6)


def test_beta_dpo_remembers_margins():
    """The first batch sets mean and spread; later ones move them by a tenth."""
    objective = build_loss("beta_dpo", kind="pair", beta=1.0)
    memory = objective.start_memory()
    valid_p = jnp.array([True, True, False])
    zeros = jnp.zeros(3)
    for size, mean, spread in ((1.0, 2.0, 1.0), (3.0, 2.0 * 0.9 + 6.0 * 0.1, 0.9 + 0.3)):
        margin_p = size * jnp.array([1.0, 3.0, jnp.nan])
        pair = PAIRS._replace(
            policy_chosen=margin_p, policy_rejected=zeros,
            reference_chosen=zeros, reference_rejected=zeros,
        )  # fmt: skip
        memory = objective.remember(memory, pair, valid_p)
        np.testing.assert_allclose(memory["margin_mean"], mean, rtol=1e-5)
        np.testing.assert_allclose(memory["margin_spread"], spread, rtol=1e-5)
    assert build_loss(kind="pair").start_memory() is None
