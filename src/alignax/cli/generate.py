# SPDX-License-Identifier: Apache-2.0
r"""Answer prompts; JSON lines go to stdout or to a file.

  alignax generate --model runs/first --prompt "How do I boil an egg?"
  alignax generate --model FOLDER --adapter runs/first --prompts prompts.jsonl --output out.jsonl
  alignax generate --model runs/first --prompts alpaca_eval.json --form alpaca-eval \
      --output model_outputs.json

A prompts file holds rows (JSON, CSV, Parquet) with `prompt` (text or chat turns) or `messages`, or
plain text lines. The prompt ends exactly where training's boundary lies. `--form alpaca-eval`
writes a JSON list as AlpacaEval reads it (instruction, output, generator).
"""

import argparse
from pathlib import Path
from typing import Any

from alignax.cli.options import Parser, add_settings, require, settings_of
from alignax.errors import RunError, UsageError
from alignax.files import write_json, write_lines
from alignax.generate.choice import Choice

PROMPT_SETTINGS = (
    "data.chat_template", "data.stop_token", "data.add_bos", "data.system", "data.render",
)  # fmt: skip


def add_arguments(parser: Parser) -> None:
    """Add the flags of this verb."""
    parser.add_argument("--prompt", action="append", default=[], metavar="TEXT", help="a prompt")
    parser.add_argument("--prompts", metavar="FILE", help="file of prompts (JSON lines or text)")
    parser.add_argument("--samples", type=int, default=1, metavar="N", help="answers a prompt")
    add_sampling(parser)
    parser.add_argument("--batch-size", type=int, default=8, metavar="N", help="prompts at once")
    parser.add_argument("--json", action="store_true", help="print JSON lines (as to a file)")
    parser.add_argument("--form", choices=("lines", "alpaca-eval"), default="lines",
                        help="form of the output file")  # fmt: skip
    parser.add_argument("--generator", metavar="NAME", help="alpaca-eval: name of the model")
    parser.add_argument("--force", action="store_true", help="replace an existing output file")
    add_settings(parser, "output", "model.", *PROMPT_SETTINGS)


def add_sampling(parser: Parser) -> None:
    """Add the flags that choose tokens."""
    parser.add_argument("--max-new-tokens", type=int, default=256, metavar="N", help="limit")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="X", help="0: greedy")
    parser.add_argument("--top-k", type=int, metavar="N", help="sample from the N likeliest")
    parser.add_argument("--top-p", type=float, metavar="X", help="sample from the likeliest share")
    parser.add_argument(
        "--min-p",
        type=float,
        metavar="X",
        help="leave out tokens below this share of the likeliest one's probability",
    )
    parser.add_argument(
        "--repetition-penalty",
        type=float,
        default=1.0,
        metavar="X",
        help="above 1: tokens of prompt and answer become less likely",
    )
    parser.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="a text that ends an answer"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the sampling")


def choice_of(arguments: argparse.Namespace) -> Choice:
    """Read the flags that choose tokens; all that are out of range or without effect at once."""
    choice = Choice(
        arguments.temperature, arguments.top_k, arguments.top_p, arguments.min_p,
        arguments.repetition_penalty,
    )  # fmt: skip
    problems = choice.problems()
    if "" in arguments.stop:
        problems.append("stop must not be empty")
    for flag in ("max_new_tokens", "samples", "batch_size"):
        if getattr(arguments, flag, 1) < 1:
            problems.append(f"{flag} must be at least 1, got {getattr(arguments, flag)}")
    if problems:
        raise UsageError(
            "sampling settings are not valid",
            problems=[f"--{_as_flag(problem)}" for problem in problems],
        )
    return choice


def _as_flag(problem: str) -> str:
    """Spell the names of settings as flags."""
    return " ".join(word.replace("_", "-") for word in problem.split(" "))


def main(arguments: argparse.Namespace) -> int:
    """Answer prompts."""
    recipe = settings_of(arguments, method="dpo")
    require(recipe, "model.path")
    choice = choice_of(arguments)
    if not arguments.prompt and not arguments.prompts:
        raise UsageError("no prompts", hint='give --prompt "…" or --prompts FILE')
    target = target_of(arguments, recipe.output)
    from alignax.cli import terminal
    from alignax.cli.answering import open_sampler
    from alignax.cli.from_run import with_run_settings
    from alignax.cli.prompts import Prompt, read_prompts

    prompts = [Prompt(text) for text in arguments.prompt]
    prompts += read_prompts(arguments.prompts) if arguments.prompts else []
    named = Path(recipe.model.adapter or recipe.model.path).name
    recipe = with_run_settings(recipe)
    sampler, encoder = open_sampler(recipe, batch_size=arguments.batch_size)
    plain = recipe.data.render == "text"
    encoded = [
        encoder.prompt_ids(p.said if plain and isinstance(p.said, str) else p.turns, p.tools)
        for p in prompts
    ]
    ids = [prompt for prompt in encoded for _ in range(arguments.samples)]
    short = sum(0 < sampler.room(i) < arguments.max_new_tokens for i in ids)
    if short:
        terminal.warn(
            f"{short} of {len(ids)} prompts leave room for fewer than {arguments.max_new_tokens} "
            "tokens before the model's positions end: their answers may be cut sooner"
        )
    with terminal.progress("answers", len(ids)) as advance:
        answers = sampler.generate(
            ids, max_new_tokens=arguments.max_new_tokens, choice=choice, seed=arguments.seed,
            stops=arguments.stop, progress=advance,
        )  # fmt: skip
    asked = [p.said for p in prompts for _ in range(arguments.samples)]
    records = [
        {
            "prompt": prompt, "text": a.text, "finish_reason": a.finish_reason,
            "tokens": len(a.ids), "logp": sum(a.logps),
        }
        for prompt, a in zip(asked, answers, strict=True)
    ]  # fmt: skip
    if target is not None:
        if arguments.form == "alpaca-eval":
            write_json(target, as_official(records, arguments.generator or named))
        else:
            write_lines(target, records)
        terminal.say(f"{len(records)} answers: {target}")
    elif arguments.json or arguments.prompts:
        terminal.write_lines(records)
    else:
        terminal.show_answers(records)
    return 0


def target_of(arguments: argparse.Namespace, output: str) -> Path | None:
    """Check the flags that say where answers go.

    Raises:
        RunError: The file exists.
        UsageError: A flag that would have no effect.
    """
    official = arguments.form == "alpaca-eval"
    if official and not output:
        raise UsageError("--form alpaca-eval writes a file", hint="name one with --output")
    if arguments.generator and not official:
        raise UsageError("--generator has no effect without --form alpaca-eval")
    target = Path(output) if output else None
    if target is not None and target.exists() and not arguments.force:
        raise RunError(f"{target} exists; nothing was written", hint="--force replaces it")
    return target


def as_official(records: list[dict[str, Any]], generator: str) -> list[dict[str, Any]]:
    """Write answers as AlpacaEval's ``model_outputs.json`` does."""
    from alignax.cli.outputs import as_text

    return [
        {"instruction": as_text(r["prompt"]), "output": r["text"], "generator": generator}
        for r in records
    ]
