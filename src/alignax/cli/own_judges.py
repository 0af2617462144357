# SPDX-License-Identifier: Apache-2.0
"""Model folder → a judge that runs here: a reward model, or a language model asked for a label."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from alignax.cli.from_run import with_run_settings
from alignax.cli.loading import Policy, build_encoder, load_policy
from alignax.cli.scoring import lengths_of, score_examples
from alignax.data.encode import Encoder
from alignax.errors import DataError, ModelError, UsageError
from alignax.judge.base import Question
from alignax.judge.models import ASKED, LabelJudge, RewardJudge
from alignax.judge.wording import TEMPLATE, family_of
from alignax.recipe import ModelSection, Recipe
from alignax.records import Dropped, EncodedExample, PreferencePair


def reward_judge(path: str) -> RewardJudge:
    """Load a reward model: a run of `alignax reward`, or a folder with one label.

    Raises:
        ModelError: It is a language model.
    """
    recipe, policy, encoder = _load(path, "reward")
    if not policy.loaded.config.scores:
        raise ModelError(
            f"--judge reward:{path}: this is a language model, not a reward model",
            hint="train one with `alignax reward`, or ask the language model: --judge model:FOLDER",
        )

    def score(questions: Sequence[Question]) -> list[Any]:
        encoded = encoder.encode_many([_pair(question, encoder) for question in questions])
        return _scored(encoded, policy, recipe)

    return RewardJudge(score, name=path, identity=_identity(policy, encoder))


def label_judge(path: str) -> LabelJudge:
    """Load a language model that reads both answers and is asked for A, B or C.

    Raises:
        ModelError: It is a reward model.
        UsageError: It has no chat template.
    """
    recipe, policy, encoder = _load(path, "dpo")
    if policy.loaded.config.scores:
        raise ModelError(
            f"--judge model:{path}: this is a reward model", hint="name it as --judge reward:FOLDER"
        )
    if not encoder.has_template:
        raise UsageError(
            f"--judge model:{path}: a judge is asked in turns, and the model has no chat template",
            hint="name a chat model",
        )

    def score(asked: Sequence[tuple[str, str]], labels: Sequence[str]) -> list[Any]:
        answers = tuple(
            np.array(policy.tokenizer.encode(label, add_special_tokens=False), np.int32)
            for label in labels
        )
        longest = policy.loaded.config.max_positions
        encoded = [_question(encoder, system, user, answers, longest) for system, user in asked]
        return _scored(encoded, policy, recipe)

    return LabelJudge(
        score, name=path, family=family_of(str(policy.loaded.path)),
        identity=_identity(policy, encoder, ASKED, TEMPLATE),
    )  # fmt: skip


def _load(path: str, method: str) -> tuple[Recipe, Policy, Encoder]:
    """Load a judge's weights with the settings of its run, at the model's own length."""
    recipe = with_run_settings(Recipe(method=method, model=ModelSection(path=path)))  # type: ignore[arg-type]
    policy = load_policy(recipe.model, lora=None, mesh=recipe.mesh, seed=0, scores=None)
    data = recipe.data.model_copy(update={"max_length": policy.loaded.config.max_positions})
    return recipe, policy, build_encoder(policy, data)


def _identity(policy: Policy, encoder: Encoder, *more: str) -> str:
    """Hash everything that decides a verdict."""
    parts = [policy.loaded.weights_hash, str(policy.adapter_hash), *encoder.parts.values(), *more]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _pair(question: Question, encoder: Encoder) -> PreferencePair:
    """Make a row of a question: turns where the model has a template."""
    if not encoder.has_template:
        return PreferencePair("", question.prompt, question.first, question.second)
    asked = ({"role": "user", "content": question.prompt},)
    first, second = (
        ({"role": "assistant", "content": text},) for text in (question.first, question.second)
    )
    return PreferencePair("", asked, first, second)


def _question(
    encoder: Encoder, system: str, user: str, answers: tuple[np.ndarray, ...], longest: int
) -> EncodedExample | Dropped:
    """Encode a question to a language model with every label as an answer of its own."""
    turns = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    try:
        ids = encoder.prompt_ids(turns)
    except DataError:
        # Some templates know no system turn.
        ids = encoder.prompt_ids([{"role": "user", "content": f"{system}\n\n{user}"}])
    prompt = np.array(ids, np.int32)
    if len(prompt) + max(map(len, answers)) > longest:
        reason = f"{len(prompt)} tokens, the judge takes {longest}"
        return Dropped("", "too_long", reason)
    return EncodedExample("", prompt, answers, complete=(False,) * len(answers))


def _scored(
    encoded: Sequence[EncodedExample | Dropped], policy: Policy, recipe: Recipe
) -> list[Any]:
    """Score the answers of what could be encoded; the rest gets the reason why not."""
    kept = [item for item in encoded if isinstance(item, EncodedExample)]
    found = score_examples(policy, recipe, kept, lengths_of(kept))[0].tolist() if kept else []
    values = iter(found)
    return [
        next(values) if isinstance(item, EncodedExample) else f"{item.reason}: {item.detail}"
        for item in encoded
    ]
