# SPDX-License-Identifier: Apache-2.0
"""Losses with bound settings → one objective over the slots of a batch, as a sum with its weight.

The batch dimension, unused slots, schedules, weighted sums of losses and the terms that any pair
loss may carry live here, once.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from alignax.losses.ratios import per_token
from alignax.losses.schedule import Schedule, shown, value_at
from alignax.losses.spec import LossSpec
from alignax.records import PairLogps, Weighted

BLANK = PairLogps(0.0, 0.0, 0.0, 0.0, 1, 1)
"""What a loss sees in an unused slot: finite values and gradients, which are then masked."""

LIVE_COLUMNS = {"kl", "forward_kl", "tail"}
"""Columns that a cache of the reference's summed log-probs cannot give."""


@dataclass(frozen=True)
class Term:
    """One loss with its settings bound.

    Attributes:
        spec: The loss.
        weight: Its factor in the objective.
        beta: Strength of the tie to the reference, maybe a schedule; None for a loss without one.
        nll_weight: Weight of the chosen answer's negative log-likelihood per token.
        kl_weight: Weight of KL(policy ‖ reference) per token of the chosen answer.
        settings: The loss's own knobs.
    """

    spec: LossSpec
    weight: float = 1.0
    beta: Any = None
    nll_weight: Any = 0.0
    kl_weight: Any = 0.0
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def needs_reference(self) -> bool:
        """Whether reference log-probs enter."""
        return self.spec.needs_reference and not self.has("reference_free", True)

    @property
    def length_normalised(self) -> bool:
        """Whether log-probs are read per token."""
        return self.spec.length_normalised and not self.has("length_normalised", False)

    @property
    def columns(self) -> tuple[str, ...]:
        """Fields of ``PairLogps`` that it reads under its settings."""
        unused = {"squares"} if self.has("align_samples", False) else set()
        return tuple(name for name in self.spec.columns if name not in unused)

    def has(self, knob: str, value: Any) -> bool:
        """Tell whether a setting has a value."""
        return (knob, value) in self.settings

    def at(self, step: Any) -> "Term":
        """Resolve schedules for a step."""
        names = ("beta", "nll_weight", "kl_weight")
        values = {name: value_at(getattr(self, name), step) for name in names}
        settings = tuple((name, value_at(value, step)) for name, value in self.settings)
        return replace(self, settings=settings, **values)

    def over(self, steps: int) -> "Term":
        """Bind schedules to a run of so many steps."""

        def bind(value: Any) -> Any:
            return value.over(steps) if isinstance(value, Schedule) else value

        settings = tuple((name, bind(value)) for name, value in self.settings)
        names = ("beta", "nll_weight", "kl_weight")
        return replace(self, settings=settings, **{n: bind(getattr(self, n)) for n in names})

    def tied(self, factor: float) -> "Term":
        """Multiply β, its schedule too."""
        beta = self.beta.times(factor) if isinstance(self.beta, Schedule) else self.beta
        if isinstance(beta, float | int):
            beta = factor * beta
        return replace(self, beta=beta)

    def losses(self, pair: PairLogps, valid_p: Bool[Array, " p"]) -> Float[Array, " p"]:
        """Compute the weighted loss of every slot; ``pair`` holds float32 [p] arrays."""
        knobs = dict(self.settings)
        if self.spec.default_beta is not None:
            knobs["beta"] = self.beta
        if self.spec.batch_level:
            losses_p = self.spec.function(pair, valid_p, **knobs)
        else:
            losses_p = jax.vmap(lambda one: self.spec.function(one, **knobs))(pair)
        if not _is_zero(self.nll_weight):
            losses_p += self.nll_weight * -pair.policy_chosen / pair.chosen_tokens
        if not _is_zero(self.kl_weight):
            losses_p += self.kl_weight * pair.kl_chosen
        return self.weight * losses_p

    def describe(self) -> str:
        """Say in one line what is minimised, with every setting that matters."""
        read = "averaged over tokens" if self.length_normalised else "summed over tokens"
        parts = [f"{self.spec.name}: {self.spec.formula}; log-probs {read}"]
        if self.beta is not None:
            parts.append(f"β={shown(self.beta)}")
        parts += [f"{name}={shown(value)}" for name, value in self.settings]
        if not _is_zero(self.nll_weight):
            parts.append(f"+ {shown(self.nll_weight)} · NLL of chosen per token")
        if not _is_zero(self.kl_weight):
            parts.append(f"+ {shown(self.kl_weight)} · KL(policy ‖ reference) per token of chosen")
        if self.spec.batch_level:
            parts.append("over the whole batch")
        return ", ".join(parts)


