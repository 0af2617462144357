# SPDX-License-Identifier: Apache-2.0
"""Optimizer settings → an Optax transformation and its learning-rate schedule."""

import optax

from alignax.recipe import OptimizerSection


def build_schedule(settings: OptimizerSection, total_steps: int) -> optax.Schedule:
    """Build the learning rate as a function of the number of updates done.

    Warm-up rises linearly from ``peak / warmup`` so that no update has rate zero (a first update
    of size zero would hide a policy that cannot move); the last warm-up step has the peak. The
    decay ends one step after the last update.
    """
    peak = settings.learning_rate
    warmup = min(round(settings.warmup_ratio * total_steps), total_steps - 1)
    rest = total_steps - warmup
    decay = {
        "cosine": lambda: optax.cosine_decay_schedule(peak, rest),
        "linear": lambda: optax.linear_schedule(peak, 0.0, rest),
        "constant": lambda: optax.constant_schedule(peak),
    }[settings.schedule]()
    if warmup < 1:
        return decay
    rise = optax.linear_schedule(peak / warmup, peak, max(warmup - 1, 1))
    return optax.join_schedules([rise, decay], [warmup])


def build_optimizer(
    settings: OptimizerSection, schedule: optax.Schedule
) -> optax.GradientTransformation:
    """AdamW (Loshchilov & Hutter 2019) behind a clip of the global gradient norm."""
    return optax.chain(
        optax.clip_by_global_norm(settings.clip_norm),
        optax.adamw(
            schedule,
            b1=settings.b1,
            b2=settings.b2,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
        ),
    )
