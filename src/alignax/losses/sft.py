# SPDX-License-Identifier: Apache-2.0
"""Log-prob of one answer → negative log-likelihood (supervised fine-tuning)."""

from jaxtyping import Array, Float, Int

from alignax.losses.spec import LossSpec


def nll(logp: Float[Array, ""], tokens: Int[Array, ""]) -> Float[Array, ""]:
    """Compute the summed negative log-likelihood; its weight in the mean is ``tokens``."""
    del tokens
    return -logp


NLL = LossSpec(
    name="nll",
    function=nll,
    kind="sft",
    needs_reference=False,
    length_normalised=False,
    default_beta=None,
    knobs={},
    formula="-Σ log π(answer) / Σ tokens",
    paper="maximum likelihood",
    paired=False,
)
