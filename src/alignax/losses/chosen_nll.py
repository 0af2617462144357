# SPDX-License-Identifier: Apache-2.0
"""Log-probs of one pair → negative log-likelihood of the chosen answer."""

from jaxtyping import Array, Float

from alignax.losses.knobs import TERMS
from alignax.losses.spec import LossSpec
from alignax.records import PairLogps


def chosen_nll(pair: PairLogps) -> Float[Array, ""]:
    """Compute -log π(y_w) / |y_w|, the mean over pairs of which is minimised.

    The rejected answer plays no part. As a term of a sum (``sigmoid + 0.5*chosen_nll``) it is
    what ``nll_weight`` adds; alone it is SFT that weighs answers, not tokens.
    """
    return -pair.policy_chosen / pair.chosen_tokens


CHOSEN_NLL = LossSpec(
    name="chosen_nll",
    function=chosen_nll,
    kind="pair",
    needs_reference=False,
    length_normalised=True,
    default_beta=None,
    knobs={"kl_weight": TERMS["kl_weight"]},
    formula="-log π(chosen) / |chosen|",
    paper="maximum likelihood",
    paired=False,
)
