"""`hacpo dashboard`: serves the dashboard of a runs folder, and starts MLflow's page and the Prefect server.

Only the Prefect server keeps running when the dashboard stops.
"""

import os
import secrets
import signal
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import uvicorn

from dashboards.app import LOOPBACK, create_app
from dashboards.mlflow_page import MlflowPage
from dashboards.security import Access, is_loopback
from flows.service.prefect_server import ensure_server, keep_server, log_in_hint
from flows.service.processes import Record, home_of, only_one, write_private
from hacpo_core.errors import ConfigError, HacpoError

DASHBOARD_PORT = 8400
PORTS_TRIED = 20


@dataclass(frozen=True, slots=True)
class Options:
    """Address of the dashboard and who may use it."""

    host: str = "127.0.0.1"
    port: int | None = None
    """None: 8400, or the next free port"""
    token_file: Path | None = None
    allow_hosts: Sequence[str] = ()
    """additional accepted host names, such as a reverse proxy's; names other than loopback's require a token"""
    starts_prefect: bool = True
    """whether to start the Prefect server, which runs until `hacpo server stop`"""


def serve(runs_dir: Path, options: Options) -> None:
    """Serve until Ctrl-C or SIGTERM; if a dashboard of this folder is already running, print its address.

    Raises:
        ConfigError: the port is in use, the host is not an address of this machine, the token file cannot be used.
    """
    home = home_of(runs_dir)
    record = Record(home, "dashboard")
    with only_one(home / "dashboard.lock") as is_alone:
        if not is_alone:
            running = record.read() or {}
            print(f"already running: {running.get('url', f'address unknown; a process holds {record.path}')}")
            return
        _serve(runs_dir, options, record)


def _serve(runs_dir: Path, options: Options, record: Record) -> None:
    token = find_token(runs_dir, options)
    listening = listen(options.host, options.port)
    port = listening.getsockname()[1]
    url = f"http://{'127.0.0.1' if options.host in ('0.0.0.0', '') else _in_url(options.host)}:{port}"
    mlflow = MlflowPage(runs_dir, Record(record.path.parent, "mlflow-page"))
    app = create_app(runs_dir, access=access_of(options, token), mlflow_url=lambda: mlflow.url)
    settings = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, proxy_headers=False, ws="none",
        timeout_graceful_shutdown=2,
    )  # fmt: skip
    server = _Server(settings, mlflow)
    try:
        # uvicorn raises the signal again after its shutdown; as KeyboardInterrupt it runs the clean-up below.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        record.write(os.getpid(), {"url": url})
        _print_addresses(runs_dir, url, options, token, mlflow)
        if options.starts_prefect:
            threading.Thread(target=_keep_prefect, args=(runs_dir,), name="prefect", daemon=True).start()
        server.run(sockets=[listening])
    except KeyboardInterrupt:
        pass
    finally:
        mlflow.end()
        record.path.unlink(missing_ok=True)
        listening.close()


class _Server(uvicorn.Server):
    """Starts MLflow's page from the main thread: a child started by another thread would end with that thread."""

    def __init__(self, config: uvicorn.Config, mlflow: MlflowPage) -> None:
        super().__init__(config)
        self._mlflow = mlflow

    async def on_tick(self, counter: int) -> bool:
        if counter % 20 == 0:
            self._mlflow.ensure()
        return await super().on_tick(counter)


def access_of(options: Options, token: str | None) -> Access:
    """Accepted host names: loopback, the host, `allow_hosts`, and for a wildcard address all of this machine's."""
    names = {*LOOPBACK, *(name.lower() for name in options.allow_hosts)}
    if not is_loopback(options.host):
        names |= {options.host.lower(), socket.gethostname().lower()}
    if options.host in ("0.0.0.0", "::"):
        names |= {entry.address.lower() for interface in psutil.net_if_addrs().values() for entry in interface}
    return Access(frozenset(names), token)


def token_path(runs_dir: Path, options: Options) -> Path:
    """Path of the token file."""
    return options.token_file or home_of(runs_dir) / "dashboard-token.txt"


def find_token(runs_dir: Path, options: Options) -> str | None:
    """The token required to use the dashboard, or None if none is required.

    A token is required off loopback, and if a token file is given. Without a file, one is generated and kept.

    Raises:
        ConfigError: the token file cannot be read, is readable by others, or holds too short a token.
    """
    # Additional host names imply a proxy, and requests through it appear to come from this machine.
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
        raise ConfigError(f"--token-file: cannot read {path}: {error.strerror}; name a readable file") from error
    if is_open:
        raise ConfigError(f"--token-file: others can read {path}; run `chmod 600` on it")
    if len(token) < 16:
        raise ConfigError(
            f"--token-file: {path} holds {len(token)} characters, expected at least 16; write a longer token"
        )
    return token


def listen(host: str, port: int | None) -> socket.socket:
    """A listening socket on this port; if None, on the preferred port or the next free one.

    Raises:
        ConfigError: the port is in use, or the host is not an address of this machine.
    """
    ports = [port] if port is not None else [*range(DASHBOARD_PORT, DASHBOARD_PORT + PORTS_TRIED), 0]
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ConfigError(f"--host: got {host!r}, expected a name or an address of this machine") from error
    for number in ports:
        listening = socket.socket(family)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((address[0], number))
            listening.listen(128)
            return listening
        except OSError as error:
            listening.close()
            reason = error
    raise ConfigError(f"--port: cannot listen on {host} port {ports[0]}: {reason.strerror}; choose another") from reason


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _keep_prefect(runs_dir: Path) -> None:
    if start_prefect(runs_dir):
        keep_server(runs_dir, threading.Event())


def start_prefect(runs_dir: Path) -> bool:
    """Start or find the folder's Prefect server and print its address; if that fails, the dashboard runs without it."""
    try:
        server = ensure_server(runs_dir)
    except (HacpoError, OSError) as error:
        print(f"Prefect    could not be started: {error}", flush=True)
        return False
    print(f"Prefect    {server.url}  ({log_in_hint(runs_dir)})", flush=True)
    return True


def _print_addresses(runs_dir: Path, url: str, options: Options, token: str | None, mlflow: MlflowPage) -> None:
    print(f"dashboard  {url}  (stop it with Ctrl-C)")
    if options.port is None and not url.endswith(f":{DASHBOARD_PORT}"):
        print(f"           port {DASHBOARD_PORT} is in use, so another one was chosen")
    if token is not None:
        print(f"           log-in: token in {token_path(runs_dir, options)}")
    if not is_loopback(options.host):
        print("           not encrypted; on an untrusted network, put a TLS proxy in front of it")
    mlflow.ensure()
    waiting_text = "starts with the first tracked run"
    ready = "  (ready in about 15 s)" if not mlflow.server else ""
    print(f"MLflow     {f'{mlflow.url}{ready}' if mlflow.url else waiting_text}", flush=True)
