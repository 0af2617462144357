# SPDX-License-Identifier: Apache-2.0
"""Written folders → read back from the disk and compared with the trained model.

Three comparisons, so that no fault hides behind rounding:

* writing: the files hold the trained weights, folded and rounded to the exported dtype, bit by bit;
* folding: the folded weights act as the adapter beside its base does, before any rounding;
* effect: the files as they are against the trained model: logits and greedy answers. That is
  reported; of a narrow dtype it shows what rounding does.

A failed export is renamed to ``NAME.failed``, so that nothing picks it up by mistake.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from alignax.errors import AlignaxError, RunError
from alignax.export.folder import amend_manifest, damaged_files, read_manifest, set_aside
from alignax.export.huggingface import cast, folded
from alignax.export.peft import read_adapter
from alignax.export.probe import Comparison, Probe
from alignax.models.decoder import Decoder
from alignax.models.lora import adapted, adapter_to_peft, add_lora, merged, peft_to_adapter
from alignax.models.tokenizer import load_tokenizer
from alignax.models.weights import LoadedModel, export_tensors, load_model

FOLDING = {"float32": 2e-5, "bfloat16": 5e-2, "float16": 1e-2}
"""Largest difference of a logit that folding may make, relative to the largest logit, by the dtype
computed in."""


@dataclass(frozen=True)
class Checks:
    """What was compared, and how close it came.

    Attributes:
        prompts: Probe prompts.
        max_logit_difference: Largest difference of a logit from the trained model's, over all
            tokens of its greedy answers.
        greedy_tokens_equal: Share of those tokens that the export finds likeliest as well.
        greedy_equal: Prompts of which that is true of every token: the same greedy answer.
        stopped: Prompts whose greedy answer ended with a stop id within the limit.
        stop_ids: Ids that end an answer.
    """

    prompts: int
    max_logit_difference: float
    greedy_tokens_equal: float
    greedy_equal: int
    stopped: int
    stop_ids: tuple[int, ...]


def verify_adapter(
    folder: Path,
    model: Decoder,
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    *,
    stop_ids: Sequence[int],
) -> Checks:
    """Put the written adapter on the base and compare it with the trained model.

    Args:
        folder: What ``write_adapter`` wrote.
        model: The trained decoder.
        loaded: The base that it was trained on.
        prompts: Token ids of the probe prompts, at least one.
        stop_ids: Ids that end an answer.

    Raises:
        RunError: The adapter is not what was trained; all problems at once.
    """
    folder = Path(folder)
    problems = damaged_files(folder)
    try:
        tensors, spec, base_hash = read_adapter(folder)
        copy = bare(loaded.model)
        add_lora(copy, spec, key=jax.random.key(0))
        peft_to_adapter(copy, tensors)
        tokenizer = load_tokenizer(folder)
    except AlignaxError as error:
        raise failure(folder, [*problems, str(error)]) from error
    if base_hash != loaded.weights_hash:
        problems.append(f"it names base {base_hash}, trained was on {loaded.weights_hash}")
    problems += unequal(adapter_to_peft(model), tensors)
    problems += eos_problems(tokenizer.eos_token_id, stop_ids)
    trained = Probe(model, prompts, stop_ids)
    found = trained.compare(copy)
    # Equal matrices could still be scaled otherwise; then logits tell.
    problems += folding_problems(found, copy, "the adapter as it was written")
    return conclude(folder, trained, found, stop_ids, problems)


def verify_merged(
    folder: Path, model: Decoder, prompts: Sequence[Sequence[int]], *, stop_ids: Sequence[int]
) -> Checks:
    """Load the written model and compare it with the trained one.

    Args:
        folder: What ``write_merged`` wrote.
        model: The trained decoder, with its adapter if it has one.
        prompts: Token ids of the probe prompts, at least one.
        stop_ids: Ids that end an answer.

    Raises:
        RunError: The folder does not hold what was trained; all problems at once.
    """
    folder = Path(folder)
    computed = jnp.dtype(model.dtype).name
    problems = damaged_files(folder)
    try:
        dtype = read_manifest(folder).get("dtype", computed)
        # In the wider of both dtypes every stored value keeps its bits.
        wide = jnp.promote_types(dtype, computed).name
        reloaded = load_model(folder, dtype=wide)
        tokenizer = load_tokenizer(folder)
    except AlignaxError as error:
        raise failure(folder, [*problems, str(error)]) from error
    if reloaded.config != model.config:
        problems.append(f"it is of shape {reloaded.config}, trained was {model.config}")
        raise failure(folder, problems)
    missing = [stop for stop in stop_ids if stop not in reloaded.stop_ids]
    if missing:
        problems.append(f"stop ids {missing} are missing, it has {list(reloaded.stop_ids)}")
    problems += eos_problems(tokenizer.eos_token_id, stop_ids)
    want = export_tensors(cast(folded(model, dtype), wide))
    problems += unequal(want, export_tensors(reloaded.model))
    trained = Probe(model, prompts, stop_ids)
    found = trained.compare(cast(reloaded.model, computed))
    if adapted(model):
        before = merged(model)
        problems += folding_problems(trained.compare(before), before, "the adapter, folded in,")
    checks = conclude(folder, trained, found, stop_ids, problems)
    amend_manifest(folder, weights_hash=reloaded.weights_hash)
    return checks


def bare(model: Decoder) -> Decoder:
    """Copy a decoder without its adapter; the weights are shared."""
    copy = nnx.merge(*nnx.split(model))
    for linear in adapted(copy).values():
        linear.lora_a = nnx.data(None)
        linear.lora_b = nnx.data(None)
    return copy


def unequal(want: Mapping[str, np.ndarray], got: Mapping[str, np.ndarray]) -> list[str]:
    """List the tensors that are not bit by bit what they should be."""
    wrong = [name for name in want if not np.array_equal(want[name], got[name])]
    if not wrong:
        return []
    worst = max(
        float(np.abs(want[n].astype(np.float32) - got[n].astype(np.float32)).max()) for n in wrong
    )
    more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    return [
        f"{len(wrong)} of {len(want)} tensors differ from the trained ones, by up to {worst:.3g}: "
        f"{', '.join(wrong[:3])}{more}"
    ]


def eos_problems(eos: Any, stop_ids: Sequence[int]) -> list[str]:
    """Check that the written tokenizer's EOS ends an answer."""
    if not stop_ids or eos is None or eos in stop_ids:
        return []
    return [f"the tokenizer's EOS is {eos}, which is none of the stop ids {list(stop_ids)}"]


