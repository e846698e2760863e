"""MLflow: nesting, parameters by their names, every point once, several processes on a fresh database."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from flows.planning.plans import Plan, plan, save_plan
from flows.records.gridfile import GridCell, GridRecord, save_grid
from flows.records.mlflow_store import prepare_store
from flows.records.tracker import STEP_METRIC, Tracker
from flows.records.unsent import has_unsent, mark_changed
from flows.runs.evaluate import run_evaluation, with_benchmarks
from flows.runs.experiment import run_experiment
from flows.runs.tracking import send_late
from hacpo_core.errors import ConfigError, TrackingError
from hacpo_core.phases.runner import DirectRunner
from tests.experiments_outcome import mlflow_points
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def tracked(small_plan: Callable[..., Plan]) -> tuple[Plan, MlflowClient]:
    """A finished experiment and a client of its store."""
    planned = small_plan("hacpo", "tracking.enabled=true")
    run_experiment(planned, DirectRunner())
    return planned, MlflowClient(f"sqlite:///{Path(planned.config.runtime.runs_dir) / 'mlflow.db'}")


def test_run_holds_configuration_names_of_the_paper_metrics_and_artifacts(tracked: tuple[Plan, MlflowClient]) -> None:
    planned, client = tracked
    experiment = client.get_experiment_by_name("hacpo")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert set(runs) == {planned.id, f"{planned.id}/qwen", f"{planned.id}/llama"}
    parent, child = runs[planned.id], runs[f"{planned.id}/qwen"]
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
    expected = {"model_pair": "qwen + llama", "α": "1.0", "δ": "0.2", "δ_step": "0.025", "K": "5", "method": "hacpo"}
    assert expected.items() <= parent.data.params.items()
    assert parent.data.params["optimizer.learning_rate"] == "0.001"
    assert child.data.params == parent.data.params, "a search for one of them finds the agents' metrics, too"
    assert child.data.tags.items() >= {"agent": "qwen", "pair": "small", "method": "hacpo"}.items()
    mean = (
        child.data.metrics["evaluate/test_accuracy"]
        + runs[f"{planned.id}/llama"].data.metrics["evaluate/test_accuracy"]
    ) / 2
    assert parent.data.metrics["evaluate/test_accuracy"] == mean
    assert parent.data.tags["version.torch"].startswith("2.13.0")
    assert "mlflow.source.git.commit" in parent.data.tags
    assert [entry.tags[0].value for entry in parent.inputs.dataset_inputs] == [
        "train sums",
        "benchmark dev",
        "benchmark test",
    ]
    points = client.get_metric_history(child.info.run_id, "reward/mean")
    assert [point.step for point in points] == [1, 2, 3, 4]
    assert "ratio_cross/mean" in child.data.metrics
    assert "evaluate/test_accuracy" in child.data.metrics
    artifacts = {artifact.path for artifact in client.list_artifacts(parent.info.run_id)}
    assert artifacts == {"config.yaml", "result.json", "rollouts.json", "evaluations.json"}
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    view = json.loads(experiment.tags["mlflow.sharedViewState.hacpo"])
    names = ["params.`method`", "params.`seed`", "tags.`pair`"]
    assert view == {"selectedColumns": [*names, "metrics.`evaluate/dev_accuracy`", "metrics.`evaluate/test_accuracy`"]}


def test_later_evaluation_adds_its_metrics_and_keeps_the_tables(tracked: tuple[Plan, MlflowClient]) -> None:
    planned, client = tracked
    before = mlflow_points(Path(planned.config.runtime.runs_dir) / "mlflow.db")
    added = with_benchmarks(planned, ["arithmetic_dev"])
    added.config.evaluate.benchmarks["arithmetic_dev"] = replace(
        added.config.evaluate.benchmarks["arithmetic_dev"],
        limit=8,
        num_samples=2,
        temperature=1.0,
        reference_field="solution",
    )
    run_evaluation(added, 4, DirectRunner())
    after = mlflow_points(Path(planned.config.runtime.runs_dir) / "mlflow.db")
    assert before.items() <= after.items()
    assert set(after.values()) == {1}
    kinds = ("accuracy", "best_at_2", "bootstrap_best_at_2", "bits_per_byte", "cut_share", "unscored_share")
    new = {(run.rpartition("/")[2], name, step) for run, name, step, _ in after - before}
    own = {(k, f"evaluate/arithmetic_dev_{kind}", 4) for k in ("qwen", "llama") for kind in kinds}
    assert new == own | {(planned.id, "evaluate/arithmetic_dev_accuracy", 4)}
    experiment = client.get_experiment_by_name("hacpo")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    tables = json.loads(runs[planned.id].data.tags["mlflow.loggedArtifacts"])
    assert [table["path"] for table in tables] == ["evaluations.json", "result.json", "rollouts.json"]
    assert {run.info.status for run in runs.values()} == {"FINISHED"}


def test_address_with_a_password_is_refused_before_anything_is_written(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = small_plan("gspo", "tracking.enabled=true", "train.num_steps=1")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:s3cret@127.0.0.1:9")
    for start in (
        lambda: run_experiment(planned, DirectRunner()),
        lambda: run_evaluation(planned, 0, DirectRunner()),
    ):
        with pytest.raises(ConfigError, match="MLFLOW_TRACKING_URI: contains a password") as refused:
            start()
        assert "s3cret" not in str(refused.value)
    assert {path.name for path in planned.root.rglob("*")} == {"config.yaml", "contents.json"}, "no failure either"
    assert "s3cret" not in (planned.root / "config.yaml").read_text(encoding="utf-8")


def test_logging_again_doubles_no_point(tracked: tuple[Plan, MlflowClient]) -> None:
    planned, _ = tracked
    database = Path(planned.config.runtime.runs_dir) / "mlflow.db"
    before = mlflow_points(database)
    (planned.root / "result.json").unlink()
    run_experiment(planned, DirectRunner())
    assert mlflow_points(database) == before
    assert set(before.values()) == {1}


@pytest.mark.slow
def test_lost_files_are_made_again_and_their_points_are_not_doubled(tracked: tuple[Plan, MlflowClient]) -> None:
    """Neither an evaluation nor a step of which MLflow had the agents' points alone when the training died."""
    planned, _ = tracked
    database = Path(planned.config.runtime.runs_dir) / "mlflow.db"
    before = mlflow_points(database)
    with closing(sqlite3.connect(database)) as connection, connection:
        ((parent,),) = connection.execute(
            f"select distinct run_uuid from metrics where key = '{STEP_METRIC}'"
        ).fetchall()
        for table in ("metrics", "latest_metrics"):
            connection.execute(f"delete from {table} where run_uuid = '{parent}' and step = 4")
    for torn in ("evaluate.dev.qwen.json", "metrics.json"):
        (planned.root / "steps" / "000004" / torn).write_bytes(b"{")
    (planned.root / "result.json").unlink()
    run_experiment(planned, DirectRunner())
    assert mlflow_points(database) == before


