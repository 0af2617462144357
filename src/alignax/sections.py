# SPDX-License-Identifier: Apache-2.0
"""The recipe's sections on the loss and its reference, and what every section is."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


class Section(BaseModel):
    """Base of all sections: frozen, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _as_number(value: Any) -> Any:
    """Turn text that is a number into one (YAML reads 1e-4 as text)."""
    if isinstance(value, bool):
        raise ValueError("must be a number")
    try:
        return float(value)
    except (TypeError, ValueError):
        return value


Number = Annotated[float | str | None, BeforeValidator(_as_number)]
"""A number, a schedule of one ("0.1 -> 0.02"), or the loss's own default."""


class LossSection(Section):
    """The objective; docs/losses.md says which loss honours which setting."""

    type: str = Field(
        default="auto",
        description="a loss, or a sum like 0.8*sigmoid + 0.2*bco_pair(beta=0.05); auto: sigmoid "
        "for dpo, nll for sft, bradley_terry for reward",
    )
    beta: Number = Field(
        default=None,
        description="strength of the tie to the reference: high stays close, low moves far",
    )
    label_smoothing: Number = Field(default=None, description="share of labels thought wrong")
    nll_weight: Number = Field(
        default=None, description="weight of the chosen answer's NLL per token"
    )
    kl_weight: Number = Field(
        default=None, description="weight of KL(policy ‖ reference) on chosen"
    )
    divergence: str | None = Field(
        default=None, description="tie to the reference: reverse_kl, forward_kl, js or alpha"
    )
    divergence_alpha: Number = Field(default=None, description="α of the α-divergence")
    reference_free: bool | None = Field(default=None, description="leave the reference out")
    length_normalised: bool | None = Field(
        default=None, description="ipo: means over tokens (true) or sums"
    )
    target_margin: Number = Field(
        default=None, description="simpo, alphapo: margin γ that chosen must win by"
    )
    reward_shape: Number = Field(default=None, description="alphapo: α; 0 is the logarithm")
    length_penalty: Number = Field(
        default=None, description="rdpo: reward a token of length difference"
    )
    tail_weight: Number = Field(
        default=None, description="ld_dpo: weight of tokens beyond the shorter answer's length"
    )
    drop_penalty: Number = Field(
        default=None, description="dpop: weight of a fall of the chosen answer"
    )
    kl_balance: Number = Field(default=None, description="tdpo2: weight of the KL difference")
    batch_beta: Number = Field(default=None, description="beta_dpo: how far β follows the batch")
    keep_share: Number = Field(default=None, description="beta_dpo: share of pairs that train")
    desirable_weight: Number = Field(default=None, description="kto: weight of chosen answers")
    undesirable_weight: Number = Field(default=None, description="kto: weight of rejected answers")
    reward_shift: bool | None = Field(default=None, description="bco: centre the rewards")
    blend_temperature: Number = Field(default=None, description="discopop: width τ of the blend")
    align_samples: bool | None = Field(
        default=None, description="wpo: weigh against the policy's typical samples"
    )
    score_scale: Number = Field(
        default=None,
        description="margin, distill, bradley_terry_margin: reward units a point of score",
    )
    centre_weight: Number = Field(
        default=None, description="reward models: draw the sum of both rewards to 0"
    )


class ReferenceSection(Section):
    """What the policy is compared with."""

    source: Literal["auto", "adapters_off", "frozen_copy", "cache"] = Field(
        default="auto", description="auto: cache"
    )
    start: Literal["policy", "base"] = Field(
        default="policy",
        description="policy: where training starts (base + adapter); base: adapter left out",
    )
    update: Literal["none", "soft", "hard"] = Field(
        default="none",
        description="draw the reference towards the policy during the run (soft), or put the "
        "policy in its place (hard); no cache then",
    )
    update_steps: int | None = Field(
        default=None, ge=1, description="steps between two updates of the reference (512)"
    )
    update_share: float | None = Field(
        default=None, gt=0, le=1, description="soft: the policy's share in an update (0.6)"
    )


Action = Literal["none", "warn", "rollback", "stop"]
"""What follows from a guard's finding."""


