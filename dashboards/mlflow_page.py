"""MLflow's own page: a tracking server's, else one on loopback, a child that lives no longer than this process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

from flows.service.processes import Record, end_family, end_with_parent, free_port
from hacpo_core.config.addresses import has_password, is_server, sqlite_path

_MLFLOW_PORT = 5000
PAUSE_S = 60.0
"""between two starts of a page that ends by itself"""
_SETTINGS = {"DO_NOT_TRACK": "1", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # its job runner is eight processes


class MlflowPage:
    """Starts with the database of a runs folder, and is ended with the dashboard; where a server tracks, it is that."""

    def __init__(self, runs_dir: Path, record: Record) -> None:
        self._record = record
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = -PAUSE_S
        self._port = 0
        configured = os.environ.get("MLFLOW_TRACKING_URI", "")
        is_page = is_server(configured) and not has_password(configured)
        self.server = configured.rstrip("/") if is_page else ""
        """address of the tracking server, "" where none is configured"""
        own = f"sqlite:///{runs_dir.absolute() / 'mlflow.db'}"
        self._store = own if not configured or is_server(configured) else configured
        record.end()  # what a dashboard that was killed left

    @property
    def url(self) -> str:
        """Where it listens, "" where it does not run."""
        if self.server:
            return self.server
        is_alive = self._process is not None and self._process.poll() is None
        return f"http://127.0.0.1:{self._port}" if is_alive else ""

    def ensure(self) -> None:
        """Start it if there is something to show and it does not run; to be called from the main thread."""
        database = sqlite_path(self._store)
        is_missing = database is not None and not database.is_file()
        if self.url or is_missing or time.monotonic() - self._started_at < PAUSE_S:
            return
        self._started_at = time.monotonic()
        self._port = free_port(_MLFLOW_PORT)
        arguments = f"-m mlflow ui --host 127.0.0.1 --port {self._port} --workers 1"
        command = [sys.executable, *arguments.split()]
        self._record.path.parent.mkdir(parents=True, exist_ok=True)
        with self._record.path.with_suffix(".log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **_SETTINGS, "MLFLOW_BACKEND_STORE_URI": self._store},  # it may hold a password
                preexec_fn=end_with_parent,
            )
        self._record.write(self._process.pid, {"port": self._port})

    def end(self) -> None:
        """End it and what it started."""
        if self._process is not None:
            if self._process.poll() is None:
                end_family(psutil.Process(self._process.pid))
            self._process.wait()
        self._record.path.unlink(missing_ok=True)
