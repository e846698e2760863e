"""MLflow: nesting, parameters by their names, every point once, several processes on a fresh database."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from flows.planning.plans import Plan
from flows.records.watcher import QuietWatcher
from flows.runs.evaluate import run_evaluation, with_benchmarks
from flows.runs.experiment import run_experiment
from hacpo_core.errors import ConfigError, TrackingError
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.tracking import SEND_EVERY_S, STEP_METRIC, Tracker, prepare_store
from tests.experiments_outcome import mlflow_points


@pytest.fixture
def tracked(small_plan: Callable[..., Plan]) -> tuple[Plan, MlflowClient]:
    """A finished experiment and a client of its store."""
    planned = small_plan("hacpo", "tracking.enabled=true")
    run_experiment(planned, DirectRunner(), QuietWatcher())
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
    assert {"config.yaml", "result.json", "rollouts.json", "accuracy.svg", "reward.svg"} <= artifacts
    assert {"evaluations.json", "benchmarks.svg"} <= artifacts
    assert {run.info.status for run in runs.values()} == {"FINISHED"}


def test_later_evaluation_adds_its_metrics_and_keeps_the_tables(tracked: tuple[Plan, MlflowClient]) -> None:
    planned, client = tracked
    before = mlflow_points(Path(planned.config.runtime.runs_dir) / "mlflow.db")
    added = with_benchmarks(planned, ["arithmetic_dev"])
    added.config.evaluate.benchmarks["arithmetic_dev"] = replace(
        added.config.evaluate.benchmarks["arithmetic_dev"], limit=8, num_samples=2, temperature=1.0
    )
    run_evaluation(added, 4, DirectRunner(), QuietWatcher())
    after = mlflow_points(Path(planned.config.runtime.runs_dir) / "mlflow.db")
    assert before.items() <= after.items()
    assert set(after.values()) == {1}
    kinds = ("accuracy", "best_at_2", "bootstrap_best_at_2", "cut_share", "unscored_share")
    new = {(run.rpartition("/")[2], name, step) for run, name, step, _ in after - before}
    assert new == {(k, f"evaluate/arithmetic_dev_{kind}", 4) for k in ("qwen", "llama") for kind in kinds}
    experiment = client.get_experiment_by_name("hacpo")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    tables = json.loads(runs[planned.id].data.tags["mlflow.loggedArtifacts"])
    assert [table["path"] for table in tables] == ["evaluations.json", "result.json", "rollouts.json"]
    assert {run.info.status for run in runs.values()} == {"FINISHED"}


def test_evaluation_that_fails_while_it_logs_leaves_no_run_open(
    tracked: tuple[Plan, MlflowClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned, client = tracked

    def broken(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("flows.runs.tracking.read_evaluations", broken)
    with pytest.raises(OSError, match="no space left"):
        run_evaluation(planned, 4, DirectRunner(), QuietWatcher())
    experiment = client.get_experiment_by_name("hacpo")
    assert {run.info.status for run in client.search_runs([experiment.experiment_id])} == {"FINISHED"}


def test_address_with_a_password_is_refused_before_anything_is_written(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = small_plan("gspo", "tracking.enabled=true", "train.num_steps=1")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:s3cret@127.0.0.1:9")
    for start in (
        lambda: run_experiment(planned, DirectRunner(), QuietWatcher()),
        lambda: run_evaluation(planned, 0, DirectRunner(), QuietWatcher()),
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
    run_experiment(planned, DirectRunner(), QuietWatcher())
    assert mlflow_points(database) == before
    assert set(before.values()) == {1}


def test_fast_steps_are_sent_together_and_slow_ones_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri, now = f"sqlite:///{tmp_path / 'mlflow.db'}", [100.0]
    monkeypatch.setattr("hacpo_core.tracking.time.monotonic", lambda: now[0])
    tracker = Tracker(
        uri, experiment="e", artifacts=tmp_path, run_name="r", state_file=tmp_path / "mlflow.json", agents=["one"]
    )

    def log(step: int, after_s: float) -> set[int]:
        now[0] += after_s
        values = {"agents": {"one": {"reward": 0.5}}, "run": {STEP_METRIC: step}, "timestamp_ms": 1000 + step}
        tracker.log_step(step, values)
        return tracker.logged_steps()

    assert log(1, 0.0) == {1}, "the first one shows that all works"
    assert log(2, 0.3) == {1}
    assert log(3, SEND_EVERY_S) == {1, 2, 3}
    assert log(4, 30.0) == {1, 2, 3, 4}
    assert log(5, 0.3) == {1, 2, 3, 4}
    tracker.finish("FINISHED")
    assert tracker.logged_steps() == {1, 2, 3, 4, 5}
    many = {"agents": {"one": {f"m{n}": 0.0 for n in range(600)}}, "run": {STEP_METRIC: 6}, "timestamp_ms": 1}
    tracker.log_step(6, many)
    tracker.log_step(7, many)
    tracker.finish("FINISHED")  # MLflow refuses more than a thousand in a call
    client = MlflowClient(uri)
    runs = client.search_runs([tracker.experiment_id], "tags.`hacpo.agent` = 'one'")
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
    assert client.get_experiment(moved.experiment_id).artifact_location == f"{now}/mlartifacts"
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


def test_runs_are_closed_even_when_what_waits_cannot_be_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    tracker = Tracker(
        uri, experiment="e", artifacts=tmp_path, run_name="r", state_file=tmp_path / "mlflow.json", agents=["one"]
    )

    def broken(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(MlflowClient, "log_batch", broken)
    with pytest.raises(TrackingError, match="no space left"):
        tracker.log_step(1, {"agents": {"one": {"reward": 0.5}}, "run": {STEP_METRIC: 1}, "timestamp_ms": 1000})
    with pytest.raises(TrackingError, match="no space left"):
        tracker.finish("FAILED")
    assert {run.info.status for run in MlflowClient(uri).search_runs([tracker.experiment_id])} == {"FAILED"}


def test_evaluations_before_training_are_logged_before_it(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = small_plan("gspo", "tracking.enabled=true")

    def stop(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("flows.runs.experiment.train_step", stop)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(planned, DirectRunner(), QuietWatcher())
    points = mlflow_points(Path(planned.config.runtime.runs_dir) / "mlflow.db")
    found = {(run.rpartition("/")[2], name) for run, name, step, _ in points if step == 0}
    expected = {(k, f"evaluate/{benchmark}_accuracy") for k in ("qwen", "llama") for benchmark in ("dev", "test")}
    assert expected <= found


def test_step_that_mlflow_refuses_fails_the_run_though_nobody_waits_for_it(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(Tracker, "log_step", broken)
    planned = small_plan("gspo", "tracking.enabled=true")
    with pytest.raises(OSError, match="no space left"):
        run_experiment(planned, DirectRunner(), QuietWatcher())
    assert not (planned.root / "result.json").exists()
    client = MlflowClient(f"sqlite:///{Path(planned.config.runtime.runs_dir) / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("hacpo")
    assert {run.info.status for run in client.search_runs([experiment.experiment_id])} == {"FAILED"}


def test_error_of_training_is_the_one_told_whatever_mlflow_says_meanwhile(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Tracker, "log_agent", broken)
    monkeypatch.setattr("flows.runs.experiment.train_step", stop)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(small_plan("gspo", "tracking.enabled=true"), DirectRunner(), QuietWatcher())
    assert "another error in the background thread: no space left on device" in caplog.text


def test_failed_run_is_marked_failed(small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    from hacpo_core.engines.torch.learner import TorchLearner

    def broken(self: TorchLearner) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(TorchLearner, "optimizer_step", broken)
    planned = small_plan("gspo", "tracking.enabled=true")
    with pytest.raises(RuntimeError, match="out of memory"):
        run_experiment(planned, DirectRunner(), QuietWatcher())
    client = MlflowClient(f"sqlite:///{Path(planned.config.runtime.runs_dir) / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("hacpo")
    assert {run.info.status for run in client.search_runs([experiment.experiment_id])} == {"FAILED"}


@pytest.mark.slow
def test_processes_that_meet_on_a_fresh_database_all_succeed(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    code = "import sys; from hacpo_core.tracking import prepare_store; prepare_store(sys.argv[1])"
    children = [subprocess.Popen([sys.executable, "-c", code, uri], stderr=subprocess.PIPE) for _ in range(3)]
    for child in children:
        _, errors = child.communicate(timeout=200)
        assert child.returncode == 0, errors.decode()[-1000:]


@pytest.mark.slow
def test_process_that_is_killed_while_it_makes_the_database_leaves_none(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    code = "import sys; from hacpo_core.tracking import prepare_store; prepare_store(sys.argv[1])"
    child = subprocess.Popen([sys.executable, "-c", code, uri])
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob(".mlflow.db.*.tmp")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.3)  # amid its tables
    child.kill()
    assert child.wait() == -9, "it was not done"
    assert not (tmp_path / "mlflow.db").exists()
    prepare_store(uri)
    assert MlflowClient(uri).search_experiments()


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
