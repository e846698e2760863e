"""The managed local Prefect server of a runs folder: start, find, check and stop it.

Flow runs always use a persistent server, because Prefect's ephemeral one loses task records at exit.
"""

import base64
import fcntl
import http.client
import json
import logging
import os
import secrets
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from flows.records.mlflow_address import sqlite_uri
from flows.service.processes import Record, free_port, home_of, inode_of, module_command, open_log, write_private
from hacpo_core.errors import ServerError
from hacpo_core.files import acquire

_log = logging.getLogger(__name__)

PREFECT_PORT = 4200
START_LIMIT_S = 90.0
MAX_STARTS = 6
"""attempts to start the server in one call; it may be killed, or lose its port"""
KEEP_EVERY_S = 10.0
"""time between two checks of a server by a command that needs it"""
ANSWER_S = 5.0
"""time limit of one health check"""
IDLE_END_S = 600.0
"""time without a request after which a server ends, if no command says otherwise"""
_SILENCE_LIMIT_S = 60.0
"""time without an answer after which a server is replaced"""
SERVER_LOCK = "server.alive.lock"
"""lock that a folder's server holds while it lives, visible on all machines"""
_LOCK_LIMIT_S = 2.0
"""time for a server that was ended to release its lock; a look at the lock holds it for an instant"""
IDLE = "idle_s"
"""entry of the record of a server: seconds without a request after which it ends; None: it stays"""
_STOPPED = "is_stopped"
"""entry of the record of a server that `hacpo server stop` stopped"""


@dataclass(frozen=True, slots=True)
class PrefectServer:
    """Address of a server, and its credentials: "user:password", or empty."""

    url: str
    auth: str


def auth_file(runs_dir: Path) -> Path:
    """File with the credentials for the server's web page, readable by its owner only."""
    return home_of(runs_dir) / "log-in.txt"


def log_in_hint(runs_dir: Path) -> str:
    """One line that says where the credentials for the server's web page are."""
    return f"log-in: see {auth_file(runs_dir)}; stop it with `hacpo server stop`"


def find_server(runs_dir: Path) -> PrefectServer | None:
    """The running server of this runs folder; None if there is none or its process is gone."""
    record = _record(home_of(runs_dir))
    return _described(record.read()) if record.process() is not None else None


def server_process(runs_dir: Path) -> psutil.Process | None:
    """The server of this runs folder on this machine."""
    return _record(home_of(runs_dir)).process()


def _record(home: Path) -> Record:
    return Record(home, "server")


def _described(value: Mapping[str, object] | None) -> PrefectServer | None:
    if value is None or not {"port", "token"} <= set(value):
        return None
    return PrefectServer(f"http://127.0.0.1:{value['port']}", f"hacpo:{value['token']}")


def is_healthy(server: PrefectServer) -> bool:
    """Whether the server accepts these credentials (another one may have taken the port) and can write a row.

    A connection to SQLite that was opened while the disk was read-only stays so for ever.
    """
    log_in = base64.b64encode(server.auth.encode()).decode()
    url = f"{server.url}/api/csrf-token?client=health"
    request = urllib.request.Request(url, headers={"Authorization": f"Basic {log_in}"})
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S):
            return True
    except urllib.error.HTTPError as error:
        error.close()
        return False
    except (OSError, http.client.HTTPException):
        return False


def ensure_server(runs_dir: Path) -> PrefectServer:
    """The healthy server of this runs folder, started if necessary. Several processes may call this at once.

    A server that died is restarted with the same port and credentials, so that live workers and runs find it.

    Raises:
        ServerError: the server does not start in time (the message names its log), or it runs on another host.
    """
    home = home_of(runs_dir)
    home.mkdir(parents=True, exist_ok=True)
    with _locked(home):
        return _healthy_server(runs_dir)


def _healthy_server(runs_dir: Path) -> PrefectServer:
    """`ensure_server` for a caller that holds the lock."""
    server = find_server(runs_dir)
    if server is None or not _comes_up(server, limit_s=_SILENCE_LIMIT_S):
        server = _start(home_of(runs_dir))
    return server


