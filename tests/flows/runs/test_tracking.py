"""A tracking store that is silent, broken or full ends a training in one sentence, and the training goes on later."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from flows.planning.plans import Plan
from flows.records.states import standing_of
from flows.records.watcher import QuietWatcher
from flows.runs.experiment import run_experiment
from flows.service.server import free_port
from hacpo_core import tracking
from hacpo_core.errors import TrackingError
from hacpo_core.phases.runner import DirectRunner

SHORT = ("evaluate.during=[]", "evaluate.final=[]", "tracking.enabled=true")


def test_file_that_is_no_database_is_one_error_and_training_goes_on_without_mlflow(
    small_plan: Callable[..., Plan], tmp_path: Path
) -> None:
    (tmp_path / "text.db").write_text("no database, whatever its name says\n" * 200, encoding="utf-8")
    planned = small_plan("hacpo", *SHORT, f"tracking.uri=sqlite:///{tmp_path / 'text.db'}")
    with pytest.raises(TrackingError, match=r"text.db: file is not a database; fix it or set another"):
        run_experiment(planned, DirectRunner(), QuietWatcher())
    standing = standing_of(planned.root)
    assert standing.state == "failed"
    assert standing.reason.startswith("TrackingError: MLflow's store sqlite:///")
    without = small_plan("hacpo", *SHORT, "tracking.enabled=false")
    assert run_experiment(without, DirectRunner(), QuietWatcher()).root == planned.root


def test_full_disk_below_the_database_is_one_error_and_training_goes_on_where_there_is_room(
    small_plan: Callable[..., Plan],
    small_disk: Callable[[str], Path],
    empty_tracking: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    database = small_disk("1200k") / "mlflow.db"
    shutil.copy(empty_tracking, database)
    planned = small_plan("hacpo", *SHORT, f"tracking.uri=sqlite:///{database}")
    with pytest.raises(TrackingError, match=r"mlflow.db: .*(disk is full|disk I/O error|No space left)"):
        run_experiment(planned, DirectRunner(), QuietWatcher())
    assert "Traceback" not in capfd.readouterr().err, "MLflow logs what it raises"
    subprocess.run(["mount", "-o", "remount,size=16m", str(database.parent)], check=True)
    run_experiment(planned, DirectRunner(), QuietWatcher())
    assert standing_of(planned.root).state == "done"


@pytest.fixture
def few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "FIRST_RETRIES", 1)


@pytest.mark.timeout(180)  # MLflow's own patience is four minutes
@pytest.mark.usefixtures("few_seconds")
def test_silent_server_is_one_error_before_the_end_of_training(small_plan: Callable[..., Plan]) -> None:
    silent = f"http://127.0.0.1:{free_port(0)}"
    planned = small_plan("hacpo", *SHORT, f"tracking.uri={silent}")
    with pytest.raises(TrackingError, match=rf"{silent}: .*{silent[7:-6]}"):
        run_experiment(planned, DirectRunner(), QuietWatcher())
    assert standing_of(planned.root).state == "failed"


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
def test_answer_of_a_gateway_is_no_answer_of_mlflows(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(_Gateway, "code", code)
    with HTTPServer(("127.0.0.1", 0), _Gateway) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            planned = small_plan("hacpo", *SHORT, f"tracking.uri=http://127.0.0.1:{server.server_port}")
            with pytest.raises(TrackingError, match=str(code)):
                run_experiment(planned, DirectRunner(), QuietWatcher())
        finally:
            server.shutdown()
            thread.join()


def test_address_of_no_database_is_one_error_and_its_password_is_kept(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://hacpo:secret@127.0.0.1:notaport/mlflow")
    planned = small_plan("hacpo", *SHORT)
    with pytest.raises(TrackingError, match=r"postgresql://hacpo:…@127.0.0.1:notaport/mlflow: .*notaport"):
        run_experiment(planned, DirectRunner(), QuietWatcher())
    assert "secret" not in (planned.root / "failure.json").read_text(encoding="utf-8")