def test_more_points_than_mlflow_takes_in_a_call_are_sent_in_several(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    tracker = Tracker(
        uri, experiment="e", artifacts=tmp_path, run_name="r", state_file=tmp_path / "mlflow.json", agents=["one"]
    )
    for step in (1, 2):
        tracker.add("one", {f"m{n}": 0.0 for n in range(600)}, step=step, timestamp_ms=1000 + step)
        tracker.add(None, {STEP_METRIC: step}, step=step, timestamp_ms=1000 + step)
    tracker.flush()
    assert tracker.logged_steps() == {1, 2}
    client = MlflowClient(uri)
    runs = client.search_runs([tracker.store.experiment_id], "tags.`hacpo.agent` = 'one'")
    assert len(client.get_metric_history(runs[0].info.run_id, "m599")) == 2


def test_store_that_was_moved_with_its_artifacts_is_told_where_they_are(tmp_path: Path) -> None:
    def opened(folder: str) -> Tracker:
        runs_dir, database = tmp_path / folder, tmp_path / folder / "mlflow.db"
        return Tracker(
            f"sqlite:///{database}",
            experiment="e",
            artifacts=runs_dir / "mlartifacts",
            run_name="r",
            state_file=runs_dir / "mlflow.json",
            agents=["one"],
        )

    opened("here").finish("FINISHED")
    (tmp_path / "here").rename(tmp_path / "there")
    moved = opened("there")
    client, now = MlflowClient(f"sqlite:///{tmp_path / 'there' / 'mlflow.db'}"), (tmp_path / "there").as_uri()
    assert client.get_experiment(moved.store.experiment_id).artifact_location == f"{now}/mlartifacts"
    assert client.get_run(moved.run_id).info.artifact_uri == f"{now}/mlartifacts/{moved.run_id}/artifacts"


def test_trainings_of_one_experiment_in_two_folders_have_runs_of_their_own(tmp_path: Path) -> None:
    def run_of(folder: str) -> str:
        state = tmp_path / folder / "mlflow.json"
        uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
        tracker = Tracker(uri, experiment="e", artifacts=tmp_path, run_name="r", state_file=state, agents=["one"])
        tracker.finish("FINISHED")
        return tracker.run_id

    first, second = run_of("a"), run_of("b")
    assert first != second
    state = json.loads((tmp_path / "a" / "mlflow.json").read_text(encoding="utf-8"))
    (tmp_path / "a" / "mlflow.json").write_text(json.dumps({"training": state["training"]}), encoding="utf-8")
    assert run_of("a") == first, "a process that died before it wrote the ids down"


@pytest.mark.parametrize("num_conflicts", [0, 1, 4, 5])
def test_data_sets_that_another_run_adds_at_the_same_time_are_found(
    num_conflicts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, inner, calls = f"sqlite:///{tmp_path / 'mlflow.db'}", MlflowClient.log_inputs, list[str]()
    tracker = Tracker(
        uri, experiment="e", artifacts=tmp_path, run_name="r", state_file=tmp_path / "mlflow.json", agents=["one"]
    )

    def taken(client: MlflowClient, run_id: str, **inputs: Any) -> None:
        calls.append(run_id)
        if len(calls) <= num_conflicts:
            raise MlflowException("duplicate key value violates unique constraint")
        inner(client, run_id, **inputs)

    monkeypatch.setattr(MlflowClient, "log_inputs", taken)
    if num_conflicts == 5:
        with pytest.raises(TrackingError, match="duplicate key"):
            tracker.log_setup(params={}, tags={}, datasets={"train": "p.jsonl@1"})
        return
    tracker.log_setup(params={}, tags={}, datasets={"train": "p.jsonl@1"})
    found = MlflowClient(uri).get_run(tracker.run_id).inputs.dataset_inputs
    assert [entry.dataset.name for entry in found] == ["train: p.jsonl"]


def test_evaluations_before_training_are_logged_before_it(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = small_plan("gspo", "tracking.enabled=true")

    def stop(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("flows.runs.experiment.train_step", stop)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(planned, DirectRunner())
    points = mlflow_points(Path(planned.config.runtime.runs_dir) / "mlflow.db")
    found = {(run.rpartition("/")[2], name) for run, name, step, _ in points if step == 0}
    expected = {(k, f"evaluate/{benchmark}_accuracy") for k in ("qwen", "llama") for benchmark in ("dev", "test")}
    assert expected <= found


@pytest.mark.slow
def test_store_that_fails_in_mid_training_gets_every_point_once_afterwards(
    small_plan: Callable[..., Plan],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    undisturbed = small_plan(
        "gspo", "tracking.enabled=true", runs_dir=Path(small_plan("gspo").root.parents[2] / "alone")
    )
    run_experiment(undisturbed, DirectRunner())
    flush, calls = Tracker.flush, list[int]()

    def locked(tracker: Tracker) -> None:
        calls.append(len(calls))
        if len(calls) == 1:
            flush(tracker)
            return
        raise OSError("database is locked")

    monkeypatch.setattr(Tracker, "flush", locked)
    planned = small_plan("gspo", "tracking.enabled=true")
    run_experiment(planned, DirectRunner())
    assert (planned.root / "result.json").exists()
    assert "not all was sent to MLflow" in caplog.text
    assert has_unsent(planned.root)
    monkeypatch.undo()
    assert send_late(planned)
    assert not has_unsent(planned.root)
    sent = mlflow_points(Path(planned.config.runtime.runs_dir) / "mlflow.db")
    assert sent == mlflow_points(Path(undisturbed.config.runtime.runs_dir) / "mlflow.db")
    assert set(sent.values()) == {1}
    client = MlflowClient(f"sqlite:///{Path(planned.config.runtime.runs_dir) / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("hacpo")
    assert {run.info.status for run in client.search_runs([experiment.experiment_id])} == {"FINISHED"}


def test_training_of_one_agent_names_its_grid_and_the_grids_pair(small_plan: Callable[..., Plan]) -> None:
    planned = small_plan(
        "gspo", "tracking.enabled=true", "train.num_steps=1", "evaluate.during=[]", "evaluate.final=[]"
    )
    pair = replace(planned.config.pair, name="llama-tiny", agents={"llama": planned.config.pair.agents["llama"]})
    alone = plan(replace(planned.config, pair=pair))
    save_plan(alone)
    runs_dir = Path(planned.config.runtime.runs_dir)
    cell = GridCell(pair="tiny", method="gspo", label="", seed=0, agent="llama", experiment=alone.id)
    save_grid(runs_dir, GridRecord("table1", "Table 1", "plain", cells=[cell]))
    run_experiment(alone, DirectRunner())
    client = MlflowClient(f"sqlite:///{runs_dir / 'mlflow.db'}")

    def find() -> Any:
        (experiment,) = client.search_experiments(filter_string="name = 'hacpo'")
        return client.search_runs([experiment.experiment_id], f"attributes.run_name = '{alone.id}'")

    found = find()
    names = {"pair": "tiny", "pair.tiny": "true", "grid.table1": "true", "agent": "llama", "method": "gspo"}
    assert found[0].data.tags.items() >= names.items()
    assert not {"α", "δ", "δ_step"} & set(found[0].data.params), "they act only on other agents' responses"

    taken_up = GridRecord("table7", "Table 7", "plain", cells=[replace(cell, pair="tiny_size")])
    assert save_grid(runs_dir, taken_up) == {alone.id}, "a grid that reuses it has its id"
    mark_changed(alone.root)
    assert send_late(alone)
    members = dict.fromkeys(("pair.tiny", "pair.tiny_size", "grid.table1", "grid.table7"), "true")
    assert find()[0].data.tags.items() >= {"pair": "tiny, tiny_size", **members}.items()


def test_failed_run_is_marked_failed(small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    from hacpo_core.engines.learning.torch_learner import TorchLearner

    def broken(self: TorchLearner) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(TorchLearner, "optimizer_step", broken)
    planned = small_plan("gspo", "tracking.enabled=true")
    with pytest.raises(RuntimeError, match="out of memory"):
        run_experiment(planned, DirectRunner())
    client = MlflowClient(f"sqlite:///{Path(planned.config.runtime.runs_dir) / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("hacpo")
    assert {run.info.status for run in client.search_runs([experiment.experiment_id])} == {"FAILED"}


@pytest.mark.system
def test_processes_that_meet_on_a_fresh_database_all_succeed(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    code = "import sys; from flows.records.mlflow_store import prepare_store; prepare_store(sys.argv[1])"
    children = [subprocess.Popen([sys.executable, "-c", code, uri], stderr=subprocess.PIPE) for _ in range(3)]
    for child in children:
        _, errors = child.communicate(timeout=200)
        assert child.returncode == 0, errors.decode()[-1000:]


@pytest.mark.slow
def test_process_that_is_killed_while_it_makes_the_database_leaves_none(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    code = "import sys; from flows.records.mlflow_store import prepare_store; prepare_store(sys.argv[1])"
    child = subprocess.Popen([sys.executable, "-c", code, uri])
    wait_until(lambda: any(path.stat().st_size for path in tmp_path.glob(".mlflow.db.*.tmp")), every_s=0.01)
    child.kill()  # amid its tables
    assert child.wait() == -9, "it was not done"
    assert not (tmp_path / "mlflow.db").exists()
    prepare_store(uri)
    assert MlflowClient(uri).search_experiments()


@pytest.mark.slow
def test_reopened_tracker_continues_the_same_runs(tmp_path: Path) -> None:
    first_store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    prepare_store(first_store)

    def tracker(state: str, uri: str = first_store) -> Tracker:
        return Tracker(
            uri,
            experiment="e",
            artifacts=tmp_path / "artifacts",
            run_name="run",
            state_file=tmp_path / state,
            agents=["a", "b"],
        )

    first = tracker("state.json")
    assert tracker("state.json").run_id == first.run_id
    other_store = f"sqlite:///{tmp_path / 'team.db'}"
    moved = tracker("state.json", other_store)
    assert moved.run_id != first.run_id, "a store that never heard of the runs gets new ones"
    assert tracker("state.json", other_store).run_id == moved.run_id