def end_when_idle(runs_dir: Path, idle_s: float | None) -> None:
    """Have the server end after this time without a request, unless it was told to stay; None: it stays."""
    home = home_of(runs_dir)
    with _locked(home):
        value = _record(home).read() or {}
        if value.get(IDLE, 0.0) is not None:
            write_private(_record(home).path, json.dumps({**value, IDLE: idle_s}))


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    """Hold the lock under which the server is started, stopped and recorded."""
    with (home / "server.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def kept_server(runs_dir: Path) -> Iterator[PrefectServer]:
    """`ensure_server`; a server that dies during the block is restarted."""
    server, is_over = ensure_server(runs_dir), threading.Event()
    threading.Thread(target=keep_server, args=[runs_dir, is_over], name="keep the server", daemon=True).start()
    try:
        yield server
    finally:
        is_over.set()


def keep_server(runs_dir: Path, is_over: threading.Event) -> None:
    """Restart a server that dies, until the event is set or the folder is deleted.

    A server that `hacpo server stop` stopped stays so.
    """
    home = home_of(runs_dir)
    inode = inode_of(home)
    while not is_over.wait(KEEP_EVERY_S) and inode_of(home) == inode:
        try:
            with _locked(home):
                if not (_record(home).read() or {}).get(_STOPPED):
                    _healthy_server(runs_dir)
        except (ServerError, OSError) as error:
            _log.warning("%s", error)


def _start(home: Path) -> PrefectServer:
    """Start the server, unless another host runs it; again, a few times, if it fails, is killed or loses its port."""
    record = _record(home)
    recorded = record.read() or {}
    record.end()
    token, port = recorded.get("token") or secrets.token_urlsafe(24), int(recorded.get("port") or PREFECT_PORT)
    with (home / SERVER_LOCK).open("ab") as lock:
        if not acquire(lock, limit_s=_LOCK_LIMIT_S):
            host = recorded.get("host", "a host or process that no record names")
            raise ServerError(
                f"the Prefect server of {home.parent} runs on {host}, and two on one database would harm each other; "
                "work there, or stop it there with `hacpo server stop`"
            )
        for _ in range(MAX_STARTS):
            port = free_port(port)
            process = _detach(home, port, f"hacpo:{token}", lock.fileno())
            facts = {"port": port, "token": token, IDLE: recorded.get(IDLE, IDLE_END_S)}
            server = _described(record.write(process.pid, facts))
            assert server is not None, "just written"
            write_private(auth_file(home.parent), f"{server.auth}\n")
            if _comes_up(server, limit_s=START_LIMIT_S, process=process):
                return server
            code = process.poll()
            outcome = f"no answer within {START_LIMIT_S:.0f} s" if code is None else f"exit code {code}"
            _log.warning("the Prefect server did not start (%s); starting it again", outcome)
            record.end()
    raise ServerError(
        f"the Prefect server did not start in {MAX_STARTS} attempts ({outcome}); see {home / 'server.log'}"
    )


def _detach(home: Path, port: int, auth: str, lock: int) -> subprocess.Popen[bytes]:
    """Start a server that outlives this process and its terminal, and holds a lock until it has ended."""
    with open_log(home / "server.log") as log:
        return subprocess.Popen(
            module_command("flows.service.prefect_process", *f"server start --host 127.0.0.1 --port {port}".split()),
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **server_environment(home, port=port, auth=auth)},  # command lines are public
            pass_fds=[lock],
            start_new_session=True,
        )


def _comes_up(server: PrefectServer, *, limit_s: float, process: subprocess.Popen[bytes] | None = None) -> bool:
    """Wait for the server to become healthy; False after `limit_s`, or once its process has ended."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline and (process is None or process.poll() is None):
        if is_healthy(server):
            return True
        time.sleep(0.2)
    return False


def stop_server(runs_dir: Path) -> bool:
    """Stop the server of this runs folder; False if there was none. A worker, or the next command, starts it again.

    The next server has the same credentials, and the same port if that is free, so that live workers find it.
    """
    home = home_of(runs_dir)
    record = _record(home)
    if record.read() is None:
        return False
    with _locked(home):  # another process may be starting it
        write_private(record.path, json.dumps({**(record.read() or {}), _STOPPED: True, IDLE: IDLE_END_S}))
        return record.end()


def server_environment(home: Path, *, port: int, auth: str) -> dict[str, str]:
    """Environment of the server: loopback, a token, no other origins, no analytics, task records written in batches."""
    return {
        **client_environment(home, url=f"http://127.0.0.1:{port}", auth=auth),
        "PREFECT_API_DATABASE_CONNECTION_URL": sqlite_uri(home / "prefect.db", "sqlite+aiosqlite"),
        "PREFECT_SERVER_API_AUTH_STRING": auth,
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"http://127.0.0.1:{port}",
        "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        # It marks the pool and all deployments red as soon as no worker runs, as between two grids.
        "PREFECT_SERVER_SERVICES_FOREMAN_ENABLED": "false",
        # On SQLite, one write per record makes other calls wait or fail: docs/decisions.md, Prefect's share of a step.
        "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_ENABLED": "false",
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "100",
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
        "PREFECT_UI_API_URL": f"http://127.0.0.1:{port}/api",
    }


def client_environment(home: Path, *, url: str, auth: str) -> dict[str, str]:
    """Environment of a process that runs flows on the server; set it before prefect is imported."""
    return {
        "PREFECT_HOME": str(home),
        "PREFECT_API_URL": f"{url}/api",
        "PREFECT_API_AUTH_STRING": auth,
        "PREFECT_CLIENT_CSRF_SUPPORT_ENABLED": "true",
        "PREFECT_CLIENT_RETRY_EXTRA_CODES": "500",  # Prefect's own are 408, 429, 502 and 503
        "PREFECT_LOGGING_LEVEL": os.environ.get("PREFECT_LOGGING_LEVEL", "WARNING"),
        "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
        "DO_NOT_TRACK": "1",
    }


def use_server(server: PrefectServer, runs_dir: Path) -> None:
    """Point this process's Prefect client at the server; call before anything imports prefect."""
    os.environ.update(client_environment(home_of(runs_dir), url=server.url, auth=server.auth))
