"""Processes for flow runs that need not import anything: one process imports it all and forks for each.

    hacpo worker ─starts─▶ fork server ──forks──▶ flow run ◀─┐ signals, environment, folder, standard streams;
         └─▶ Prefect's worker ──starts──▶ flows.service.launch ──────┘ as one ends, so does the other

Prefect, its cancellation and `flows.service.host` know the run by the process of `flows.service.launch`.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import json
import logging
import os
import runpy
import secrets
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy

from flows.service.launch import FORK_SERVER, FORKED, LENGTH, STATUS, is_own
from flows.service.processes import end_with_parent

_log = logging.getLogger(__name__)
_OF_ONE_RUN = "PREFECT__"
"""begins the names of variables that a fork may have otherwise than its server: no import reads them"""
_REQUEST_LIMIT_S = 1.0


class ForkServer:
    """A fork server, for as long as nobody ends it and this process lives; what it forked goes on."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Start it; it imports for some seconds, and requests wait meanwhile.

        Args:
            environment: of the server and of every process that it forks.
        """
        address = f"hacpo-{secrets.token_hex(16)}"
        self._is_mourned = False
        self.variables = {FORK_SERVER: address}
        """for the environment of `flows.service.launch`"""
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"\0{address}")
            listener.listen()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "flows.service.fork_server", str(listener.fileno())],
                env={**environment, **self.variables},
                pass_fds=[listener.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C gets to the forks through flows.service.launch, once
                preexec_fn=end_with_parent,
            )

    def check(self) -> None:
        """Say, once, that it has died; one that has ended had a reason to, a GPU."""
        if self._process.poll() and not self._is_mourned:
            self._is_mourned = True
            _log.warning(
                "the fork server died (exit code %d); flow runs import for themselves", self._process.returncode
            )

    def end(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait()


@dataclass(frozen=True, slots=True)
class _Request:
    """What `flows.service.launch` sent, `streams` are its standard streams, and the connection to it."""

    arguments: list[str]
    environment: dict[str, str]
    folder: str
    streams: list[int]
    launcher: socket.socket


def main() -> None:
    """Import what flow runs need, then fork for each; in a fork, run its module."""
    environment = dict(os.environ)  # before imports add to it
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        from flows.service.slots import visible_devices

        if visible_devices():  # no fork can inherit CUDA, and an engine takes longer to start there than imports
            return
        _import_all()
        gc.freeze()  # no fork's collector touches, and so copies, what all share
        request = _serve(listener, [environment, environment | _as_prefect_writes_them()])
    _become(request)
    sys.modules.pop(request.arguments[0], None)  # imported, it has not run
    runpy.run_module(request.arguments[0], run_name="__main__", alter_sys=True)


def _import_all() -> None:
    """Import what a flow run imports until its first phase, and to draw its figures."""
    for name in ("flows.runs.runner", "flows.runs.evaluate", "flows.runs.figures", "prefect.flow_engine"):
        importlib.import_module(name)
    from hacpo_core.tracking import import_store
    from hacpo_core.versions import version_tags

    import_store()
    version_tags()  # remembered: of this code, whatever the checkout holds when a fork runs


def _as_prefect_writes_them() -> dict[str, str]:
    """Settings of this process, in the form in which Prefect's worker hands the same settings to a run."""
    from prefect.settings import get_current_settings

    return get_current_settings().to_environment_variables(exclude_unset=True)


def _serve(listener: socket.socket, environments: Sequence[Mapping[str, str]]) -> _Request:
    """Fork for every request that can be granted, tell its launcher how the fork ended; returns in a fork."""
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.data is not None:
                    selector.unregister(key.fd)
                    _report_end(key.fd, key.data)
                    continue
                try:
                    request = _fork(listener, selector, environments)
                except OSError as error:
                    _log.warning("no process can be forked now, so a flow run imports for itself: %s", error)
                    time.sleep(1.0)
                    continue
                if request is not None:
                    others = [other for other in selector.get_map().values() if other.data is not None]
                    for other in others:
                        os.close(other.fd)
                        other.data.close()
                    return request


def _fork(
    listener: socket.socket, selector: selectors.BaseSelector, environments: Sequence[Mapping[str, str]]
) -> _Request | None:
    """Fork for the next launcher, or let it run its module itself; its request, in the fork alone.

    Raises:
        OSError: too many processes or open files.
    """
    launcher, _ = listener.accept()
    request = _receive(launcher, environments)
    if request is None:
        launcher.close()
        return None
    try:
        pid = os.fork()
        if pid == 0:
            return request
        selector.register(os.pidfd_open(pid), selectors.EVENT_READ, launcher)
    except OSError:
        _close(request.streams)
        launcher.close()
        raise
    _close(request.streams)
    return None


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _receive(launcher: socket.socket, environments: Sequence[Mapping[str, str]]) -> _Request | None:
    """What a launcher asks for; None for a stranger, or where a fork would not be what a fresh process is."""
    if not is_own(launcher):
        return None
    launcher.settimeout(_REQUEST_LIMIT_S)
    streams: list[int] = []
    try:
        length, streams, _, _ = socket.recv_fds(launcher, LENGTH.size, 3)
        with launcher.makefile("rb") as file:
            request = _Request(**json.loads(file.read(*LENGTH.unpack(length))), streams=streams, launcher=launcher)
        names = set().union(request.environment, *environments)
        others = sorted(
            name
            for name in names
            if request.environment.get(name) not in [known.get(name) for known in environments]
            and not name.startswith(_OF_ONE_RUN)
        )
        if len(streams) != 3:
            raise ValueError(f"got {len(streams)} standard streams")
        if not others:
            launcher.settimeout(None)
            return request
        _log.warning("a flow run imports for itself: its environment has another %s than this worker's", others)
    except (OSError, ValueError, TypeError, struct.error) as error:
        _log.warning("a request that is none: %s", error)
    _close(streams)
    return None


def _report_end(fork: int, launcher: socket.socket) -> None:
    end = os.waitid(os.P_PIDFD, fork, os.WEXITED)
    assert end is not None, "only what ended is reported"
    code = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
    os.close(fork)
    with launcher, suppress(OSError):  # of a launcher that was killed
        launcher.sendall(STATUS.pack(code))


def _become(request: _Request) -> None:
    """Make this fork what the launcher's process would be; the kernel kills it when that process is gone."""
    launcher = request.launcher.detach()
    fcntl.fcntl(launcher, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(launcher, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(launcher, fcntl.F_SETFL, os.O_ASYNC)
    with socket.socket(fileno=os.dup(launcher)) as connection:
        with suppress(BlockingIOError):
            if not connection.recv(1, socket.MSG_DONTWAIT):
                os._exit(1)
        # From here on the launcher does not run the module itself, whatever becomes of the server.
        socket.send_fds(connection, [FORKED], [os.pidfd_open(os.getpid())])
    for target, stream in enumerate(request.streams):
        os.dup2(stream, target)
    _close(request.streams)
    os.chdir(request.folder)
    for name in [name for name in os.environ if name.startswith(_OF_ONE_RUN)]:
        del os.environ[name]
    os.environ |= {name: value for name, value in request.environment.items() if name.startswith(_OF_ONE_RUN)}
    sys.argv = request.arguments
    numpy.random.seed()  # Python's own generator does that by itself


if __name__ == "__main__":
    main()
