# SPDX-License-Identifier: Apache-2.0
"""A run → measures of its model and of the one that it started from."""

import argparse
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from alignax.cli import terminal
from alignax.cli.documents import read_rows
from alignax.cli.from_run import with_run_settings
from alignax.cli.loading import Policy, build_encoder, load_policy, load_train_and_eval
from alignax.cli.outputs import as_text
from alignax.cli.prompts import Prompt, read_prompts
from alignax.cli.run_folder import RunFolder
from alignax.cli.scoring import lengths_of, score_examples
from alignax.cli.setup import ROWS
from alignax.data.encode import Encoder
from alignax.errors import DataError
from alignax.evaluate.gate import Measure, last_number
from alignax.evaluate.win_rate import summarize
from alignax.files import read_json
from alignax.generate.sampler import Sampler
from alignax.judge.base import Judge
from alignax.judge.orders import judge_both_orders
from alignax.judge.replies import REFUSAL
from alignax.metrics.intervals import paired, wilson
from alignax.metrics.text import distinct
from alignax.recipe import ModelSection, Recipe
from alignax.records import Comparison, EncodedExample


class Side(NamedTuple):
    """One of both models.

    Attributes:
        policy: Weights.
        adapter: Whether its adapter takes part.
    """

    policy: Policy
    adapter: bool


def measure_run(
    folder: RunFolder, arguments: argparse.Namespace, judge: Judge | None
) -> tuple[dict[str, Measure], dict[str, Any]]:
    """Take all measures that were asked for.

    Returns:
        Measures by name, and what identifies them: prompts, judge, limits.
    """
    run = folder.recipe()
    measures = from_summary(read_json(folder.summary_file))
    recipe = with_run_settings(Recipe(method=run.method, model=ModelSection(path=str(folder.path))))
    tuned = load_policy(recipe.model, lora=None, mesh=recipe.mesh, seed=0)
    encoder = build_encoder(tuned, recipe.data)
    after = Side(tuned, True)
    before = before_training(run, recipe, tuned)
    prompts = prompts_of(run, encoder, arguments)
    ids = [ids for ids, _ in prompts]
    answers = [answer(side, encoder, ids, arguments) for side in (before, after)]
    measures |= about_answers(*answers)
    about: dict[str, Any] = {
        "prompts": len(prompts),
        "prompts_fingerprint": _hash([text for _, text in prompts]),
        "max_new_tokens": arguments.max_new_tokens,
    }
    if judge is not None:
        items = [
            Comparison(str(n), text, new.text, old.text)
            for n, ((_, text), old, new) in enumerate(zip(prompts, *answers, strict=True))
        ]
        with terminal.progress("judgements", len(items) * (1 if judge.symmetric else 2)) as advance:
            rate = summarize(items, judge_both_orders(judge, items, done=advance))
        low, high = rate.rate.low, rate.rate.high
        words = f"{judge.name}, {rate.rate.n} of {len(items)} items judged"
        measures["win_rate"] = Measure(rate.rate.value, 0.5, low, high, words)
        about |= {
            "judge": judge.name,
            "judge_fingerprint": judge.fingerprint,
            "warnings": list(rate.warnings),
        }
    if arguments.texts:
        measures |= about_texts(before, after, recipe, arguments)
    if arguments.gsm8k:
        measures |= about_sums(before, after, encoder, arguments)
    return measures, about


def from_summary(summary: Mapping[str, Any]) -> dict[str, Measure]:
    """Take the held-out figures of a run."""
    before, after = summary.get("before") or {}, summary.get("after") or {}
    found = {
        name: Measure(
            after[name], before.get(name), after.get(f"{name}_low"), after.get(f"{name}_high"),
            "held-out rows",
        )
        for name in ("accuracy", "perplexity", "kl/token")
        if name in after
    }  # fmt: skip
    if "loss" in after and before.get("loss"):
        start = before["loss"]
        low, high = after["loss_low"] / start, after["loss_high"] / start
        words = "held-out loss over that before training"
        found["loss_ratio"] = Measure(after["loss"] / start, 1.0, low, high, words)
    return found


def before_training(run: Recipe, recipe: Recipe, tuned: Policy) -> Side:
    """Find the model that a run started from: without the adapter, or loaded by itself."""
    if recipe.model.adapter is not None and run.model.adapter is None:
        return Side(tuned, False)
    return Side(load_policy(run.model, lora=None, mesh=recipe.mesh, seed=0), True)


def prompts_of(
    run: Recipe, encoder: Encoder, arguments: argparse.Namespace
) -> list[tuple[list[int], str]]:
    """Take the prompts of a file, or distinct held-out ones of the run, as ids and as text.

    Raises:
        DataError: There are none.
    """
    if arguments.prompts:
        read = read_prompts(arguments.prompts)[: arguments.items]
        return [(_ids(encoder, prompt), as_text(prompt.said)) for prompt in read]
    train, held_out, _ = load_train_and_eval(run.data, encoder, kind=ROWS[run.method])
    rows = held_out if held_out is not None else train
    return [(ids, encoder.decode(ids)) for ids in rows.distinct_prompts(arguments.items)]


