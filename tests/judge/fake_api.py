# SPDX-License-Identifier: Apache-2.0
"""An OpenAI-compatible endpoint on this machine that answers as a script tells it to."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}


def reply(text, *, finish="stop", refusal=None, usage=True):
    """A well-formed completion."""
    message = {"role": "assistant", "content": text, "refusal": refusal}
    return {
        "id": "1", "object": "chat.completion", "created": 1, "model": "fake",
        "choices": [{"index": 0, "finish_reason": finish, "message": message}],
    } | ({"usage": USAGE} if usage else {})  # fmt: skip


class FakeApi:
    """Counts calls; ``script(number, request)`` says what comes back.

    It returns text (a reply), a dict (a body), bytes (a raw body), a status with headers, or
    ``"cut"``, which closes the connection in the middle of a body.
    """

    def __init__(self, script):
        self.script, self.calls, self.requests = script, 0, []
        self.lock = threading.Lock()
        self.running = self.most_running = 0

    def answer(self, handler):
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        with self.lock:
            self.calls += 1
            number = self.calls
            self.requests.append(json.loads(body))
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        try:
            self.send(handler, self.script(number, json.loads(body)))
        finally:
            with self.lock:
                self.running -= 1

    def send(self, handler, wanted):
        status, headers = 200, {}
        if isinstance(wanted, tuple):
            status, headers, wanted = wanted
        if isinstance(wanted, str) and wanted != "cut":
            wanted = reply(wanted)
        data = wanted if isinstance(wanted, bytes) else json.dumps(wanted).encode()
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(data) + (500 if wanted == "cut" else 0)))
        handler.end_headers()
        handler.wfile.write(data)
        handler.close_connection = True


@contextmanager
def fake_api(script):
    """Serve on a free port; yields the api, with its ``url``."""
    api = FakeApi(script)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            api.answer(self)

        def log_message(self, *words):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    api.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