def folding_problems(found: Comparison, other: Decoder, what: str) -> list[str]:
    """Judge whether a model acts as the trained one up to rounding.

    Within the tolerance greedy answers differ only where two tokens are equally likely.
    """
    allowed = FOLDING[jnp.dtype(other.dtype).name] * max(1.0, found.scale)
    if found.difference <= allowed:
        return []
    return [
        f"{what} changes logits by {found.difference:.3g} (allowed: {allowed:.3g}) and "
        f"{1 - found.tokens_equal:.1%} of the greedy tokens"
    ]


def conclude(
    folder: Path, trained: Probe, found: Comparison, stop_ids: Sequence[int], problems: list[str]
) -> Checks:
    """Note the checks in the manifest, or set the failed export aside.

    Raises:
        RunError: There are problems.
    """
    if problems:
        raise failure(folder, problems)
    checks = Checks(
        prompts=len(trained.prompts),
        max_logit_difference=found.difference,
        greedy_tokens_equal=found.tokens_equal,
        greedy_equal=found.answers_equal,
        stopped=trained.stopped,
        stop_ids=tuple(stop_ids),
    )
    amend_manifest(folder, checks=asdict(checks))
    return checks


def failure(folder: Path, problems: Sequence[str]) -> RunError:
    """Set a failed export aside and describe what is wrong with it."""
    failed = set_aside(folder)
    return RunError(
        f"the export {folder} does not behave as the trained model does",
        problems=problems,
        hint=f"it was set aside as {failed}; the run's checkpoints are untouched",
    )
