# SPDX-License-Identifier: Apache-2.0
"""Answer over HTTP as OpenAI's endpoints do, so that its clients and judges can ask a run.

  alignax serve --model runs/first
  alignax serve --model FOLDER --adapter runs/first --port 9000 --slots 8

Endpoints: /v1/models, /v1/chat/completions and /v1/completions (both also as a stream), /health. A
model with an adapter is served twice: under its own name, and as NAME:reference without the
adapter. Only this machine can connect unless --host says otherwise. Needs the extra `serve`.
"""

import argparse
import socket
from pathlib import Path
from typing import Any

from alignax.cli.generate import PROMPT_SETTINGS
from alignax.cli.options import Parser, add_settings, require, settings_of
from alignax.errors import DataError, MissingExtra, RunError, UsageError


def add_arguments(parser: Parser) -> None:
    """Add the flags of this verb."""
    parser.add_argument("--host", default="127.0.0.1", metavar="HOST", help="address to listen on")
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="0: any free port")
    parser.add_argument("--api-key", metavar="KEY", help="key that clients must send")
    parser.add_argument("--name", metavar="NAME", help="model name; default: the folder's name")
    parser.add_argument("--slots", type=int, default=4, metavar="N", help="answers at a time")
    parser.add_argument(
        "--max-length",
        type=int,
        default=1024,
        metavar="N",
        help="most tokens of a prompt and its answer together",
    )
    add_settings(parser, "model.", *(s for s in PROMPT_SETTINGS if s != "data.render"))


def check_flags(arguments: argparse.Namespace) -> None:
    """Refuse flags out of range, all at once."""
    problems = []
    if not 0 <= arguments.port <= 65535:
        problems.append(f"--port must be from 0 to 65535, got {arguments.port}")
    if arguments.slots < 1:
        problems.append(f"--slots must be at least 1, got {arguments.slots}")
    if arguments.max_length < 2:
        problems.append(f"--max-length must be at least 2, got {arguments.max_length}")
    if arguments.api_key == "":
        problems.append("--api-key must not be empty")
    if problems:
        raise UsageError("the server's settings are not valid", problems=problems)


def main(arguments: argparse.Namespace) -> int:
    """Load the model, and answer until a signal comes."""
    recipe = settings_of(arguments, method="dpo")
    require(recipe, "model.path")
    check_flags(arguments)
    try:
        import uvicorn

        from alignax.serve.api import build_app
    except ImportError as error:
        raise MissingExtra(error.name or "starlette", extra="serve") from error
    from alignax.cli import terminal
    from alignax.cli.from_run import with_run_settings

    name = arguments.name or Path(recipe.model.path).name
    recipe = with_run_settings(recipe)
    listener = _listen(arguments.host, arguments.port)
    host, port = listener.getsockname()[:2]
    app = build_app(open_backend(recipe, arguments, name))
    if arguments.host not in ("127.0.0.1", "::1", "localhost") and arguments.api_key is None:
        terminal.warn(f"anybody who reaches {host} can ask this model: --api-key sets a key")
    terminal.say(f"ready: http://{host}:{port}/v1 (model {name!r}); Ctrl-C ends")
    config = uvicorn.Config(app, log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[listener])
    return 0


def _listen(host: str, port: int) -> socket.socket:
    """Bind the address, before the slow loading.

    Raises:
        RunError: The address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise RunError(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            hint="choose another --port or --host",
        ) from error
    return listener


def open_backend(recipe: Any, arguments: argparse.Namespace, name: str) -> Any:
    """Load the model, start its engines and warm them up."""
    from alignax.cli import terminal
    from alignax.cli.answering import open_sampler
    from alignax.data.formats.turns import RowProblem, require_prompt, turns
    from alignax.generate.queue import Job
    from alignax.serve.api import Backend
    from alignax.serve.requests import Limits
    from alignax.serve.service import Service

    sampler, encoder = open_sampler(recipe, batch_size=arguments.slots)
    length = min(arguments.max_length, sampler.positions)
    if length < arguments.max_length:
        terminal.warn(f"the model has {length} positions: --max-length is {length}")
    engines = {name: sampler.serving(length)}
    if recipe.model.adapter is not None:
        engines[f"{name}:reference"] = sampler.serving(length, adapter=False)
    terminal.say("compiling …")
    for engine in engines.values():
        engine.submit(Job((0,), 2))
        for _ in engine.run():
            pass

    system = ({"role": "system", "content": recipe.data.system},) if recipe.data.system else ()

    def encode_chat(messages: Any, tools: Any) -> list[int]:
        try:
            asked = require_prompt(turns(messages, "messages"))
        except RowProblem as problem:
            raise DataError(problem.detail) from problem
        first = asked[0].get("role") if asked else None
        return encoder.prompt_ids((*(() if first == "system" else system), *asked), tools)

    service = Service(engines)
    service.start()
    return Backend(
        service, encode_chat, encoder.prompt_ids, encoder.decode, tuple(encoder.stop_ids),
        Limits(length), arguments.api_key,
    )  # fmt: skip
