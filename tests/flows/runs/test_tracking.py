"""A tracking store that is silent, broken or full: training ends well, says so once, and the store gets all later."""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from multiprocessing import get_context
from pathlib import Path
from threading import Thread

import pytest
from mlflow.entities import Metric
from mlflow.tracking import MlflowClient

from flows.planning.plans import Plan
from flows.records.mlflow_store import prepare_store
from flows.records.states import experiment_status
from flows.records.unsent import has_unsent
from flows.runs.experiment import run_experiment
from flows.runs.tracking import send_late
from flows.service.server import free_port
from hacpo_core.phases.runner import DirectRunner
from tests.postgres import Postgres, programs

pytestmark = pytest.mark.slow

SHORT = ("evaluate.during=[]", "evaluate.final=[]", "tracking.enabled=true")


@pytest.fixture
def few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "2")


def ends_well_and_warns(planned: Plan, message: str, caplog: pytest.LogCaptureFixture) -> None:
    run_experiment(planned, DirectRunner())
    assert experiment_status(planned.root).state == "done"
    assert has_unsent(planned.root), "the next chance to send it is known"
    assert message in caplog.text
    assert "not all was sent to MLflow" in caplog.text


def test_file_that_is_no_database_ends_no_training(
    small_plan: Callable[..., Plan], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "text.db").write_text("no database, whatever its name says\n" * 200, encoding="utf-8")
    planned = small_plan("hacpo", *SHORT, f"tracking.uri=sqlite:///{tmp_path / 'text.db'}")
    ends_well_and_warns(planned, "text.db: file is not a database; fix it or set another", caplog)


def test_full_disk_below_the_database_ends_no_training_and_gets_all_where_there_is_room(
    small_plan: Callable[..., Plan],
    small_disk: Callable[[str], Path],
    empty_tracking: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    database = small_disk("1200k") / "mlflow.db"
    shutil.copy(empty_tracking, database)
    planned = small_plan("hacpo", *SHORT, f"tracking.uri=sqlite:///{database}")
    ends_well_and_warns(planned, "mlflow.db", caplog)
    subprocess.run(["mount", "-o", "remount,size=16m", str(database.parent)], check=True)
    assert send_late(planned)
    assert not has_unsent(planned.root)


@pytest.mark.usefixtures("few_seconds")
def test_server_that_is_gone_ends_no_training(
    small_plan: Callable[..., Plan], caplog: pytest.LogCaptureFixture
) -> None:
    address = f"http://127.0.0.1:{free_port(0)}"
    ends_well_and_warns(small_plan("hacpo", *SHORT, f"tracking.uri={address}"), address, caplog)


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port where something accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.mark.slow
@pytest.mark.usefixtures("few_seconds")
def test_silent_postgresql_ends_no_training(
    small_plan: Callable[..., Plan],
    monkeypatch: pytest.MonkeyPatch,
    silent_port: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pytest.importorskip("psycopg2")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"postgresql+psycopg2://hacpo:secret@127.0.0.1:{silent_port}/mlflow")
    ends_well_and_warns(small_plan("hacpo", *SHORT), "timeout expired", caplog)
    assert "secret" not in caplog.text


class _Gateway(BaseHTTPRequestHandler):
    """What stands before a server that is gone, or asks for a log-in that is missing."""

    code = 503

    def do_POST(self) -> None:
        self.send_error(self.code)

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.usefixtures("few_seconds")
@pytest.mark.parametrize("code", [401, 503])
def test_gateway_in_place_of_mlflow_ends_no_training(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_Gateway, "code", code)
    with HTTPServer(("127.0.0.1", 0), _Gateway) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            planned = small_plan("hacpo", *SHORT, f"tracking.uri=http://127.0.0.1:{server.server_port}")
            ends_well_and_warns(planned, str(code), caplog)
        finally:
            server.shutdown()
            thread.join()


def test_address_of_no_database_ends_no_training_and_its_password_is_kept(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://hacpo:secret@127.0.0.1:notaport/mlflow")
    ends_well_and_warns(small_plan("hacpo", *SHORT), "postgresql://hacpo:…@127.0.0.1:notaport/mlflow", caplog)
    assert "secret" not in caplog.text


def log_many(uri: str, run_id: str, seed: int) -> None:
    """Log 600 metrics five times, each time in another order."""
    client, order = MlflowClient(uri), random.Random(seed)
    for step in range(5):
        keys = [f"key/{number}" for number in range(600)]
        order.shuffle(keys)
        client.log_batch(run_id, metrics=[Metric(key, 1.0, 0, step) for key in keys], synchronous=True)


@pytest.mark.system
@pytest.mark.skipif(programs() is None, reason="PostgreSQL is not installed")
def test_two_writers_of_many_keys_of_one_run_do_not_lock_each_other_out() -> None:
    pytest.importorskip("psycopg2")
    database = Postgres()
    try:
        database.sql("create database mlflow")
        uri = f"postgresql+psycopg2://postgres:{database.password}@127.0.0.1:{database.port}/mlflow"
        prepare_store(uri)
        client = MlflowClient(uri)
        run_id = client.create_run(client.create_experiment("two writers")).info.run_id
        with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
            for writing in [pool.submit(log_many, uri, run_id, seed) for seed in (1, 2)]:
                writing.result()
        assert len(client.get_run(run_id).data.metrics) == 600
        assert len(client.get_metric_history(run_id, "key/0")) == 5, "equal points are one"
    finally:
        database.close()
