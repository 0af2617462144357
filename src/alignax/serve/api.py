# SPDX-License-Identifier: Apache-2.0
"""A web application with OpenAI's endpoints for models, chat and plain completions."""

import asyncio
import hmac
import json
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from alignax.errors import AlignaxError
from alignax.serve.replies import Reply, text_of
from alignax.serve.requests import Body, ChatBody, Limits, Refusal, TextBody, jobs_of, parse
from alignax.serve.service import Asked, Part, Service, error_text

PATIENCE = 1.0
"""Seconds between two looks whether a silent client is still there."""


@dataclass(frozen=True)
class Backend:
    """What the application answers with.

    Attributes:
        service: The running engines; their names are the model ids.
        encode_chat: ``(messages, tools) → ids``.
        encode_text: ``text → ids``.
        decode: Ids → text.
        stop_ids: Ids that end an answer and are not shown.
        limits: What a slot holds.
        key: Key that clients must send, or None.
        most_bytes: Largest body that is read.
    """

    service: Service
    encode_chat: Callable[[Sequence[Any], Sequence[Any]], list[int]]
    encode_text: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]
    stop_ids: tuple[int, ...]
    limits: Limits
    key: str | None = None
    most_bytes: int = 4 << 20


def build_app(backend: Backend) -> Starlette:
    """Build the application."""

    def guarded(answer: Callable[[Request], Any]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            try:
                _check_key(request, backend.key)
                return await answer(request)
            except Refusal as refusal:
                return JSONResponse(refusal.body, refusal.status)

        return endpoint

    async def models(_: Request) -> Response:
        data = [
            {"id": name, "object": "model", "created": 0, "owned_by": "alignax"}
            for name in backend.service.names
        ]
        return JSONResponse({"object": "list", "data": data})

    async def chat(request: Request) -> Response:
        body = parse(ChatBody, await _json(request, backend.most_bytes))
        try:
            prompt = backend.encode_chat(body.messages, body.tools)
        except AlignaxError as error:
            raise Refusal(str(error), param="messages") from error
        return await _answer(request, backend, body, [prompt])

    async def text(request: Request) -> Response:
        body = parse(TextBody, await _json(request, backend.most_bytes))
        return await _answer(request, backend, body, _text_prompts(body, backend))

    async def health(_: Request) -> Response:
        failure = backend.service.failure
        return JSONResponse({"status": failure or "ok"}, 503 if failure else 200)

    return Starlette(
        routes=[
            Route("/v1/models", guarded(models)),
            Route("/v1/chat/completions", guarded(chat), methods=["POST"]),
            Route("/v1/completions", guarded(text), methods=["POST"]),
            Route("/health", health),
        ]
    )


def _check_key(request: Request, key: str | None) -> None:
    """Refuse requests without the key."""
    given = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
    if key is not None and not hmac.compare_digest(given.encode(), key.encode()):
        raise Refusal(
            "the API key is missing or wrong: send it as `Authorization: Bearer KEY`",
            status=401, code="invalid_api_key",
        )  # fmt: skip


async def _json(request: Request, most_bytes: int) -> Any:
    """Read a body of bounded size."""
    raw = bytearray()
    async for piece in request.stream():
        raw += piece
        if len(raw) > most_bytes:
            raise Refusal(f"the body has more than {most_bytes} bytes", status=413)
    try:
        return json.loads(bytes(raw))
    except (ValueError, RecursionError) as error:
        raise Refusal(f"the body is not JSON: {error}") from error


def _text_prompts(body: TextBody, backend: Backend) -> list[list[int]]:
    """Encode plain prompts: one text, several, or ids."""
    if isinstance(body.prompt, list) and body.prompt and isinstance(body.prompt[0], int):
        raise Refusal("prompts as token ids are not supported: send text", param="prompt")
    texts = [body.prompt] if isinstance(body.prompt, str) else list(body.prompt)
    if not texts:
        raise Refusal("there is no prompt", param="prompt")
    try:
        return [backend.encode_text(str(text)) for text in texts]
    except AlignaxError as error:
        raise Refusal(str(error), param="prompt") from error


async def _answer(
    request: Request, backend: Backend, body: Body, prompts: list[list[int]]
) -> Response:
    """Ask the engine and reply, at once or bit by bit."""
    if body.model not in backend.service.names:
        raise Refusal(
            f"there is no model {body.model!r} here; there is: {', '.join(backend.service.names)}",
            status=404, param="model", code="model_not_found",
        )  # fmt: skip
    jobs = jobs_of(body, prompts, backend.limits, lambda: secrets.randbits(32))
    chat = isinstance(body, ChatBody)
    logprobs = isinstance(body, ChatBody) and body.logprobs
    reply = Reply(body.model, chat, sum(map(len, prompts)), logprobs)
    parts: asyncio.Queue[tuple[int, Part]] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def listener(index: int) -> Callable[[Part], None]:
        def listen(part: Part) -> None:
            loop.call_soon_threadsafe(parts.put_nowait, (index, part))

        return listen

    asked = [
        backend.service.ask(body.model, job, listener(index)) for index, job in enumerate(jobs)
    ]
    if body.stream:
        events = _events(backend, body, reply, asked, parts)
        return StreamingResponse(events, media_type="text/event-stream")
    return await _whole(request, backend, body, reply, asked, parts)


async def _whole(
    request: Request, backend: Backend, body: Body, reply: Reply, asked: list[Asked],
    parts: asyncio.Queue[tuple[int, Part]],
) -> Response:  # fmt: skip
    """Wait for all answers; give up when the client does."""
    done: dict[int, Part] = {}
    while len(done) < len(asked):
        try:
            index, part = await asyncio.wait_for(parts.get(), PATIENCE)
        except TimeoutError:
            if await request.is_disconnected():
                _cancel(backend, asked)
                return Response(status_code=499)
            continue
        if part.failure:
            return JSONResponse(error_text(part), 500)
        if part.ended_by:
            done[index] = part
    ordered = [done[index] for index in range(len(asked))]
    texts = [text_of(part, body.stops, backend.stop_ids, backend.decode) for part in ordered]
    return JSONResponse(reply.whole(ordered, texts, backend.decode))


async def _events(
    backend: Backend, body: Body, reply: Reply, asked: list[Asked],
    parts: asyncio.Queue[tuple[int, Part]],
) -> AsyncIterator[str]:  # fmt: skip
    """Yield server-sent events; a client that leaves frees the slots."""
    shown, seen = [""] * len(asked), [0] * len(asked)
    still, tokens = len(asked), 0
    try:
        for index in range(len(asked) if reply.chat else 0):
            yield _event(reply.first(index))
        while still:
            index, part = await parts.get()
            if part.failure:
                yield _event(error_text(part))
                break
            text = text_of(part, body.stops, backend.stop_ids, backend.decode)
            new = text[len(shown[index]) :]
            if new or part.ended_by:
                yield _event(reply.chunk(index, part, new, seen[index], backend.decode))
                shown[index], seen[index] = text, len(part.ids)
            if part.ended_by:
                still, tokens = still - 1, tokens + len(part.ids)
        if body.stream_options is not None and body.stream_options.include_usage:
            yield _event(reply.last(tokens))
        yield "data: [DONE]\n\n"
    finally:
        if still:
            _cancel(backend, asked)


def _cancel(backend: Backend, asked: Sequence[Asked]) -> None:
    for one in asked:
        backend.service.cancel(one)


def _event(body: Any) -> str:
    return f"data: {json.dumps(body)}\n\n"
