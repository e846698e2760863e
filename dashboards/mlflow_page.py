"""MLflow's web page: that of a tracking server, or a local one that runs as a child of the dashboard."""

import os
import subprocess
import time
from pathlib import Path

from flows.records.mlflow_address import sqlite_path, sqlite_uri
from flows.service.processes import Record, end_child, end_with_parent, free_port, module_command, open_log
from hacpo_core.config.addresses import has_password, is_server

_MLFLOW_PORT = 5000
PAUSE_S = 60.0
"""minimum time between two starts, in case MLflow exits by itself"""
_SETTINGS = {
    "DO_NOT_TRACK": "1",
    "PYTHONSAFEPATH": "1",  # for the process that it starts
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # the job runner starts eight processes
}


class MlflowPage:
    """MLflow's page for a runs folder, started once its database exists and stopped with the dashboard.

    If a tracking server is configured, nothing is started, and the address is that of the server.
    """

    def __init__(self, runs_dir: Path, record: Record) -> None:
        self._record = record
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = -PAUSE_S
        self._port = 0
        tracking_uri = os.environ.get("MLFLOW_TRACKING_URI", "")
        is_page = is_server(tracking_uri) and not has_password(tracking_uri)
        self.server = tracking_uri.rstrip("/") if is_page else ""
        """address of the tracking server, "" if none is configured"""
        default_store = sqlite_uri(runs_dir.absolute() / "mlflow.db")
        self._store = default_store if not tracking_uri or is_server(tracking_uri) else tracking_uri
        record.end()  # left over from a dashboard that was killed

    @property
    def url(self) -> str:
        """Address of the page, "" if it does not run."""
        if self.server:
            return self.server
        is_alive = self._process is not None and self._process.poll() is None
        return f"http://127.0.0.1:{self._port}" if is_alive else ""

    def ensure(self) -> None:
        """Start the page if it does not run and there is a database to show. Call from the main thread."""
        database = sqlite_path(self._store)
        is_missing = database is not None and not database.is_file()
        if self.url or is_missing or time.monotonic() - self._started_at < PAUSE_S:
            return
        self._started_at = time.monotonic()
        self._port = free_port(_MLFLOW_PORT)
        command = module_command("mlflow", *f"ui --host 127.0.0.1 --port {self._port} --workers 1".split())
        with open_log(self._record.path.with_suffix(".log")) as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **_SETTINGS, "MLFLOW_BACKEND_STORE_URI": self._store},  # may contain a password
                preexec_fn=end_with_parent,
            )
        self._record.write(self._process.pid, {"port": self._port})

    def end(self) -> None:
        """Stop the page and its child processes."""
        if self._process is not None:
            end_child(self._process)
        self._record.path.unlink(missing_ok=True)