class KLGuard(Section):
    """KL(policy ‖ reference) a token on held-out answers."""

    action: Action = Field(default="rollback", description="none, warn, rollback or stop")
    bottom: float = Field(default=0.01, ge=0, description="below: 'hardly moved' at the end")
    top: float = Field(default=0.1, gt=0, description="above: the action is taken")
    rise: float = Field(
        default=10.0, gt=1, description="factor between two evaluations that is too much"
    )


class KLBudgetGuard(Section):
    """KL(policy ‖ reference) of a whole held-out answer, on average: what a run may spend."""

    action: Action = Field(default="stop", description="none, warn, rollback or stop")
    nats: float | None = Field(default=None, gt=0, description="the budget; none: no limit")


class LossGuard(Section):
    """A training loss that runs away."""

    action: Action = Field(default="rollback", description="none, warn, rollback or stop")
    factor: float = Field(default=2.0, gt=1, description="multiple of the loss before training")
    window: int = Field(default=8, ge=1, description="steps whose median counts")


class GradientGuard(Section):
    """Gradient norms that jump or vanish."""

    action: Action = Field(default="warn", description="none, warn, rollback or stop")
    deviations: float = Field(default=10.0, gt=0, description="robust deviations above the median")
    window: int = Field(default=16, ge=4, description="steps before it that it is compared with")
    clip_share: float | None = Field(
        default=None, ge=0, lt=1, description="share of a window's steps that may be clipped"
    )


class DisplacementGuard(Section):
    """Chosen answers that become unlikely while the margin grows."""

    action: Action = Field(default="warn", description="none, warn, rollback or stop")
    floor: float = Field(default=-0.5, lt=0, description="lowest chosen log-ratio a token, nats")


class OverfitGuard(Section):
    """Held-out loss that rises while training goes on."""

    action: Action = Field(default="warn", description="none, warn, rollback or stop")
    share: float = Field(default=0.05, ge=0, description="share of the best loss it may be above")
    patience: int = Field(default=3, ge=1, description="evaluations in a row")


class ThroughputGuard(Section):
    """Steps that take longer than they did."""

    action: Literal["none", "warn", "stop"] = Field(
        default="warn", description="none, warn or stop"
    )
    factor: float = Field(default=2.0, gt=1, description="multiple of the median time before")
    window: int = Field(default=16, ge=4, description="steps whose median counts")


class MemoryGuard(Section):
    """Host memory that grows from step to step."""

    action: Literal["none", "warn", "stop"] = Field(
        default="warn", description="none, warn or stop"
    )
    share: float = Field(default=0.2, gt=0, description="growth over the window, of its start")
    window: int = Field(default=64, ge=8, le=256, description="steps that are looked at")


class FiniteGuard(Section):
    """A loss or gradient that is not a number; that update is never applied."""

    action: Literal["rollback", "stop"] = Field(default="rollback", description="rollback or stop")
    skips: int = Field(
        default=3, ge=0, description="steps that are left out before the action is taken"
    )


class GuardsSection(Section):
    """What watches a run, and what follows from what it sees."""

    finite: FiniteGuard = FiniteGuard()
    kl: KLGuard = KLGuard()
    kl_budget: KLBudgetGuard = KLBudgetGuard()
    loss: LossGuard = LossGuard()
    gradient: GradientGuard = GradientGuard()
    displacement: DisplacementGuard = DisplacementGuard()
    overfit: OverfitGuard = OverfitGuard()
    throughput: ThroughputGuard = ThroughputGuard()
    memory: MemoryGuard = MemoryGuard()
    max_rollbacks: int = Field(
        default=2, ge=0, description="rollbacks after which a run ends with exit code 3"
    )
    rate_factor: float = Field(
        default=0.1, gt=0, le=1, description="learning rate after a rollback, times this"
    )
    beta_factor: float = Field(
        default=1.0, gt=0, description="loss.beta after a rollback, times this"
    )
    skip_batches: bool = Field(
        default=False,
        description="leave the batches that led to a rollback out when their steps come again",
    )
