"""A model by its name on a hub: a hub on this machine serves it, and its copy serves when the hub is away."""

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.engines.small import TOKENIZER, small_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FIND = """
import sys
from hacpo_core.engines.models.folders import find_model
from hacpo_core.engines.models.loading import load_model
folder = find_model("me/tiny", agent="smol")
print(sum(p.numel() for p in load_model(folder).parameters()), *sorted(p.name for p in folder.iterdir()))
"""


@contextmanager
def hub(folder: Path) -> Iterator[str]:
    """Serves the folder as the model me/tiny, as far as downloading needs it."""

    files = sorted(folder.iterdir())

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if "/tree/" in self.path:
                entries = [{"type": "file", "path": p.name, "size": p.stat().st_size, "oid": ""} for p in files]
                self._answer(json.dumps(entries).encode())
            elif self.path.startswith("/api/models/me/tiny"):
                siblings = [{"rfilename": path.name} for path in files]
                self._answer(json.dumps({"id": "me/tiny", "sha": COMMIT, "siblings": siblings}).encode())
            else:
                self._answer((folder / self.path.rpartition("/")[2]).read_bytes())

        do_HEAD = do_GET

        def _answer(self, content: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Content-Type", "application/json")
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def find(endpoint: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Find and load the model in a new process; the hub's address is read when its library is imported."""
    environment = os.environ | {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1"}
    environment.pop("HF_HUB_OFFLINE", None)
    return subprocess.run([sys.executable, "-c", FIND], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.system
def test_model_is_fetched_by_its_name_once_and_without_files_that_could_run_code(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    model = small_model()
    model.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    with hub(folder) as endpoint:
        first = find(endpoint, tmp_path / "home")
    assert first.returncode == 0, first.stderr
    number, *files = first.stdout.split()
    assert int(number) == sum(parameter.numel() for parameter in model.parameters())
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(files)
    assert "pytorch_model.bin" not in files
    again = find(endpoint, tmp_path / "home")
    assert again.stdout == first.stdout, f"the hub is away; {again.stderr}"
    unknown = find(endpoint, tmp_path / "other")
    assert unknown.returncode == 1
    assert "me/tiny is not a folder here and cannot be downloaded from the hub" in unknown.stderr
