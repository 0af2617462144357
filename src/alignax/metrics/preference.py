# SPDX-License-Identifier: Apache-2.0
"""Log-probs of pairs → the curves that tell whether preferences are learnt.

| name                                   | meaning                                     | weight   |
|----------------------------------------|---------------------------------------------|----------|
| reward_chosen, reward_rejected         | as the loss has it: β · (policy - reference)| pairs    |
| margin                                 | reward_chosen - reward_rejected             | pairs    |
| accuracy                               | margin > 0                                  | pairs    |
| ties                                   | margin = 0 exactly (all pairs at step 0)    | pairs    |
| chosen_logratio, rejected_logratio     | (policy - reference) log-prob, per token    | tokens   |
| chosen_logp, rejected_logp             | policy log-prob, per token                  | tokens   |

A tie counts as wrong in the accuracy and is shown apart, so that nobody reads a half as a result.
The log-ratios are left out where a loss without a reference trains, the log-probs too where a
reward model does.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool

from alignax.records import PairLogps, Weighted


def preference_metrics(
    pair: PairLogps,
    valid_p: Bool[Array, " p"],
    *,
    rewards: tuple[Array, Array],
    has_reference: bool = True,
    has_logps: bool = True,
) -> dict[str, Weighted]:
    """Measure the valid pairs of a batch; see the module's table.

    Args:
        pair: [p] arrays.
        valid_p: Which slots hold a pair.
        rewards: [p] rewards of the chosen and of the rejected answers.
        has_reference: Whether the reference's log-probs are known.
        has_logps: Whether ``pair`` holds log-probs; False for rewards.
    """

    def over_pairs(values_p: Array) -> Weighted:
        total = jnp.where(valid_p, values_p, 0).sum().astype(jnp.float32)
        return Weighted(total, valid_p.sum().astype(jnp.float32))

    def over_tokens(values_p: Array, tokens_p: Array) -> Weighted:
        total = jnp.where(valid_p, values_p, 0).sum().astype(jnp.float32)
        return Weighted(total, jnp.where(valid_p, tokens_p, 0).sum().astype(jnp.float32))

    chosen_p, rejected_p = rewards
    metrics = {
        "reward_chosen": over_pairs(chosen_p),
        "reward_rejected": over_pairs(rejected_p),
        "margin": over_pairs(chosen_p - rejected_p),
        "accuracy": over_pairs(chosen_p > rejected_p),
        "ties": over_pairs(chosen_p == rejected_p),
    }
    if has_logps:
        metrics["chosen_logp"] = over_tokens(pair.policy_chosen, pair.chosen_tokens)
        metrics["rejected_logp"] = over_tokens(pair.policy_rejected, pair.rejected_tokens)
    if has_reference:
        chosen_p = pair.policy_chosen - pair.reference_chosen
        rejected_p = pair.policy_rejected - pair.reference_rejected
        metrics["chosen_logratio"] = over_tokens(chosen_p, pair.chosen_tokens)
        metrics["rejected_logratio"] = over_tokens(rejected_p, pair.rejected_tokens)
    return metrics
