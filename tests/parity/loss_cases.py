# SPDX-License-Identifier: Apache-2.0
"""Log-probs of a few pairs, and which of TRL's losses is which of ours; no torch here."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from alignax.losses import build_loss
from alignax.records import PairLogps


class Case(NamedTuple):
    """One loss on both sides.

    Attributes:
        loss: Our name.
        settings: Our settings.
        trainer: ``"dpo"``, ``"kto"``, ``"cpo"`` or ``"orpo"``.
        theirs: Attributes of TRL's trainer.
        equal_lengths: All answers have 4 tokens.
    """

    loss: str
    settings: dict[str, Any]
    trainer: str
    theirs: dict[str, Any]
    equal_lengths: bool = False

    @property
    def name(self) -> str:
        """A name for people and for the file of stored values."""
        words = [f"{knob}={value}" for knob, value in self.settings.items()]
        return " ".join([self.loss, *words])


def dpo(loss: str, theirs: str | list[str], settings: dict[str, Any], **attributes: Any) -> Case:
    """A case of DPOTrainer, by default at β = 0.1."""
    names = [theirs] if isinstance(theirs, str) else theirs
    beta = settings.get("beta", 0.1)
    return Case(loss, settings, "dpo", {"loss_types": names, "beta": beta, **attributes})


NO_NLL = {"nll_weight": 0.0}
KTO = {"beta": 0.1, "loss_type": "kto", "desirable_weight": 1.0, "undesirable_weight": 1.0}
CPO = {"beta": 0.1, "alpha": 0.0, "label_smoothing": 0.0, "simpo_gamma": 1.0}
DIVERGENCES = {"forward_kl": "forward_kl", "js": "js_divergence", "alpha": "alpha_divergence"}

CASES = [
    dpo("sigmoid", "sigmoid", {}),
    dpo("sigmoid", "sigmoid", {"beta": 0.5}),
    dpo("sigmoid_norm", "sigmoid_norm", {"beta": 5.0}),
    dpo("hinge", "hinge", {}),
    dpo("ipo", "ipo", {}),
    dpo("robust", "robust", {}, label_smoothing=0.1),
    dpo("exo", "exo_pair", {"label_smoothing": 0.01}, label_smoothing=0.01),
    dpo("nca", "nca_pair", {}),
    dpo("bco_pair", "bco_pair", {"reward_shift": False}),
    dpo("sppo", "sppo_hard", {"beta": 0.05}),
    dpo("aot", "aot", {}),
    dpo("aot", "aot", {"label_smoothing": 0.2}, label_smoothing=0.2),
    dpo("aot_unpaired", "aot_unpaired", {}),
    dpo("apo_zero", "apo_zero", {}),
    dpo("apo_down", "apo_down", {}),
    dpo("discopop", "discopop", {}),
    dpo("ld_dpo", "sigmoid", {}, ld_alpha=0.5),
    dpo("wpo", "sigmoid", {}, use_weighting=True),
    dpo("0.8*sigmoid + 0.2*apo_zero", ["sigmoid", "apo_zero"], {}, loss_weights=[0.8, 0.2]),
    dpo("chosen_nll", "sft", {})._replace(equal_lengths=True),
    dpo("rpo", ["sigmoid", "sft"], {})._replace(equal_lengths=True),
    *(
        dpo(loss, theirs, {"divergence": ours}, f_divergence_type=name)
        for loss, theirs in (("sigmoid", "sigmoid"), ("hinge", "hinge"), ("ipo", "ipo"))
        for ours, name in DIVERGENCES.items()
    ),
    # TRL's α is 1 minus the paper's.
    dpo(
        "sigmoid", "sigmoid", {"divergence": "alpha", "divergence_alpha": 0.7},
        f_divergence_type="alpha_divergence", f_alpha_divergence_coef=0.3,
    ),
    Case("kto", {}, "kto", KTO),
    Case(
        "kto", {"desirable_weight": 1.5, "undesirable_weight": 0.5}, "kto",
        {**KTO, "desirable_weight": 1.5, "undesirable_weight": 0.5},
    ),
    Case("simpo", {}, "cpo", {**CPO, "loss_type": "simpo", "beta": 2.0}),
    Case(
        "simpo", {"label_smoothing": 0.1}, "cpo",
        {**CPO, "loss_type": "simpo", "beta": 2.0, "label_smoothing": 0.1},
    ),
    Case("alphapo", {}, "cpo", {**CPO, "loss_type": "simpo", "beta": 2.0, "alpha": 0.25}),
    Case("cpo", NO_NLL, "cpo", {**CPO, "loss_type": "sigmoid"}),
    Case("hinge", {"reference_free": True}, "cpo", {**CPO, "loss_type": "hinge"}),
    Case("orpo", NO_NLL, "orpo", {"beta": 0.1}),
]  # fmt: skip


class Tokens(NamedTuple):
    """[2n, t] per-token values, chosen answers first; used tokens come first in a row."""

    policy: np.ndarray
    reference: np.ndarray
    squares: np.ndarray
    used: np.ndarray


def tokens_of(case: Case, pairs: int = 6, width: int = 9) -> Tokens:
    """Draw log-probs as a trained policy might have them."""
    rng = np.random.default_rng(5)
    lengths = np.full(2 * pairs, 4) if case.equal_lengths else rng.integers(2, width, 2 * pairs)
    used = np.arange(width)[None] < lengths[:, None]
    policy = -rng.exponential(1.0, used.shape)
    reference = np.minimum(policy + rng.normal(0.1, 0.8, used.shape), -1e-3)
    squares = -rng.exponential(1.0, used.shape)
    values = [np.where(used, x, 0.0).astype(np.float32) for x in (policy, reference, squares)]
    return Tokens(*values, used)


def ours(case: Case) -> dict[str, Any]:
    """Our mean loss, and its slope by each answer's (first) log-prob."""
    tokens = tokens_of(case)
    half = len(tokens.used) // 2
    counts = tokens.used.sum(1)
    shared = np.tile(np.minimum(counts[:half], counts[half:]), 2)
    beyond = np.arange(tokens.used.shape[1])[None] >= shared[:, None]
    values = {
        "policy": tokens.policy.sum(1),
        "reference": tokens.reference.sum(1),
        "policy_tail": (tokens.policy * beyond).sum(1),
        "reference_tail": (tokens.reference * beyond).sum(1),
        "squares": tokens.squares.sum(1),
    }
    fields = {
        f"{name}_{side}": jnp.asarray(part)
        for name, all_ in values.items()
        for side, part in (("chosen", all_[:half]), ("rejected", all_[half:]))
    }
    fields |= {"chosen_tokens": jnp.asarray(counts[:half])}
    fields |= {"rejected_tokens": jnp.asarray(counts[half:])}
    objective = build_loss(case.loss, kind="pair", **case.settings)

    def mean(chosen: Any, rejected: Any) -> Any:
        pair = PairLogps(**{**fields, "policy_chosen": chosen, "policy_rejected": rejected})
        value = objective(pair, jnp.ones(half, bool))
        return value.total / value.weight

    loss, slopes = jax.value_and_grad(mean, (0, 1))(
        fields["policy_chosen"], fields["policy_rejected"]
    )
    return {"loss": float(loss), "chosen": slopes[0].tolist(), "rejected": slopes[1].tolist()}


def compare(got: dict[str, Any], want: dict[str, Any]) -> None:
    """Loss and slopes within 1e-5 relative."""
    np.testing.assert_allclose(got["loss"], want["loss"], rtol=1e-5, atol=1e-6)
    for side in ("chosen", "rejected"):
        np.testing.assert_allclose(got[side], want[side], rtol=1e-4, atol=1e-6)
