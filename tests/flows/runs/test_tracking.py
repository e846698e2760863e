"""MLflow gets what the folder holds, each value once, whatever happened to the store or to a run in it."""

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient
from typer.testing import CliRunner

from flows.cli import app
from flows.planning.plans import Plan, plan, save_plan
from flows.records.gridfile import GridCell, GridRecord, save_grid
from flows.records.mlflow_address import STATE_FILE, mark_unsent, read_state, unsent_experiments
from flows.records.states import experiment_status
from flows.runs.evaluate import run_evaluation, with_benchmarks
from flows.runs.experiment import run_experiment
from flows.runs.mlflow_store import prepare_store
from flows.runs.tracking import sync as sync_runs
from flows.service.prefect_server import free_port
from hacpo_core.errors import ConfigError
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.store.steps import StepStore
from tests.experiments_outcome import mlflow_points
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
SHORT = ("evaluate.during=[]", "evaluate.final=[]", "tracking.enabled=true")


def runs_dir_of(planned: Plan) -> Path:
    return Path(planned.config.runtime.runs_dir)


def client_of(planned: Plan) -> MlflowClient:
    return MlflowClient(f"sqlite:///{runs_dir_of(planned) / 'mlflow.db'}")


def runs_of(planned: Plan) -> dict[str, Any]:
    """MLflow's runs of the experiment `hacpo` that are not deleted, by name."""
    client = client_of(planned)
    experiment = client.get_experiment_by_name("hacpo")
    runs = client.search_runs([experiment.experiment_id])
    assert len({run.info.run_name for run in runs}) == len(runs), "each once"
    return {run.info.run_name: run for run in runs}


def sync(planned: Plan, *words: str) -> str:
    done = CliRunner().invoke(app, ["sync", *words, "--runs-dir", str(runs_dir_of(planned))])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_runs_hold_parameters_tags_metrics_and_twice_the_same_changes_nothing(small_plan: Callable[..., Plan]) -> None:
    planned = small_plan("hacpo", "tracking.enabled=true")
    run_experiment(planned, DirectRunner())
    runs, client = runs_of(planned), client_of(planned)
    assert set(runs) == {planned.id}
    run = runs[planned.id]
    assert run.info.status == "FINISHED"
    expected = {"model_pair": "qwen + llama", "α": "1.0", "δ": "0.2", "δ_step": "0.025", "K": "5", "method": "hacpo"}
    assert (expected | {"optimizer.learning_rate": "0.001", "seed": "0"}).items() <= run.data.params.items()
    accuracies = [run.data.metrics[f"evaluate/test_accuracy.{agent}"] for agent in ("qwen", "llama")]
    assert run.data.metrics["evaluate/test_accuracy"] == sum(accuracies) / 2
    assert run.data.tags["pair"] == "small"
    assert {"version.torch", "mlflow.source.git.commit", "hacpo.health"} <= run.data.tags.keys()
    points = client.get_metric_history(run.info.run_id, "reward/mean.qwen")
    assert [point.step for point in points] == [1, 2, 3, 4]
    assert [point.timestamp for point in points] == [
        StepStore(planned.root).metrics(step)["timestamp_ms"] for step in (1, 2, 3, 4)
    ]
    before = {point.step for point in client.get_metric_history(run.info.run_id, "evaluate/dev_accuracy.qwen")}
    assert before == {0, 2, 4}
    view = json.loads(client.get_experiment(run.info.experiment_id).tags["mlflow.sharedViewState.hacpo"])
    names = ["tags.`pair`", "params.`method`", "params.`seed`"]
    names += ["metrics.`evaluate/dev_accuracy`", "metrics.`evaluate/test_accuracy`"]
    assert view["columnOrder"] == names and view["selectedColumns"] == ["attributes.`Duration`", *names]
    last_ms = max(point.timestamp for point in client.get_metric_history(run.info.run_id, "evaluate/test_accuracy"))
    assert run.info.end_time == last_ms, "the end of the training, whenever it is sent"

    all_points = mlflow_points(runs_dir_of(planned) / "mlflow.db")
    assert set(all_points.values()) == {1}
    assert sync(planned) == "", "nothing is left to send"
    mark_unsent(planned.root)
    assert sync(planned) == f"{planned.id}: sent to MLflow\n"
    assert mlflow_points(runs_dir_of(planned) / "mlflow.db") == all_points


