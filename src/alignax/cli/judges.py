# SPDX-License-Identifier: Apache-2.0
"""``--judge`` and its flags → a judge."""

import argparse
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from alignax.cli.options import Parser
from alignax.errors import DataError, UsageError
from alignax.judge.base import Judge

FORMS = "reward:MODEL, model:MODEL, rules:FILE or openai:MODEL"
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def add_judge_flags(parser: Parser, *, required: bool = True) -> None:
    """Add the flags that choose a judge and its limits."""
    group = parser.add_argument_group("judge")
    group.add_argument("--judge", required=required, metavar="JUDGE", help=FORMS)
    group.add_argument("--base-url", metavar="URL", help="openai: address, up to /v1")
    group.add_argument("--workers", type=int, default=8, metavar="N", help="calls at a time")
    group.add_argument("--per-minute", type=float, metavar="X", help="calls a minute at most")
    group.add_argument("--tries", type=int, default=6, metavar="N", help="tries a question")
    group.add_argument("--reply-tokens", type=int, default=512, metavar="N", help="of one reply")
    group.add_argument("--price", metavar="IN,OUT", help="money a million tokens; 0,0: free")
    group.add_argument("--max-cost", type=float, default=5.0, metavar="X", help="hard cap")
    group.add_argument("--request", metavar="JSON", help="further fields; null removes one")
    group.add_argument("--judge-cache", metavar="DIR", help="where final verdicts are kept")


def build_judge(arguments: argparse.Namespace) -> Judge:
    """Make the judge that ``--judge`` names."""
    kind, _, name = arguments.judge.partition(":")
    if kind == "rules" and name:
        return _rules(name)
    if kind in ("reward", "model") and name:
        from alignax.cli.own_judges import label_judge, reward_judge

        return reward_judge(name) if kind == "reward" else label_judge(name)
    if kind == "openai" and name:
        return _openai(arguments, name)
    raise UsageError(f"--judge {arguments.judge!r} is not known", hint=f"give {FORMS}")


def _rules(path: str) -> Judge:
    """Read rules from JSON or YAML."""
    import yaml

    from alignax.judge.rules import RulesJudge

    try:
        content = yaml.safe_load(Path(path).expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(
            f"cannot read rules {path}: {error.strerror}", hint="check --judge"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is neither JSON nor YAML: {error}") from error
    return RulesJudge(content, source=path)


def _openai(arguments: argparse.Namespace, model: str) -> Judge:
    """Check the limits, and prepare the endpoint."""
    from alignax.cli import terminal
    from alignax.judge.asking import Endpoint
    from alignax.judge.openai_api import Estimate, OpenAIJudge

    url = arguments.base_url
    local = url is not None and urlsplit(url).hostname in LOOPBACK
    problems = [
        f"--{name} must be at least 1, got {getattr(arguments, name.replace('-', '_'))}"
        for name in ("workers", "tries", "reply-tokens")
        if getattr(arguments, name.replace("-", "_")) < 1
    ]
    if arguments.per_minute is not None and arguments.per_minute <= 0:
        problems.append(f"--per-minute must be above 0, got {arguments.per_minute}")
    prices = _prices(arguments.price, problems) if arguments.price else (0.0, 0.0)
    if not arguments.price and not local:
        problems.append("--price is missing: without it there is no estimate and no cap")
    options = _request(arguments.request, problems)
    if problems:
        raise UsageError("the judge's settings are not valid", problems=problems,
                         hint="--price IN,OUT is in money a million tokens; 0,0: free")  # fmt: skip

    def announce(estimate: Estimate) -> None:
        terminal.say(
            f"judge {model}: {estimate.calls} calls ({estimate.cached} from the cache), at most "
            f"{estimate.input_tokens} + {estimate.output_tokens} tokens, {estimate.cost:.2f} of "
            f"{arguments.max_cost:.2f}"
        )

    endpoint = Endpoint(
        model=model, base_url=url, api_key="none" if local else None, workers=arguments.workers,
        per_minute=arguments.per_minute, tries=arguments.tries, max_tokens=arguments.reply_tokens,
        prices=prices, max_cost=arguments.max_cost, options=options,
    )  # fmt: skip
    return OpenAIJudge(endpoint, cache=_cache(arguments.judge_cache), announce=announce)


def _prices(text: str, problems: list[str]) -> tuple[float, float]:
    try:
        one, two = (float(part) for part in text.split(","))
        if min(one, two) < 0:
            raise ValueError
    except ValueError:
        problems.append(f"--price must be two numbers, got {text!r}")
        return 0.0, 0.0
    return one, two


def _request(text: str | None, problems: list[str]) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except ValueError as error:
        problems.append(f"--request is not JSON: {error}")
        return {}
    if not isinstance(value, dict):
        problems.append(f"--request must be a JSON object, got {text}")
        return {}
    return value


def _cache(folder: str | None) -> Path:
    """Use the given folder, or one in the user's cache."""
    if folder is not None:
        return Path(folder).expanduser()
    from alignax.files import cache_folder

    return cache_folder() / "verdicts"
