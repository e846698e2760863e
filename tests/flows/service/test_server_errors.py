"""A server that answers 500 for a moment is asked again, also for its CSRF token."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from flows.service.server import client_environment

CODE = """
from prefect.client.orchestration import get_client
with get_client(sync_client=True) as client:
    print(client.count_flow_runs())
"""


@pytest.mark.slow
def test_answer_500_is_tried_again(tmp_path: Path) -> None:
    asked: list[str] = []

    class Stumbling(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            path = self.path.partition("?")[0]
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            asked.append(path)
            is_first = asked.count(path) == 1
            token = {"token": "t", "client": "c", "expiration": "2100-01-01T00:00:00Z"}
            found = {"/api/csrf-token": token, "/api/flow_runs/count": 7}.get(path, {})
            body = json.dumps({} if is_first else found).encode()
            self.send_response(500 if is_first else 200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = answer

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stumbling) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        settings = client_environment(tmp_path, url=url, auth="a:b") | {"PREFECT_CLIENT_RETRY_JITTER_FACTOR": "0"}
        done = subprocess.run([sys.executable, "-c", CODE], env=os.environ | settings, capture_output=True, text=True)
        server.shutdown()
    assert done.stdout == "7\n", done.stderr[-2000:]
    assert asked.count("/api/csrf-token") == asked.count("/api/flow_runs/count") == 2