def test_what_was_deleted_on_mlflows_page_is_restored_once_training_has_ended(
    small_plan: Callable[..., Plan], caplog: pytest.LogCaptureFixture
) -> None:
    planned = small_plan("gspo", *SHORT)
    run_experiment(planned, DirectRunner())
    before, client = runs_of(planned), client_of(planned)
    client.delete_run(before[planned.id].info.run_id)
    assert "sent to MLflow" in sync(planned)
    assert f"run {planned.id} was deleted on MLflow's page; it is restored" in caplog.text
    client.update_run(before[planned.id].info.run_id, status="RUNNING")  # as after a kill
    mark_unsent(planned.root)
    client.delete_experiment(before[planned.id].info.experiment_id)
    sync(planned)
    assert {run.info.status for run in runs_of(planned).values()} == {"FINISHED"}
    assert "MLflow's experiment hacpo was deleted on its page; it is restored" in caplog.text
    after = runs_of(planned)
    assert {name: run.info.run_id for name, run in after.items()} == {n: run.info.run_id for n, run in before.items()}
    (runs_dir_of(planned) / "mlflow.db").unlink()
    assert "sent to MLflow" in sync(planned), "the database is a view, which can be lost"
    assert {name: run.data.metrics for name, run in runs_of(planned).items()} == {
        name: run.data.metrics for name, run in before.items()
    }


