"""The managed local Prefect server: one detached process, found again, health-checked, protected, stopped by its owner.

The ephemeral server of a flow run loses task records at exit, so there is always a real one.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from hacpo_core.errors import EngineError

PREFERRED_PORT = 4200
START_LIMIT_S = 90.0
STOP_LIMIT_S = 15.0


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """A server that was started: `created` tells its process from a later one with the same pid."""

    pid: int
    created: float
    port: int
    token: str

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def auth(self) -> str:
        """What the page's log-in asks for, and what clients send."""
        return f"hacpo:{self.token}"


def home_of(runs_dir: Path) -> Path:
    """Prefect's folder: database, log and record of the server."""
    return (runs_dir / "prefect").absolute()


def auth_file(runs_dir: Path) -> Path:
    """File that holds the text which the server's page asks for at log-in; readable by its owner alone."""
    return home_of(runs_dir) / "log-in.txt"


def _record_file(home: Path) -> Path:
    return home / "server.json"


def find_server(runs_dir: Path) -> ServerRecord | None:
    """The running server of this runs folder, None where there is none or its process is gone."""
    path = _record_file(home_of(runs_dir))
    try:
        record = ServerRecord(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return record if _process(record) is not None else None


def _process(record: ServerRecord) -> psutil.Process | None:
    try:
        process = psutil.Process(record.pid)
        is_ours = abs(process.create_time() - record.created) < 2.0 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return None
    return process if is_ours else None


def is_healthy(record: ServerRecord, *, timeout_s: float = 5.0) -> bool:
    """Whether the server answers, and to this record's log-in: another server may have taken the port."""
    log_in = base64.b64encode(record.auth.encode()).decode()
    request = urllib.request.Request(f"{record.url}/api/admin/version", headers={"Authorization": f"Basic {log_in}"})
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def ensure_server(runs_dir: Path) -> ServerRecord:
    """The healthy server of this runs folder, started if need be; safe to call from several processes.

    Raises:
        EngineError: it does not come up in time; the message names its log.
    """
    home = home_of(runs_dir)
    home.mkdir(parents=True, exist_ok=True)
    with (home / "server.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = find_server(runs_dir)
        if found is not None:
            if _wait_until_healthy(found, limit_s=20.0):
                return found
            stop_server(runs_dir)
        return _start(home)


def _start(home: Path) -> ServerRecord:
    for port in (PREFERRED_PORT, 0):
        found = _start_at(home, _free_port(port))
        if found is not None:
            return found
    raise EngineError(f"the Prefect server did not come up within {START_LIMIT_S:.0f} s; see {home / 'server.log'}")


def _start_at(home: Path, port: int) -> ServerRecord | None:
    token = secrets.token_urlsafe(24)
    environment = os.environ | server_environment(home, port=port, auth=f"hacpo:{token}")
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with (home / "server.log").open("ab") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
        )
    record = ServerRecord(process.pid, psutil.Process(process.pid).create_time(), port, token)
    path = _record_file(home)
    _write_private(path, json.dumps(asdict(record)))
    _write_private(home / "log-in.txt", f"{record.auth}\n")
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        if is_healthy(record):
            return record
        time.sleep(0.2)
    _end(record)
    path.unlink(missing_ok=True)
    return None


def _write_private(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def _wait_until_healthy(record: ServerRecord, *, limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if is_healthy(record):
            return True
        time.sleep(0.5)
    return False


def stop_server(runs_dir: Path) -> bool:
    """End the server of this runs folder, and only that; False where there was none."""
    record = find_server(runs_dir)
    _record_file(home_of(runs_dir)).unlink(missing_ok=True)
    return _end(record) if record is not None else False


def _end(record: ServerRecord) -> bool:
    process = _process(record)
    if process is None:
        return False
    family = [*process.children(recursive=True), process]
    for member in family:
        _signal(member, is_final=False)
    _, alive = psutil.wait_procs(family, timeout=STOP_LIMIT_S)
    for member in alive:
        _signal(member, is_final=True)
    psutil.wait_procs(alive, timeout=STOP_LIMIT_S)
    return True


def _signal(process: psutil.Process, *, is_final: bool) -> None:
    try:
        if is_final:
            process.kill()
        else:
            process.terminate()
    except psutil.NoSuchProcess:
        return


def _free_port(preferred: int) -> int:
    """The preferred port of the loopback address if it is free, else any (0 prefers none)."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", preferred))
        except OSError:
            probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def server_environment(home: Path, *, port: int, auth: str) -> dict[str, str]:
    """Settings of the server: loopback, a token, no foreign origin, no analytics, task records written in batches."""
    return {
        **client_environment(home, url=f"http://127.0.0.1:{port}", auth=auth),
        "PREFECT_SERVER_API_AUTH_STRING": auth,
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"http://127.0.0.1:{port}",
        "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        # On SQLite a write per record makes other calls fail and wait: docs/decisions.md, Prefect's share of a step.
        "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_ENABLED": "false",
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "100",
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
        "PREFECT_UI_API_URL": f"http://127.0.0.1:{port}/api",
    }


def client_environment(home: Path, *, url: str, auth: str) -> dict[str, str]:
    """Settings of a process that runs flows against the server; to be set before prefect is imported."""
    return {
        "PREFECT_HOME": str(home),
        "PREFECT_API_URL": f"{url}/api",
        "PREFECT_API_AUTH_STRING": auth,
        "PREFECT_CLIENT_CSRF_SUPPORT_ENABLED": "true",
        "PREFECT_LOGGING_LEVEL": os.environ.get("PREFECT_LOGGING_LEVEL", "WARNING"),
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
        "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
        "DO_NOT_TRACK": "1",
    }


def use_server(record: ServerRecord, runs_dir: Path) -> None:
    """Point this process's Prefect client at the server; call before anything imports prefect."""
    os.environ.update(client_environment(home_of(runs_dir), url=record.url, auth=record.auth))
