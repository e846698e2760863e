"""A webhook on a free port of this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


@dataclass
class Webhook:
    """What it got; it answers with `status` once `answers` is set."""

    url: str = ""
    status: int = 200
    got: list[dict[str, Any]] = field(default_factory=list)
    answers: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    """The running webhook."""
    hook = Webhook()
    hook.answers.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            hook.got.append(json.loads(body))
            hook.answers.wait()
            self.send_response(hook.status)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hook.url = f"http://127.0.0.1:{server.server_address[1]}/secret"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield hook
        hook.answers.set()
        server.shutdown()
        thread.join()
