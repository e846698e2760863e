"""Find the `hacpo worker` of a runs folder on this machine, run it, or run one for the duration of a command."""

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import psutil

from flows.records.mlflow_address import tracking_uri
from flows.service.gpu_locks import has_gpu_driver, visible_devices
from flows.service.prefect_server import PrefectServer, client_environment, ensure_server, server_process
from flows.service.preloaded import preloaded
from flows.service.processes import (
    end_child,
    end_with_parent,
    home_of,
    module_command,
    only_one,
    open_log,
    worker_record,
)
from hacpo_core.config.threads import SLOTS, usable_cores
from hacpo_core.errors import EngineError

_log = logging.getLogger(__name__)
RUNS_DIR = "HACPO_RUNS_DIR"
"""environment variable with the folder of all runs, for flows that a worker starts"""
MAX_DEATHS = 5
"""number of times that a command restarts its worker if it is killed"""


def default_slots() -> int:
    """Number of concurrent experiments: one per GPU; without GPUs, one per core."""
    return len(visible_devices()) or usable_cores()


def find_worker(runs_dir: Path) -> psutil.Process | None:
    """The `hacpo worker` of this runs folder on this machine."""
    return worker_record(runs_dir).process()


def run_worker(runs_dir: Path, *, num_slots: int) -> bool:
    """Run a worker until SIGTERM or Ctrl-C, then stop it and its experiments, which can be resumed later.

    This process's Prefect client is set up here, so nothing may have imported prefect before.

    Returns:
        False if a worker of this folder is already running; then nothing is done.

    Raises:
        ServerError: the server does not start, rejects the credentials, or runs on another machine.
        ConfigError: MLFLOW_TRACKING_URI contains a password, which error messages would show.
        KeyboardInterrupt: on SIGTERM and Ctrl-C, once all has ended.
    """
    tracking_uri(None, runs_dir)
    record = worker_record(runs_dir)
    with only_one(record.path.with_suffix(".lock")) as is_alone:
        if not is_alone:
            return False
        record.write(os.getpid(), {"slots": num_slots})  # first, so that no other is started
        try:
            is_over = threading.Event()
            for number in (signal.SIGTERM, signal.SIGINT):  # no exception, which any library's code could lose
                signal.signal(number, lambda *_: is_over.set())
            path = record.path.with_suffix(".socket")
            # Another home than the folder's: importing Prefect would make that again after it was deleted.
            environment = os.environ | client_environment(Path("/"), url="", auth="")
            with nullcontext() if has_gpu_driver() else preloaded(path, environment) as forks:
                os.environ |= worker_environment(runs_dir, ensure_server(runs_dir), num_slots)
                from flows.service.worker_loop import serve

                serve(runs_dir, num_slots, is_over, forks)
            if is_over.is_set():
                raise KeyboardInterrupt
        finally:
            if (record.read() or {}).get("pid") == os.getpid():  # in a new folder, it may be another worker's
                record.path.unlink(missing_ok=True)
    return True


def worker_environment(runs_dir: Path, server: PrefectServer, num_slots: int) -> dict[str, str]:
    """Variables of the worker and of the experiments that it starts."""
    return {
        **os.environ,
        **client_environment(home_of(runs_dir), url=server.url, auth=server.auth),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        RUNS_DIR: str(runs_dir.absolute()),
        SLOTS: str(num_slots),
        "PREFECT_WORKER_QUERY_SECONDS": "0.5",
        "PREFECT_WORKER_HEARTBEAT_SECONDS": "10",
        "PREFECT_WORKER_ENABLE_CANCELLATION": "true",
        "PREFECT_WORKER_CANCELLATION_POLL_SECONDS": "5",
    }


@contextmanager
def worker_here(runs_dir: Path, *, num_slots: int) -> Iterator[Callable[[], None]]:
    """Run a worker for the duration of the block, unless one already serves this folder.

    Yields a function to be called regularly. It starts a worker if the other one has ended or if the worker of this
    block was killed, and raises EngineError, with the last lines of the log, if the worker of this block has failed
    or was killed more than `MAX_DEATHS` times.
    """
    command = module_command("flows.cli", "worker", "--runs-dir", str(runs_dir), "--slots", str(num_slots))
    home = home_of(runs_dir)
    home.mkdir(parents=True, exist_ok=True)
    log_file = home / "worker.log"
    process: subprocess.Popen[bytes] | None = None
    log_offset = num_deaths = 0

    def check() -> None:
        nonlocal process, log_offset, num_deaths
        if process is not None and process.poll() is None:  # it may still be importing, without a record
            return
        if process is not None and process.returncode < 0 and num_deaths < MAX_DEATHS:
            num_deaths += 1
            _log.warning("the worker was killed by %s; starting another one", signal.Signals(-process.returncode).name)
            process = None  # counted
        elif process is not None and process.returncode:  # 0: another worker of this folder was faster
            last_lines = log_file.read_bytes()[log_offset:].decode(errors="replace").strip().splitlines()[-3:]
            raise EngineError(
                f"the worker ended (exit code {process.returncode}; {log_file}): {' / '.join(last_lines)}"
            )
        if find_worker(runs_dir) is not None:
            return
        with open_log(log_file) as log:
            log_offset = log.tell()
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )

    try:
        check()
        yield check
    finally:
        if process is not None:
            end_child(process, kept=[server] if (server := server_process(runs_dir)) is not None else [])
