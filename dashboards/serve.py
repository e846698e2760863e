"""`hacpo dashboard`: one page per runs folder, MLflow's beside it, and Prefect's server, which alone outlives it."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import uvicorn

from dashboards.app import LOOPBACK, create_app
from dashboards.mlflow_page import MlflowPage
from dashboards.security import Access, is_loopback
from flows.service.processes import Record, home_of, only_one, write_private
from flows.service.server import ensure_server, log_in_hint
from hacpo_core.errors import ConfigError, HacpoError

DASHBOARD_PORT = 8400
PORTS_TRIED = 20
STARTING_S = 10.0
"""how long a page that was started at the same moment may take to say where it listens"""


@dataclass(frozen=True, slots=True)
class Options:
    """Where the page listens and who may come in."""

    host: str = "127.0.0.1"
    port: int | None = None
    """None: 8400, or the next free one"""
    token_file: Path | None = None
    allow_hosts: Sequence[str] = ()
    """more names under which it answers, such as a reverse proxy's; one that is not loopback's needs a token"""
    starts_prefect: bool = True
    """and with the server the reconciler; both stay until `hacpo server stop`"""


def serve(runs_dir: Path, options: Options) -> None:
    """Serve until Ctrl-C or SIGTERM; where a page of this folder is served already, say where.

    Raises:
        ConfigError: the port is taken, the host is not this machine's, or the token's file cannot be used.
    """
    home = home_of(runs_dir)
    record = Record(home, "dashboard")
    with only_one(home / "dashboard.lock") as is_alone:
        if not is_alone:
            print(f"it runs already: {_running_url(record)}")
            return
        _serve(runs_dir, options, record)


def _serve(runs_dir: Path, options: Options, record: Record) -> None:
    token = find_token(runs_dir, options)
    listening = listen(options.host, options.port)
    port = listening.getsockname()[1]
    url = f"http://{'127.0.0.1' if options.host in ('0.0.0.0', '') else _in_url(options.host)}:{port}"
    mlflow = MlflowPage(runs_dir, Record(record.path.parent, "mlflow-page"))
    app = create_app(runs_dir, access=access_of(options, token), mlflow_url=lambda: mlflow.url, warm=True)
    settings = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, proxy_headers=False, ws="none",
        timeout_graceful_shutdown=2,
    )  # fmt: skip
    server = _Server(settings, mlflow)
    try:
        # uvicorn raises the signal again once it has shut down: this turns it into an end with a clean-up.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        record.write(os.getpid(), {"url": url})
        _say_where(runs_dir, url, options, token, mlflow)
        if options.starts_prefect:
            threading.Thread(target=start_prefect, args=(runs_dir,), name="prefect", daemon=True).start()
        server.run(sockets=[listening])
    except KeyboardInterrupt:
        pass
    finally:
        mlflow.end()
        record.path.unlink(missing_ok=True)
        listening.close()


class _Server(uvicorn.Server):
    """Looks after MLflow's page from the main thread: what a thread starts would end with the thread."""

    def __init__(self, config: uvicorn.Config, mlflow: MlflowPage) -> None:
        super().__init__(config)
        self._mlflow = mlflow

    async def on_tick(self, counter: int) -> bool:
        if counter % 20 == 0:
            self._mlflow.ensure()
        return await super().on_tick(counter)


def _running_url(record: Record) -> str:
    deadline = time.monotonic() + STARTING_S
    while time.monotonic() < deadline:
        found = record.read()
        if found is not None and record.process() is not None and "url" in found:
            return str(found["url"])
        time.sleep(0.1)
    return f"a process holds {record.path.with_suffix('.lock')} and does not say where it listens"


def access_of(options: Options, token: str | None) -> Access:
    """The names under which a page answers: loopback's, the host's, and for all addresses this machine's own."""
    names = {*LOOPBACK, *(name.lower() for name in options.allow_hosts)}
    if not is_loopback(options.host):
        names |= {options.host.lower(), socket.gethostname().lower()}
    if options.host in ("0.0.0.0", "::"):
        names |= {found.address.lower() for own in psutil.net_if_addrs().values() for found in own}
    return Access(frozenset(names), token)


def token_path(runs_dir: Path, options: Options) -> Path:
    """File of the token."""
    return options.token_file or home_of(runs_dir) / "dashboard-token.txt"


def find_token(runs_dir: Path, options: Options) -> str | None:
    """The token that opens the page: required where others reach it, made once; else only where a file was named.

    Raises:
        ConfigError: the named file is missing, empty, or readable by others.
    """
    # A page under another name has a proxy before it: what comes from there looks as if it came from this machine.
    if all(map(is_loopback, (options.host, *options.allow_hosts))) and options.token_file is None:
        return None
    path = token_path(runs_dir, options)
    if options.token_file is None and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_private(path, f"{secrets.token_urlsafe(24)}\n")
    try:
        token = path.read_text(encoding="utf-8").strip()
        is_open = bool(path.stat().st_mode & 0o077)
    except OSError as error:
        raise ConfigError(f"--token-file: cannot read {path}: {error.strerror}") from error
    if is_open:
        raise ConfigError(f"--token-file: others can read {path}; `chmod 600` it")
    if len(token) < 16:
        raise ConfigError(f"--token-file: {path} holds {len(token)} characters, expected at least 16")
    return token


def listen(host: str, port: int | None) -> socket.socket:
    """A listening socket: at this port, or without one at the preferred port or the next that is free.

    Raises:
        ConfigError: the port is taken, or the host is no address of this machine.
    """
    ports = [port] if port is not None else [*range(DASHBOARD_PORT, DASHBOARD_PORT + PORTS_TRIED), 0]
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ConfigError(f"--host: got {host!r}, expected a name or an address of this machine") from error
    for number in ports:
        found = socket.socket(family)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((address[0], number))
            found.listen(128)
            return found
        except OSError as error:
            found.close()
            reason = error
    raise ConfigError(f"--port: cannot listen on {host} port {ports[0]}: {reason.strerror}; choose another") from reason


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def start_prefect(runs_dir: Path) -> None:
    """Start or find the folder's Prefect server and say where it listens; the page goes on without it."""
    try:
        server = ensure_server(runs_dir)
    except (HacpoError, OSError) as error:
        print(f"Prefect    does not start: {error}", flush=True)
        return
    print(f"Prefect    {server.url}  ({log_in_hint(runs_dir)})", flush=True)


def _say_where(runs_dir: Path, url: str, options: Options, token: str | None, mlflow: MlflowPage) -> None:
    print(f"dashboard  {url}  (Ctrl-C ends it)")
    if options.port is None and not url.endswith(f":{DASHBOARD_PORT}"):
        print(f"           port {DASHBOARD_PORT} is taken, so it is another one")
    if token is not None:
        print(f"           log-in: the text in {token_path(runs_dir, options)}")
    if not is_loopback(options.host):
        print("           not encrypted: put a proxy with TLS before it where others could listen")
    mlflow.ensure()
    waiting = "starts with the first run that is tracked"
    ready = "  (ready in about 15 s)" if not mlflow.server else ""
    print(f"MLflow     {f'{mlflow.url}{ready}' if mlflow.url else waiting}", flush=True)
