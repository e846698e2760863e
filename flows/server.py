"""The managed local Prefect server: one detached process, found again, health-checked, protected, stopped by its owner.

The ephemeral server of a flow run loses task records at exit, so there is always a real one.
"""

from __future__ import annotations

import base64
import fcntl
import os
import secrets
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from flows.processes import Record, free_port, home_of, write_private
from hacpo_core.errors import EngineError

PREFERRED_PORT = 4200
START_LIMIT_S = 90.0
PATIENCE_S = 60.0
"""how long a server may be silent before it is replaced"""
SHARED_SERVER = "HACPO_PREFECT_URL"
"""address of a server that a team runs for all, in place of one per runs folder; PREFECT_API_AUTH_STRING logs in"""


@dataclass(frozen=True, slots=True)
class PrefectServer:
    """Where a server answers, and what it asks for: "user:password", or nothing."""

    url: str
    auth: str


def auth_file(runs_dir: Path) -> Path:
    """File that holds the text which the server's page asks for at log-in; readable by its owner alone."""
    return home_of(runs_dir) / "log-in.txt"


def shared_server() -> PrefectServer | None:
    """The team's server, None where the environment names none."""
    url = os.environ.get(SHARED_SERVER)
    return PrefectServer(url.rstrip("/"), os.environ.get("PREFECT_API_AUTH_STRING", "")) if url else None


def find_server(runs_dir: Path) -> PrefectServer | None:
    """The team's server, else the running one of this runs folder, None where there is none or its process is gone."""
    record = _record(home_of(runs_dir))
    return shared_server() or (_described(record.read()) if record.process() is not None else None)


def find_reconciler(runs_dir: Path) -> psutil.Process | None:
    """The reconciler of this runs folder on this machine."""
    return _reconciler(home_of(runs_dir)).process()


def _record(home: Path) -> Record:
    return Record(home, "server")


def _reconciler(home: Path) -> Record:
    return Record(home, "reconciler")


def _described(value: Mapping[str, object] | None) -> PrefectServer | None:
    if value is None or not {"port", "token"} <= set(value):
        return None
    return PrefectServer(f"http://127.0.0.1:{value['port']}", f"hacpo:{value['token']}")


def is_healthy(server: PrefectServer, *, timeout_s: float = 5.0) -> bool:
    """Whether the server answers, and to this log-in: another server may have taken the port."""
    log_in = base64.b64encode(server.auth.encode()).decode()
    request = urllib.request.Request(f"{server.url}/api/admin/version", headers={"Authorization": f"Basic {log_in}"})
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def ensure_server(runs_dir: Path) -> PrefectServer:
    """The healthy server of this runs folder, started if need be; safe to call from several processes.

    One that died comes back at its port with its log-in, so that workers and runs which live on find it. With the
    first start comes the reconciler (`flows.reconciler`), which also brings a dead server back.

    Raises:
        EngineError: it does not come up in time; the message names its log. Or the team's server does not answer.
    """
    shared = shared_server()
    if shared is not None:
        if not is_healthy(shared):
            raise EngineError(
                f"{SHARED_SERVER}: {shared.url} does not answer to this log-in; check the address and "
                "PREFECT_API_AUTH_STRING, or unset both for a server of this machine's own"
            )
        return shared
    home = home_of(runs_dir)
    home.mkdir(parents=True, exist_ok=True)
    with (home / "server.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        server = find_server(runs_dir)
        if server is None or not _wait_until_healthy(server, limit_s=PATIENCE_S):
            server = _start(home)
        if _reconciler(home).process() is None:
            _start_reconciler(home, server)
        return server


def _start(home: Path) -> PrefectServer:
    record = _record(home)
    known = record.read() or {}
    record.end()
    token = known.get("token") or secrets.token_urlsafe(24)
    for port in (int(known.get("port") or PREFERRED_PORT), 0):
        found = _start_at(home, free_port(port), token)
        if found is not None:
            return found
    raise EngineError(f"the Prefect server did not come up within {START_LIMIT_S:.0f} s; see {home / 'server.log'}")


def _start_at(home: Path, port: int, token: str) -> PrefectServer | None:
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    process = _detach(command, home / "server.log", server_environment(home, port=port, auth=f"hacpo:{token}"))
    record = _record(home)
    server = _described(record.write(process.pid, {"port": port, "token": token}))
    assert server is not None, "just written"
    write_private(home / "log-in.txt", f"{server.auth}\n")
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        if is_healthy(server):
            return server
        time.sleep(0.2)
    record.end()
    return None


def _start_reconciler(home: Path, server: PrefectServer) -> None:
    command = [sys.executable, "-m", "flows.reconciler", "--runs-dir", str(home.parent)]
    settings = client_environment(home, url=server.url, auth=server.auth)
    process = _detach(command, home / "reconciler.log", settings)
    _reconciler(home).write(process.pid, {})


def _detach(command: list[str], log_file: Path, settings: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a process that outlives this one and its terminal; secrets go by the environment, not the command line."""
    with log_file.open("ab") as log:
        return subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **settings},
            start_new_session=True,
        )


def _wait_until_healthy(server: PrefectServer, *, limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if is_healthy(server):
            return True
        time.sleep(0.5)
    return False


def stop_server(runs_dir: Path) -> bool:
    """End the server of this runs folder and its reconciler, and only those; False where there was no server."""
    home = home_of(runs_dir)
    _reconciler(home).end()
    return _record(home).end()


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


def use_server(server: PrefectServer, runs_dir: Path) -> None:
    """Point this process's Prefect client at the server; call before anything imports prefect."""
    os.environ.update(client_environment(home_of(runs_dir), url=server.url, auth=server.auth))
