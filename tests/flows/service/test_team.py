"""A server for several runs folders and machines, named by HACPO_PREFECT_URL."""

from __future__ import annotations

import http.server
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.service.prefect_server import ensure_server, stop_server
from flows.service.processes import free_port
from flows.service.schedule import Schedule


def command(folder: Path, url: str, *words: str, auth: str = "me:s3cret") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HACPO_PREFECT_URL": url, "PREFECT_API_AUTH_STRING": auth}
    program = [sys.executable, "-m", "flows.cli", *words, "--runs-dir", str(folder)]
    return subprocess.run(program, env=environment, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("words", [["worker"], ["grid", "demo", "--submit"]], ids=["worker", "grid"])
def test_silent_server_is_one_clear_error(words: list[str], tmp_path: Path) -> None:
    done = command(tmp_path, f"http://127.0.0.1:{free_port()}", *words)
    assert done.returncode == 3
    assert re.fullmatch(
        r"hacpo: HACPO_PREFECT_URL: http://127.0.0.1:\d+ does not answer \(.*Connection refused\); .*\n", done.stderr
    )


class _Refusing(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(401)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.slow
def test_server_that_refuses_the_log_in_is_one_clear_error(tmp_path: Path) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), _Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = command(tmp_path, f"http://127.0.0.1:{server.server_port}", "worker")
        server.shutdown()
    assert done.returncode == 3
    assert re.fullmatch(r"hacpo: .* rejects the log-in; expected .* in PREFECT_API_AUTH_STRING; .*\n", done.stderr)
    assert "s3cret" not in done.stderr


@pytest.mark.slow
def test_address_with_a_password_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = command(tmp_path, "http://me:s3cret@127.0.0.1:4200", "worker")
    assert done.returncode == 2
    assert "HACPO_PREFECT_URL: holds a password" in done.stderr
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:s3cret@127.0.0.1:5000")
    also = command(tmp_path, "http://127.0.0.1:4200", "worker")
    assert also.returncode == 2
    assert "MLFLOW_TRACKING_URI: contains a password" in also.stderr
    assert "s3cret" not in done.stderr + also.stderr


@pytest.mark.system
def test_grid_of_another_folder_trains_with_the_shared_server(
    small_models: Path, tmp_path: Path, migrated: Callable[[Path], None]
) -> None:
    hub, runs_dir, grid = tmp_path / "hub", tmp_path / "runs", tmp_path / "grid.yaml"
    for folder in (hub, runs_dir):
        folder.mkdir()
    migrated(hub)
    (runs_dir / "models").symlink_to(small_models / "models")
    entry = f"{{pairs: [{small_models / 'small.yaml'}], methods: [gspo_x2]}}"
    grid.write_text(f"title: small\nentries: [{entry}]\nreport: {{table: plain}}", encoding="utf-8")
    server = ensure_server(hub)
    try:
        done = command(runs_dir, server.url, "grid", str(grid), auth=server.auth)
        assert done.returncode == 0, done.stderr
        assert {run.state for run in Schedule(server, runs_dir).runs().values()} == {"Completed"}
        assert not (runs_dir / "prefect" / "prefect.db").exists()
        status = command(runs_dir, server.url, "server", "status", auth=server.auth).stdout
        assert status.startswith(f"{server.url} healthy")
    finally:
        stop_server(hub)