@pytest.mark.parametrize("what", ["run", "experiment"])
def test_what_is_deleted_while_a_run_trains_is_restored_and_gets_all(
    what: str, small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    planned, client = small_plan("gspo", *SHORT), None
    inner = StepStore.commit

    def commit(store: StepStore, step: int, phase: str, *args: Any, **options: Any) -> None:
        nonlocal client
        inner(store, step, phase, *args, **options)
        if (step, phase) == (3, "metrics"):
            client = client_of(planned)
            wait_until(lambda: "run" in read_state(planned.root), "the first sending")
            state = read_state(planned.root)
            client.delete_run(state["run"]) if what == "run" else client.delete_experiment(state["experiment"])

    monkeypatch.setattr(StepStore, "commit", commit)
    run_experiment(planned, DirectRunner())
    assert client is not None
    assert "was deleted on" in caplog.text
    assert "not all was sent" not in caplog.text
    runs = runs_of(planned)
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert len(client.get_metric_history(runs[planned.id].info.run_id, "progress/step")) == 4
    assert read_state(planned.root)["is_sent"]


def test_store_that_fails_in_mid_training_gets_every_point_once_afterwards(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    planned, calls = small_plan("gspo", *SHORT), list[int]()
    inner = MlflowClient.log_batch

    def locked(client: MlflowClient, run_id: str, *args: Any, **options: Any) -> None:
        calls.append(len(calls))
        if len(calls) > 2:
            raise OSError("database is locked")
        inner(client, run_id, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_batch", locked)
        run_experiment(planned, DirectRunner())
    assert experiment_status(planned.root).state == "done"
    assert "not all was sent to MLflow" in caplog.text
    assert unsent_experiments(runs_dir_of(planned)) == [planned.id]
    assert "sent to MLflow" in sync(planned)
    assert read_state(planned.root)["is_sent"]
    points = mlflow_points(runs_dir_of(planned) / "mlflow.db")
    assert set(points.values()) == {1}
    assert {(name, step) for _, name, step, _ in points if name.startswith("reward/mean")} == {
        (f"reward/mean{end}", step) for end in ("", ".qwen", ".llama") for step in (1, 2, 3, 4)
    }
    assert {run.info.status for run in runs_of(planned).values()} == {"FINISHED"}


def test_interrupted_run_is_continued_and_failed_evaluations_are_sent_with_the_next(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = small_plan("gspo", "tracking.enabled=true")

    def stop(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("flows.runs.experiment.train_step", stop)
        with pytest.raises(KeyboardInterrupt):
            run_experiment(planned, DirectRunner())
    points = mlflow_points(runs_dir_of(planned) / "mlflow.db")
    found = {name for _, name, step, _ in points if step == 0}
    assert {f"evaluate/{name}_accuracy.{k}" for k in ("qwen", "llama") for name in ("dev", "test")} <= found
    first = runs_of(planned)[planned.id].info
    assert first.status == "KILLED"
    run_experiment(planned, DirectRunner())
    assert runs_of(planned)[planned.id].info.run_id == first.run_id
    run_evaluation(with_benchmarks(planned, ["dev"]), 3, DirectRunner())
    history = client_of(planned).get_metric_history(first.run_id, "evaluate/dev_accuracy.qwen")
    assert sorted(point.step for point in history) == [0, 2, 3, 4], "an evaluation after the end, too"


def test_training_of_one_agent_names_its_grid_and_the_grids_pair(small_plan: Callable[..., Plan]) -> None:
    planned = small_plan("gspo", *SHORT, "train.num_steps=1")
    pair = replace(planned.config.pair, name="llama-tiny", agents={"llama": planned.config.pair.agents["llama"]})
    alone = plan(replace(planned.config, pair=pair))
    save_plan(alone)
    cell = GridCell(pair="tiny", method="gspo", label="", seed=0, agent="llama", experiment=alone.id)
    save_grid(runs_dir_of(alone), GridRecord("table1", "Table 1", "plain", cells=[cell]))
    run_experiment(alone, DirectRunner())
    found = runs_of(alone)[alone.id].data
    names = {"pair": "tiny", "pair.tiny": "true", "grid.table1": "true"}
    assert found.tags.items() >= names.items()
    assert found.params["model_pair"] == "llama"
    assert not {"α", "δ", "δ_step"} & set(found.params), "they act only on other agents' responses"
    taken_up = GridRecord("table7", "Table 7", "plain", cells=[replace(cell, pair="tiny_size")])
    assert save_grid(runs_dir_of(alone), taken_up) == {alone.id}, "a grid that reuses it has its id"
    mark_unsent(alone.root)
    sync(alone)
    members = dict.fromkeys(("pair.tiny", "pair.tiny_size", "grid.table1", "grid.table7"), "true")
    assert runs_of(alone)[alone.id].data.tags.items() >= {"pair": "tiny, tiny_size", **members}.items()


def test_same_experiment_in_another_folder_has_another_run_and_a_torn_state_file_opens_a_new_one(
    small_plan: Callable[..., Plan], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, uri = small_plan("gspo", *SHORT, "train.num_steps=1"), f"tracking.uri=sqlite:///{tmp_path / 'team.db'}"
    for name in ("one", "two"):
        planned = small_plan("gspo", *SHORT, "train.num_steps=1", uri, runs_dir=tmp_path / name)
        assert planned.id == first.id
        run_experiment(planned, DirectRunner())
    (planned.root / STATE_FILE).write_text("{", encoding="utf-8")
    sync_runs(tmp_path / "two", [planned.id])
    client = MlflowClient(f"sqlite:///{tmp_path / 'team.db'}")
    found = client.search_runs([client.get_experiment_by_name("hacpo").experiment_id])
    assert [run.info.run_name for run in found] == 3 * [first.id]


def test_store_that_cannot_be_used_ends_no_training_and_is_one_sentence(
    small_plan: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    (tmp_path / "text.db").write_text("no database, whatever its name says\n" * 200, encoding="utf-8")
    gone = f"http://127.0.0.1:{free_port(0)}"
    wrong = []
    cases = {
        f"sqlite:///{tmp_path / 'text.db'}": "text.db: file is not a database; fix it or set another",
        gone: gone,
        "postgresql://hacpo:secret@127.0.0.1:notaport/mlflow": "postgresql://hacpo:…@127.0.0.1:notaport/mlflow",
    }
    for number, (uri, message) in enumerate(cases.items()):
        caplog.clear()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        planned = small_plan("hacpo", *SHORT, "train.num_steps=1", runs_dir=tmp_path / str(number))
        run_experiment(planned, DirectRunner())
        is_done = experiment_status(planned.root).state == "done" and not read_state(planned.root)["is_sent"]
        said = message in caplog.text and "not all was sent to MLflow" in caplog.text
        if not (is_done and said) or "secret" in caplog.text:
            wrong.append((uri, caplog.text))
    assert wrong == []


def test_address_of_a_server_with_a_password_is_an_error_before_training(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://hacpo:secret@127.0.0.1:5000")
    with pytest.raises(ConfigError, match="contains a password") as caught:
        run_experiment(small_plan("gspo", *SHORT), DirectRunner())
    assert "secret" not in str(caught.value)


def test_database_lies_in_its_folder_whatever_the_folder_is_called(
    small_plan: Callable[..., Plan], tmp_path: Path
) -> None:
    for name in ("a%20b", "runs?q=1", "x #y"):
        planned = small_plan("gspo", *SHORT, "train.num_steps=1", runs_dir=tmp_path / "in" / name)
        run_experiment(planned, DirectRunner())
        assert read_state(planned.root)["is_sent"]
        assert (tmp_path / "in" / name / "mlflow.db").is_file()
    assert len(list((tmp_path / "in").rglob("mlflow.db"))) == 3, "none lies beside"


@pytest.mark.system
def test_processes_that_meet_on_a_fresh_database_all_succeed(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    code = "import sys; from flows.runs.mlflow_store import prepare_store; prepare_store(sys.argv[1])"
    children = [subprocess.Popen([sys.executable, "-c", code, uri], stderr=subprocess.PIPE) for _ in range(3)]
    for child in children:
        _, errors = child.communicate(timeout=200)
        assert child.returncode == 0, errors.decode()[-1000:]
    import sqlite3

    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_process_that_is_killed_while_it_makes_the_database_leaves_none(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    code = "import sys; from flows.runs.mlflow_store import prepare_store; prepare_store(sys.argv[1])"
    child = subprocess.Popen([sys.executable, "-c", code, uri])
    wait_until(lambda: any(path.stat().st_size for path in tmp_path.glob(".mlflow.db.*.tmp")), every_s=0.01)
    child.kill()  # amid its tables
    assert child.wait() == -9, "it was not done"
    assert not (tmp_path / "mlflow.db").exists()
    prepare_store(uri)
    assert MlflowClient(uri).search_experiments()
