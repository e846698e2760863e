"""A process of the worker that has imported what a training needs, and forks flow runs; only `launch` talks to it.

On a laptop the imports of a short training take as long as the training.

    worker ── launch ── environment, folder, output ─▶ this process ── keeper ── flow run
              launch ◀── begun, exit code ──────────────────────────── keeper
              launch ─── SIGTERM, SIGINT ────────────────────────────▶ keeper

A keeper kills its flow run when `launch` is gone.
"""

import gc
import importlib
import json
import os
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from flows.process import configure_process
from flows.records.versions import version_tags
from flows.service import launch
from flows.service.processes import end_child, end_with_parent, module_command

_MODULES = ("flows.runs.flow", "flows.runs.mlflow_store")
"""imported before the first fork"""


@dataclass(frozen=True, slots=True)
class Preloaded:
    """A running process of this module."""

    command: str
    """of a flow run, for Prefect's worker"""
    process: psutil.Process


@contextmanager
def preloaded(path: Path, environment: Mapping[str, str]) -> Iterator[Preloaded]:
    """Run a process of this module for the duration of the block.

    Args:
        path: of its socket.
        environment: of the process until it forks.
    """
    python, words = sys.executable, module_command(__name__, str(path))
    process = subprocess.Popen(words, env=environment, preexec_fn=end_with_parent, start_new_session=True)
    try:
        command = shlex.join([python, "-I", "-S", launch.__file__, str(path), python, "-m", "prefect.engine"])
        yield Preloaded(command, psutil.Process(process.pid))
    finally:
        end_child(process)
        path.unlink(missing_ok=True)


def fork_jobs(listener: socket.socket) -> dict[str, Any]:
    """Fork for each connection; returns in a flow run's process, with its environment and folder."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for keepers
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            return _keep(connection)
        connection.close()


def _keep(connection: socket.socket) -> dict[str, Any]:
    """Fork the flow run and stay until it has ended; returns in the flow run's process."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, files, _, _ = socket.recv_fds(connection, 8, 3)
    content = connection.recv(int.from_bytes(size, "little"), socket.MSG_WAITALL)
    try:
        connection.sendall(b"b")  # first, so that `launch` does not run its command as well
    except OSError:  # it is gone
        os._exit(0)
    pid = os.fork()
    if pid == 0:
        connection.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        job: dict[str, Any] = json.loads(content)
        return job
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    run = os.pidfd_open(pid)
    while run not in select.select([run, connection.fileno()], [], [])[0]:
        given = b""
        with suppress(ConnectionResetError):  # `launch` was killed before it read all
            given = connection.recv(1)
        os.kill(pid, given[0] if given else signal.SIGKILL)
        if not given:
            os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(OSError):
        connection.sendall(code.to_bytes(8, "little", signed=True))
    os._exit(0)


def main(path: str) -> None:
    """Import, fork, and run Prefect's engine in each fork, as its command would."""
    Path(path).unlink(missing_ok=True)  # of a process that was killed
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(launch.address(path))
    os.chmod(path, 0o600)
    listener.listen()  # a flow run may wait for the imports
    configure_process()
    from prefect.context import refresh_global_settings_context

    for module in _MODULES:
        importlib.import_module(module)
    version_tags()  # remembered: of the code that was imported
    gc.freeze()  # collecting would copy memory that all forks share
    job = fork_jobs(listener)
    os.environ.clear()
    os.environ.update(job["environment"])
    os.chdir(job["folder"])
    configure_process.cache_clear()  # the flow calls it, with its own environment and output
    refresh_global_settings_context()
    sys.argv = ["prefect.engine"]
    sys.modules.pop("prefect.engine", None)  # `python -m prefect.engine` executes it after Prefect has imported it, too
    runpy.run_module("prefect.engine", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1])