def _ids(encoder: Encoder, prompt: Prompt) -> list[int]:
    """Encode a prompt: in turns, where the model has a template."""
    return encoder.prompt_ids(prompt.turns if encoder.has_template else prompt.said, prompt.tools)


def answer(
    side: Side, encoder: Encoder, ids: Sequence[Sequence[int]], arguments: argparse.Namespace
) -> list[Any]:
    """Answer prompts greedily."""
    sampler = Sampler(
        side.policy.model, stop_ids=encoder.stop_ids, decode=encoder.decode,
        batch_size=arguments.batch_size,
    )  # fmt: skip
    with terminal.progress("answers", len(ids)) as advance:
        return sampler.generate(
            ids, max_new_tokens=arguments.max_new_tokens, adapter=side.adapter, progress=advance
        )


def about_answers(before: Sequence[Any], after: Sequence[Any]) -> dict[str, Measure]:
    """Compare refusals, stops, lengths and repetition of answers to the same prompts."""

    def change(about: str, of: Any) -> Measure:
        old, new = [float(of(a)) for a in before], [float(of(a)) for a in after]
        spread = paired(old, new)
        return Measure(spread.value, 0.0, spread.low, spread.high, f"{about}: {_pair(old, new)}")

    old, new = (float(np.mean([len(a.ids) for a in side])) for side in (before, after))
    return {
        "refusal_change": change("share of refusals", lambda a: bool(REFUSAL.match(a.text))),
        "stop_change": change("share that ends", lambda a: a.finish_reason == "stop"),
        "repetition_change": change("repeated words", lambda a: _repeated(a.text)),
        "length_ratio": Measure(new / old, 1.0, about=f"tokens an answer: {old:.0f} → {new:.0f}"),
    }


def _repeated(text: str) -> float:
    """Share of a text's four-word stretches that it said before."""
    grams = distinct([text], size=4)
    return 1 - grams.mean if grams.weight else 0.0


def _pair(old: Sequence[float], new: Sequence[float]) -> str:
    return f"{np.mean(old):.3f} → {np.mean(new):.3f}"


def about_texts(
    before: Side, after: Side, recipe: Recipe, arguments: argparse.Namespace
) -> dict[str, Measure]:
    """Compare the perplexity of plain texts; each is read up to ``data.max_length`` tokens.

    Raises:
        DataError: No text has two tokens.
    """
    texts = [as_text(prompt.said) for prompt in read_prompts(arguments.texts)[: arguments.items]]
    tokenizer = after.policy.tokenizer
    cut = recipe.data.max_length
    encoded = [np.array(tokenizer.encode(text)[:cut], np.int32) for text in texts]
    examples = [
        EncodedExample("", ids[:1], (ids[1:],), complete=(False,))
        for ids in encoded
        if len(ids) > 1
    ]
    if not examples:
        raise DataError(f"no text of {arguments.texts} has two tokens")
    found = [
        score_examples(
            side.policy, recipe, examples, lengths_of(examples), title="texts", adapter=side.adapter
        )
        for side in (before, after)
    ]
    (old, tokens), (new, _) = found
    count = tokens.sum()
    gap = (old - new)[:, 0]
    # The texts are the independent units: a ratio's interval by linearisation.
    spread = paired(np.zeros(len(gap)), (gap - gap.sum() / count * tokens[:, 0]) / tokens.mean())
    mean = gap.sum() / count
    levels = [math.exp(-values.sum() / count) for values in (old, new)]
    words = f"{len(examples)} texts: {levels[0]:.2f} → {levels[1]:.2f}"
    return {
        "text_perplexity_ratio": Measure(
            math.exp(mean), 1.0, math.exp(mean + spread.low), math.exp(mean + spread.high), words
        )
    }


def about_sums(
    before: Side, after: Side, encoder: Encoder, arguments: argparse.Namespace
) -> dict[str, Measure]:
    """Compare the share of GSM8K problems whose answer ends in the right number.

    Raises:
        DataError: A row lacks its question or a number after ``####``.
    """
    problems = []
    for place, row in read_rows(arguments.gsm8k, flag="--gsm8k"):
        question = row.get("question") if isinstance(row, Mapping) else None
        right = last_number(str(row.get("answer"))) if isinstance(row, Mapping) else None
        if not isinstance(question, str) or right is None:
            raise DataError(f"{place}: no question with an answer that ends in a number")
        problems.append((question, right))
        if len(problems) == arguments.items:
            break
    ids = [_ids(encoder, Prompt(question)) for question, _ in problems]
    marks = [
        [
            float(last_number(answer.text) == right)
            for answer, (_, right) in zip(
                answer(side, encoder, ids, arguments), problems, strict=True
            )
        ]
        for side in (before, after)
    ]
    old, new = marks
    spread = paired(old, new)
    solved = wilson(int(sum(new)), len(new))
    words = f"GSM8K: {_pair(old, new)} of {len(new)}, after [{solved.low:.3f}, {solved.high:.3f}]"
    return {"gsm8k_change": Measure(spread.value, 0.0, spread.low, spread.high, words)}


def _hash(texts: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]
