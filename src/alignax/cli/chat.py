# SPDX-License-Identifier: Apache-2.0
"""Talk to a model in the terminal; answers stream as they are made.

  alignax chat --model runs/first
  alignax chat --model demo --temperature 0.7

An empty line or Ctrl-D ends the talk; /reset forgets it; /system TEXT sets a system turn.
"""

import argparse
import sys

from alignax.cli.generate import PROMPT_SETTINGS, add_sampling, choice_of
from alignax.cli.options import Parser, add_settings, require, settings_of


def add_arguments(parser: Parser) -> None:
    """Add the flags of this verb."""
    add_sampling(parser)
    add_settings(parser, "model.", *(s for s in PROMPT_SETTINGS if s != "data.render"))


def main(arguments: argparse.Namespace) -> int:
    """Read turns from stdin until it ends."""
    recipe = settings_of(arguments, method="dpo")
    require(recipe, "model.path")
    choice = choice_of(arguments)
    from alignax.cli import terminal
    from alignax.cli.answering import open_sampler
    from alignax.cli.from_run import with_run_settings
    from alignax.generate.stops import settled

    recipe = with_run_settings(recipe)
    sampler, encoder = open_sampler(recipe, batch_size=1)
    start = [{"role": "system", "content": recipe.data.system}] if recipe.data.system else []
    turns = list(start)
    while line := _read_line():
        if line == "/reset":
            turns = list(start)
            continue
        if line.startswith("/system "):
            start = [{"role": "system", "content": line.removeprefix("/system ")}]
            turns = list(start)
            continue
        turns.append({"role": "user", "content": line})
        shown = ""
        prompt = encoder.prompt_ids(turns)
        if sampler.room(prompt) < 1:
            terminal.warn("the talk is as long as the model's positions: /reset begins anew")
            turns.pop()
            continue
        for answer in sampler.stream(
            prompt, max_new_tokens=arguments.max_new_tokens, choice=choice,
            seed=arguments.seed + len(turns), stops=arguments.stop,
        ):  # fmt: skip
            text = settled(answer.text, arguments.stop, done=answer.finish_reason != "")
            sys.stdout.write(text[len(shown) :])
            sys.stdout.flush()
            shown = text
        sys.stdout.write("\n")
        turns.append({"role": "assistant", "content": shown})
    return 0


def _read_line() -> str:
    """Ask for a turn; empty at the end of input."""
    if sys.stdin.isatty():
        sys.stderr.write("> ")
        sys.stderr.flush()
    return sys.stdin.readline().strip()
