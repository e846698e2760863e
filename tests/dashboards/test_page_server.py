"""`hacpo dashboard` as a process: where it listens, one per folder, nothing left behind."""

import json
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from dashboards.mlflow_page import MlflowPage
from dashboards.page_server import DASHBOARD_PORT, listen
from flows.service.processes import Record, find_process
from hacpo_core.errors import ConfigError
from tests.dashboards.stores import write_run
from tests.waiting import wait_until

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(runs_dir: Path, leftovers: Callable[[], list[str]]) -> Iterator[Start]:
    """Starts `hacpo dashboard`; at the end of the test every one must be gone with all that it started."""
    begun: list[subprocess.Popen[str]] = []

    def run(*words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "flows.cli", "dashboard", "--runs-dir", str(runs_dir), "--no-prefect", *words]
        begun.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        return begun[-1]

    yield run
    for process in begun:
        if process.poll() is None:
            process.terminate()
        process.wait(timeout=120)
    assert leftovers() == []


def said(process: subprocess.Popen[str], words: str) -> str:
    """The first line with these words."""
    assert process.stdout is not None
    heard = []
    for line in process.stdout:
        heard.append(line)
        if words in line:
            return line
    raise AssertionError(f"{words!r} was not said, but {''.join(heard)!r}")


def address(process: subprocess.Popen[str]) -> str:
    return said(process, "dashboard  http").split()[1]


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as response:
        return str(response.read().decode())


@pytest.mark.slow
def test_second_call_says_where_the_first_listens(start: Start, runs_dir: Path) -> None:
    first = start()
    url = address(first)
    assert "hacpo demo" in get(url)
    second = start()
    assert second.wait(timeout=120) == 0
    assert said(second, "already running") == f"already running: {url}\n"
    first.send_signal(signal.SIGINT)
    assert first.wait(timeout=60) == 0
    assert not (runs_dir / "prefect" / "dashboard.json").exists()


@pytest.mark.slow
def test_page_that_was_killed_leaves_nothing_and_is_replaced(start: Start, runs_dir: Path) -> None:
    write_run(runs_dir)
    (runs_dir / "mlflow.db").touch()
    first = start()
    assert get(address(first)).count('id="overview"') == 1
    mlflow = Record(runs_dir / "prefect", "mlflow-page")
    wait_until(lambda: mlflow.process() is not None)
    child = mlflow.read()
    assert child is not None
    first.kill()
    first.wait(timeout=10)
    assert (runs_dir / "prefect" / "dashboard.json").exists()  # stale
    wait_until(lambda: find_process(child["pid"], child["since_boot"]) is None, limit_s=30)
    second = start()
    assert "in no grid" in get(address(second))
    second.terminate()
    assert second.wait(timeout=120) == 0
    assert mlflow.process() is None


@pytest.mark.slow
def test_off_loopback_the_token_is_required_and_nowhere_to_be_seen(start: Start, runs_dir: Path) -> None:
    process = start("--host", "0.0.0.0", "--port", str(free()))
    url = address(process)
    path = Path(said(process, "log-in: token in").partition("token in ")[2].strip())
    token = path.read_text(encoding="utf-8").strip()
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(urllib.error.HTTPError, match="401"):
        get(url)
    family = psutil.Process(process.pid)
    assert token not in json.dumps([member.cmdline() for member in [family, *family.children(recursive=True)]])


def test_taken_port_is_one_error_and_the_default_moves_on() -> None:
    with listen("127.0.0.1", None) as first, listen("127.0.0.1", None) as second:
        ports = (first.getsockname()[1], second.getsockname()[1])
        assert len(set(ports)) == 2 and all(port >= DASHBOARD_PORT for port in ports)
        with pytest.raises(ConfigError, match=f"--port: cannot listen on 127.0.0.1 port {ports[0]}"):
            listen("127.0.0.1", ports[0])
    with pytest.raises(ConfigError, match="--host: got 'no such host'"):
        listen("no such host", None)


def test_page_of_mlflow_shows_the_store_that_runs_write_to(
    runs_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs_dir.mkdir()
    (runs_dir / "mlflow.db").touch()
    started = []

    def child(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        started.append((command, options["env"]["MLFLOW_BACKEND_STORE_URI"]))
        return popen(["sleep", "60"])

    popen = subprocess.Popen
    monkeypatch.setattr("dashboards.mlflow_page.subprocess.Popen", child)
    elsewhere = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    for uri, own in (("", f"sqlite:///{runs_dir / 'mlflow.db'}"), (elsewhere, elsewhere)):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        page = MlflowPage(runs_dir, Record(runs_dir / "prefect", "mlflow-page"))
        page.ensure()
        if uri:
            assert page.url == "", "there is nothing to show yet"
            (tmp_path / "elsewhere.db").touch()
            page.ensure()
        command, store = started.pop()
        assert store == own and own not in command
        page.end()


def free() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
