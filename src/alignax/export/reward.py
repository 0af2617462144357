# SPDX-License-Identifier: Apache-2.0
"""What an exported reward model needs beside its weights, and how it is checked.

Readers of Hugging Face folders take the score at the last token that is not padding. A padding
token that may also end an answer would move it to the token before, so another one is named.
"""

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from transformers import PreTrainedTokenizerBase

from alignax.errors import AlignaxError, RunError
from alignax.export.folder import amend_manifest, damaged_files, read_manifest, set_aside
from alignax.models.decoder import Decoder
from alignax.models.families import FAMILIES
from alignax.models.lora import merged
from alignax.models.reward import text_rewards
from alignax.models.weights import load_model

ROUNDING = {"float32": 1e-4, "bfloat16": 5e-2, "float16": 1e-2}
"""Largest difference of a reward, relative to the largest one (at least 1), that folding the
adapter in and storing the weights in this dtype may make."""


@dataclass(frozen=True)
class RewardChecks:
    """What was compared, and how close it came.

    Attributes:
        prompts: Probe texts.
        max_reward_difference: Largest difference of a reward from the trained model's.
    """

    prompts: int
    max_reward_difference: float


def with_padding(
    tokenizer: PreTrainedTokenizerBase, stop_ids: Sequence[int]
) -> PreTrainedTokenizerBase:
    """Copy a tokenizer, with a padding token that ends no answer.

    Raises:
        RunError: All of its special tokens end answers.
    """
    named: tuple[Any, ...] = (
        tokenizer.pad_token_id,
        tokenizer.unk_token_id,
        tokenizer.bos_token_id,
    )
    known = (*named, *tokenizer.all_special_ids)
    fitting = [i for i in known if i is not None and i not in stop_ids]
    if not fitting:
        raise RunError(
            f"no special token is left for padding: all of {tokenizer.all_special_tokens} may end "
            "an answer, and a reward is read at the last token that is not padding",
            hint="give the tokenizer a padding token of its own",
        )
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(int(fitting[0]))
    return tokenizer


def scoring_json(family: str, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """What ``config.json`` says of a reward model: one label, and where padding begins."""
    return {
        "architectures": [FAMILIES[family].scoring_architecture],
        "id2label": {"0": "reward"},
        "label2id": {"reward": 0},
        "pad_token_id": tokenizer.pad_token_id,
    }


def verify_reward(folder: Path, model: Decoder, texts: Sequence[Sequence[int]]) -> RewardChecks:
    """Load the written reward model and compare its rewards with the trained one's.

    Args:
        folder: What ``write_merged`` wrote.
        model: The trained decoder, with its adapter if it has one.
        texts: Token ids of the probe texts, at least one.

    Raises:
        RunError: The folder does not hold what was trained; all problems at once.
    """
    problems = damaged_files(folder)
    computed = jnp.dtype(model.dtype).name
    dtype = read_manifest(folder).get("dtype", computed)
    try:
        reloaded = load_model(folder, dtype=jnp.promote_types(dtype, computed).name)
    except AlignaxError as error:
        raise _failure(folder, [*problems, str(error)]) from error
    if reloaded.config != model.config:
        problems.append(f"it is of shape {reloaded.config}, trained was {model.config}")
        raise _failure(folder, problems)
    want, got = text_rewards(merged(model), texts), text_rewards(reloaded.model, texts)
    difference = float(np.abs(want - got).max())
    allowed = ROUNDING[dtype] * max(1.0, float(np.abs(want).max()))
    if not difference <= allowed:
        problems.append(f"rewards differ by up to {difference:.3g} (allowed: {allowed:.3g})")
    if problems:
        raise _failure(folder, problems)
    checks = RewardChecks(len(texts), difference)
    amend_manifest(folder, checks=asdict(checks), weights_hash=reloaded.weights_hash)
    return checks


def _failure(folder: Path, problems: Sequence[str]) -> RunError:
    """Set a failed export aside and describe what is wrong with it."""
    return RunError(
        f"the export {folder} does not score as the trained model does",
        problems=problems,
        hint=f"it was set aside as {set_aside(folder)}; the run's checkpoints are untouched",
    )