@dataclass(frozen=True)
class Objective:
    """A weighted sum of losses; hashable, so that it may be a static argument."""

    terms: tuple[Term, ...]

    @property
    def spec(self) -> LossSpec:
        """The first loss, which gives the rewards that are logged."""
        return self.terms[0].spec

    @property
    def kind(self) -> Literal["pair", "sft", "reward"]:
        """Which records it reads."""
        return self.spec.kind

    @property
    def beta(self) -> Any:
        """Scale of the rewards: the first loss's β; 1 if it has none."""
        return 1.0 if self.terms[0].beta is None else self.terms[0].beta

    @property
    def needs_reference(self) -> bool:
        """Whether reference log-probs (or a KL to the reference) enter."""
        return any(term.needs_reference or not _is_zero(term.kl_weight) for term in self.terms)

    @property
    def columns(self) -> tuple[str, ...]:
        """Fields of ``PairLogps`` that are wanted besides sums and token counts, sorted."""
        names = {name for term in self.terms for name in term.columns}
        if any(not _is_zero(term.kl_weight) for term in self.terms):
            names.add("kl")
        return tuple(sorted(names))

    @property
    def needs_live_reference(self) -> bool:
        """Whether the reference must be computed in the step; cached sums do not suffice."""
        return self.needs_reference and bool(LIVE_COLUMNS & set(self.columns))

    @property
    def batch_level(self) -> bool:
        """Whether an example's loss depends on the rest of the batch."""
        return any(term.spec.batch_level for term in self.terms)

    @property
    def is_plain_dpo(self) -> bool:
        """Whether it is ln 2 wherever policy and reference agree."""
        term = self.terms[0]
        plain = term.spec.name == "sigmoid" and not term.has("reference_free", True)
        return len(self.terms) == 1 and plain and _is_zero(term.nll_weight)

    def at(self, step: Any) -> "Objective":
        """Resolve schedules for a step (0 for the first; may be traced)."""
        return Objective(tuple(term.at(step) for term in self.terms))

    def over(self, steps: int) -> "Objective":
        """Bind schedules to a run of so many steps."""
        return Objective(tuple(term.over(steps) for term in self.terms))

    @property
    def has_beta(self) -> bool:
        """Whether any loss has a β."""
        return any(term.beta is not None for term in self.terms)

    def tied(self, factor: float) -> "Objective":
        """Tie the policy more or less to its reference: β times a factor."""
        return self if factor == 1.0 else Objective(tuple(t.tied(factor) for t in self.terms))

    def start_memory(self) -> dict[str, Any] | None:
        """Make what the losses carry from step to step; None if they carry nothing."""
        if not any(term.spec.remember for term in self.terms):
            return None
        return {"margin_mean": jnp.zeros(()), "margin_spread": jnp.zeros(())}

    def remember(self, memory: Any, pair: PairLogps, valid_p: Bool[Array, " p"]) -> Any:
        """Update the memory by one batch."""
        for term in self.terms:
            if term.spec.remember is not None:
                return term.spec.remember(memory, pair, valid_p, beta=term.beta)
        return memory

    def rewards(self, pair: PairLogps) -> tuple[Any, Any]:
        """Compute the rewards of chosen and rejected answers that the first loss implies.

        β · (policy - reference), or β · policy without a reference; per token if the loss is
        length-normalised.
        """
        term = self.terms[0]
        chosen, rejected = pair.policy_chosen, pair.policy_rejected
        if term.needs_reference:
            chosen, rejected = chosen - pair.reference_chosen, rejected - pair.reference_rejected
        if term.length_normalised:
            chosen, rejected = per_token(chosen, rejected, pair)
        return self.beta * chosen, self.beta * rejected

    def per_example(self, pair: PairLogps) -> Float[Array, " p"]:
        """Compute the loss of every pair, all of them used.

        A batch-level loss takes the pairs as one batch; its values then belong to ranks or shares
        of the batch, and only their mean is meant.
        """
        shape = jnp.shape(pair.policy_chosen)
        columns = jax.tree.map(lambda x: jnp.broadcast_to(jnp.asarray(x), shape), pair)
        return self._losses(columns, jnp.ones(shape, bool))

    def _losses(self, pair: PairLogps, valid_p: Array) -> Array:
        """Compute every slot's loss in float32."""
        pair = jax.tree.map(
            lambda x: x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else x, pair
        )
        total_p = self.terms[0].losses(pair, valid_p)
        for term in self.terms[1:]:
            total_p += term.losses(pair, valid_p)
        return total_p

    def __call__(self, *args: Any) -> Weighted:
        """Sum the loss over valid slots.

        Pair losses take ``(pair, valid_p)`` and weigh pairs; SFT losses take
        ``(logp_p, tokens_p, valid_p)`` and weigh tokens. What an unused slot holds, NaN included,
        reaches neither the sum nor a gradient.
        """
        if self.kind == "sft":
            return self._sft(*args)
        return self._pairs(*args)

    def _pairs(self, pair: PairLogps, valid_p: Bool[Array, " p"]) -> Weighted:
        kept = jax.tree.map(lambda x, blank: jnp.where(valid_p, x, blank), pair, BLANK)
        losses_p = jnp.where(valid_p, self._losses(kept, valid_p), 0.0)
        return Weighted(losses_p.sum(), valid_p.sum().astype(jnp.float32))

    def _sft(
        self, logp_p: Float[Array, " p"], tokens_p: Any, valid_p: Bool[Array, " p"]
    ) -> Weighted:
        logp_p = jnp.where(valid_p, logp_p, 0.0).astype(jnp.float32)
        tokens_p = jnp.where(valid_p, tokens_p, 1)
        losses_p = jnp.where(valid_p, jax.vmap(self.spec.function)(logp_p, tokens_p), 0.0)
        weight = jnp.where(valid_p, tokens_p, 0).sum().astype(jnp.float32)
        return Weighted(losses_p.sum(), weight)

    def describe(self) -> str:
        """Say in one line what is minimised, with every setting that matters."""
        if len(self.terms) == 1:
            return self.terms[0].describe()
        return " + ".join(f"{term.weight:g} × ({term.describe()})" for term in self.terms)


def _is_zero(value: Any) -> bool:
    """Tell whether a weight is the constant 0 (a schedule or a traced value is not)."""
    return isinstance(value, float) and value == 0.0
