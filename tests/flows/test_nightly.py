"""What a schedule runs: a worker plans a grid and trains it, with nobody at the terminal."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.records.states import experiment_status
from flows.service.prefect_server import client_environment, ensure_server, stop_server
from flows.service.processes import home_of
from flows.service.schedule import Schedule
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.system]
LIMIT_S = 300.0


@pytest.fixture
def runs_dir(small_models: Path, tmp_path: Path, migrated: Callable[[Path], None]) -> Iterator[Path]:
    """A runs folder with a grid of one method, a server and a worker."""
    (tmp_path / "models").symlink_to(small_models / "models")
    entry = f"{{pairs: [{small_models / 'small.yaml'}], methods: [hacpo]}}"
    (tmp_path / "grid.yaml").write_text(f"title: small\nentries: [{entry}]\nreport: {{table: plain}}", encoding="utf-8")
    migrated(tmp_path)
    words = [sys.executable, "-m", "flows.cli", "worker", "--runs-dir", str(tmp_path), "--slots", "1"]
    with (tmp_path / "worker.log").open("w") as log:
        worker = subprocess.Popen(words, stdout=log, stderr=log)
    yield tmp_path
    worker.terminate()
    worker.wait(60)
    stop_server(tmp_path)


def run(schedule: Schedule, deployment: str, **parameters: Any) -> None:
    """Have the worker run a deployment to its end."""
    client = schedule.client
    begun = client.create_flow_run_from_deployment(
        client.read_deployment_by_name(deployment).id, parameters=parameters, name=deployment
    )
    wait_until(lambda: client.read_flow_run(begun.id).state.is_final(), deployment, limit_s=LIMIT_S)  # type: ignore[union-attr]
    state = client.read_flow_run(begun.id).state
    assert state is not None
    assert state.is_completed(), state.message


def test_worker_plans_and_trains_a_grid(runs_dir: Path) -> None:
    server = ensure_server(runs_dir)
    schedule = Schedule(server, runs_dir)
    deployed = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
    settings = client_environment(home_of(runs_dir), url=server.url, auth=server.auth)
    wait_until(lambda: "started!" in (runs_dir / "worker.log").read_text(), "no worker", limit_s=LIMIT_S)
    done = subprocess.run(deployed, env=os.environ | settings, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr

    run(schedule, "grid/grid", grid=str(runs_dir / "grid.yaml"))
    (experiment,) = schedule.runs()
    wait_until(lambda: experiment_status(schedule.root(experiment)).state == "done", "never trained", limit_s=LIMIT_S)
    wait_until(lambda: schedule.runs()[experiment].state == "Completed", "never reported", limit_s=LIMIT_S)
