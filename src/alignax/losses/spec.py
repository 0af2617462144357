# SPDX-License-Identifier: Apache-2.0
"""A per-example loss → an objective over the slots of a batch, as a sum with its weight.

A loss is a free function of scalars; its ``LossSpec`` says, as data, what it needs. The batch
dimension, unused slots and the terms that any pair loss may carry live here, once.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from alignax.records import PairLogps, Weighted

BLANK = PairLogps(0.0, 0.0, 0.0, 0.0, 1, 1, 0.0)
"""What a loss sees in an unused slot: finite values and gradients, which are then masked."""


@dataclass(frozen=True)
class LossSpec:
    """What a loss is and what it needs.

    Attributes:
        name: Its name in recipes.
        function: Pair losses: ``(PairLogps of scalars, *, beta, **knobs) → scalar``; SFT losses:
            ``(log-prob, tokens) → scalar``.
        kind: ``"pair"`` or ``"sft"``.
        needs_reference: Whether reference log-probs enter.
        length_normalised: Whether it reads log-probs per token instead of summed ones.
        default_beta: β when the recipe gives none; None if the loss has no β.
        knobs: Settings that it honours besides β; any other that is set is refused.
        formula: One line for the run's header and report.
        paper: Where it comes from.
    """

    name: str
    function: Callable[..., Any]
    kind: Literal["pair", "sft"]
    needs_reference: bool
    length_normalised: bool
    default_beta: float | None
    knobs: tuple[str, ...]
    formula: str
    paper: str


@dataclass(frozen=True)
class Objective:
    """A loss with its settings bound; hashable, so that it may be a static argument.

    Attributes:
        spec: The loss.
        beta: Strength of the tie to the reference; 0 for a loss without one.
        nll_weight: Weight of the chosen answer's negative log-likelihood per token.
        kl_weight: Weight of KL(policy ‖ reference) per token of the chosen answer.
        settings: The loss's own knobs.
    """

    spec: LossSpec
    beta: float = 0.0
    nll_weight: float = 0.0
    kl_weight: float = 0.0
    settings: tuple[tuple[str, float], ...] = field(default=())

    @property
    def kind(self) -> Literal["pair", "sft"]:
        """Which records it reads."""
        return self.spec.kind

    @property
    def needs_reference(self) -> bool:
        """Whether reference log-probs (or a KL to the reference) enter."""
        return self.spec.needs_reference or self.kl_weight > 0

    def per_example(self, pair: PairLogps) -> Float[Array, " p"]:
        """Compute the loss of every pair, unused slots not considered."""
        shape = jnp.shape(pair.policy_chosen)
        columns = jax.tree.map(lambda x: jnp.broadcast_to(jnp.asarray(x), shape), pair)
        return jax.vmap(self._one)(columns)

    def _one(self, pair: PairLogps) -> Array:
        """Compute the loss of one pair, with the optional terms."""
        loss = self.spec.function(pair, beta=self.beta, **dict(self.settings))
        if self.nll_weight:
            loss += self.nll_weight * -pair.policy_chosen / pair.chosen_tokens
        if self.kl_weight:
            loss += self.kl_weight * pair.kl_chosen
        return loss

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
        losses_p = jnp.where(valid_p, self.per_example(kept), 0.0)
        return Weighted(losses_p.sum(), valid_p.sum().astype(jnp.float32))

    def _sft(
        self, logp_p: Float[Array, " p"], tokens_p: Any, valid_p: Bool[Array, " p"]
    ) -> Weighted:
        logp_p, tokens_p = jnp.where(valid_p, logp_p, 0.0), jnp.where(valid_p, tokens_p, 1)
        losses_p = jnp.where(valid_p, jax.vmap(self.spec.function)(logp_p, tokens_p), 0.0)
        weight = jnp.where(valid_p, tokens_p, 0).sum().astype(jnp.float32)
        return Weighted(losses_p.sum(), weight)

    def describe(self) -> str:
        """Say in one line what is minimised, with every setting that matters."""
        read = "averaged over tokens" if self.spec.length_normalised else "summed over tokens"
        parts = [f"{self.spec.name}: {self.spec.formula}; log-probs {read}"]
        if self.spec.default_beta is not None:
            parts.append(f"β={self.beta:g}")
        parts += [f"{name}={value:g}" for name, value in self.settings]
        if self.nll_weight:
            parts.append(f"+ {self.nll_weight:g} · NLL of chosen per token")
        if self.kl_weight:
            parts.append(f"+ {self.kl_weight:g} · KL(policy ‖ reference) per token of chosen")
        return ", ".join(parts)
