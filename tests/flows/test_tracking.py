"""A tracking store that is silent, broken or full ends a training in one sentence, and the training goes on later."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from flows import tracking
from flows.cli import main
from flows.display import QuietWatcher
from flows.experiment import run_experiment
from flows.plans import Plan
from flows.server import free_port
from flows.states import standing_of
from hacpo_core.addresses import store_error
from hacpo_core.errors import ConfigError, TrackingError
from hacpo_core.phases import DirectRunner

SHORT = ("evaluate.during=[]", "evaluate.final=[]")


@pytest.fixture
def silent() -> str:
    return f"http://127.0.0.1:{free_port(0)}"


def test_file_that_is_no_database_is_one_error_and_training_goes_on_without_mlflow(
    small_plan: Callable[..., Plan], tmp_path: Path
) -> None:
    (tmp_path / "text.db").write_text("no database, whatever its name says\n" * 200, encoding="utf-8")
    words = ("tracking.enabled=true", f"tracking.uri=sqlite:///{tmp_path / 'text.db'}")
    planned = small_plan("hacpo", *SHORT, *words)
    with pytest.raises(TrackingError, match=r"text.db: file is not a database; mend that or name another"):
        run_experiment(planned, DirectRunner(), QuietWatcher())
    standing = standing_of(planned.root)
    assert standing.state == "failed"
    assert standing.reason.startswith("TrackingError: MLflow's store sqlite:///")
    assert run_experiment(small_plan("hacpo", *SHORT), DirectRunner(), QuietWatcher()).root == planned.root


def test_full_disk_below_the_database_is_one_error_and_the_same_command_goes_on(
    small_plan: Callable[..., Plan],
    small_disk: Callable[[str], Path],
    empty_tracking: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    database = small_disk("1200k") / "mlflow.db"
    shutil.copy(empty_tracking, database)
    planned = small_plan("hacpo", *SHORT, "tracking.enabled=true", f"tracking.uri=sqlite:///{database}")
    with pytest.raises(TrackingError, match=r"mlflow.db: .*(disk is full|disk I/O error|No space left)"):
        run_experiment(planned, DirectRunner(), QuietWatcher())
    assert "Traceback" not in capfd.readouterr().err, "MLflow logs what it raises"
    elsewhere = small_plan("hacpo", *SHORT, "tracking.enabled=true")
    assert run_experiment(elsewhere, DirectRunner(), QuietWatcher()).root == planned.root


def test_silent_server_is_one_error_before_models_are_loaded(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch, silent: str
) -> None:
    monkeypatch.setattr(tracking, "PATIENCE_S", 0.0)
    monkeypatch.delattr("flows.experiment.open_experiment")
    planned = small_plan("hacpo", "tracking.enabled=true", f"tracking.uri={silent}")
    with pytest.raises(TrackingError, match=rf"{silent}: .*Connection refused; mend that"):
        run_experiment(planned, DirectRunner(), QuietWatcher())
    assert standing_of(planned.root).state == "failed"


class _Refusing(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(401)


@pytest.fixture
def start_late(silent: str) -> Iterator[Callable[[], None]]:
    """Starts a server at the silent address, after a while."""
    servers: list[HTTPServer] = []

    def start() -> None:
        servers.append(HTTPServer(("127.0.0.1", int(silent.rpartition(":")[2])), _Refusing))
        servers[0].serve_forever()

    timer = threading.Timer(0.5, start)
    yield timer.start
    timer.cancel()
    for server in servers:
        server.shutdown()
        server.server_close()
    timer.join()


def test_server_that_comes_up_late_is_waited_for_whatever_it_answers(
    small_plan: Callable[..., Plan], start_late: Callable[[], None], silent: str, caplog: pytest.LogCaptureFixture
) -> None:
    planned = small_plan("hacpo", "tracking.enabled=true", f"tracking.uri={silent}")
    start_late()
    tracking.await_store(planned)
    assert caplog.text.count(f"{silent} does not answer; trying again for 20 s") == 1


def test_address_with_a_password_is_not_repeated() -> None:
    said = str(store_error("postgresql://hacpo:secret@db/mlflow", "the server is gone."))
    assert said.startswith("MLflow's store postgresql: the server is gone; mend that")


@pytest.mark.parametrize("error", [ConfigError("a remedy"), ValueError("a bug")])
def test_terminal_shows_a_traceback_of_bugs_alone(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prefect logs every error that passes a task or a flow with its traceback."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])

    def command() -> None:
        try:
            raise error
        except Exception:
            logging.getLogger("prefect.engine").exception("Encountered exception")

    monkeypatch.setattr("flows.cli.app", command)
    main()
    said = capsys.readouterr().err
    assert said.startswith("ERROR prefect.engine: Encountered exception\n")
    assert ("Traceback" in said) is (type(error) is ValueError)
