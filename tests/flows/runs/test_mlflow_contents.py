"""A grid in MLflow: one row for each pair, method and seed, whether its agents trained together or alone."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow.tracking import MlflowClient

from flows.planning.plans import Plan, save_plan
from flows.records.gridfile import GridCell, GridRecord
from flows.runs.tracking import sync
from hacpo_core.config.schema import StopConfig
from hacpo_core.store.steps import StepStore
from tests.dashboards.report.finished import AGENTS, evaluate, finished

pytestmark = pytest.mark.slow

DEV, TEST = "arithmetic_dev", "arithmetic_test"
METRICS = {"tokens/sampled": 500.0, "tokens/trained": 200.0, "time/rollout_s": 9.0, "reward/mean": 0.5}


def trained(runs_dir: Path, method: str, **after: float) -> Plan:
    """A complete experiment; its agents begin with an accuracy of .25."""
    rewards: dict[tuple[int, str, str], Any] = {}
    for name, value in after.items():
        agent = name.replace("_", "-")
        rewards[0, TEST, agent] = [[1], [0], [0], [0]]
        rewards[2, TEST, agent] = [[1] if row < 4 * value else [0] for row in range(4)]
    agents = [name.replace("_", "-") for name in after]
    plan = finished(runs_dir / "experiments", method, agents=agents, rewards=rewards, metrics=METRICS, is_tracked=True)
    save_plan(replace(plan, contents={}))
    return plan


def record_of(*plans: Plan, name: str = "grid") -> GridRecord:
    cells = [
        GridCell("tiny", plan.config.method.name, "", 0, agent, plan.id)
        for plan in plans
        for agent in plan.config.pair.agents
    ]
    return GridRecord(name, name, "plain", [TEST], cells)


@pytest.fixture
def grid(tmp_path: Path) -> GridRecord:
    """HACPO brings qwen from .25 to .75 and llama to .5; GSPO, each agent alone, brings both to .5."""
    alone = [trained(tmp_path, "gspo", qwen_tiny=0.5), trained(tmp_path, "gspo", llama_tiny=0.5)]
    return record_of(trained(tmp_path, "hacpo", qwen_tiny=0.75, llama_tiny=0.5), *alone)


def runs_in(folder: Path) -> tuple[MlflowClient, Mapping[str, Any]]:
    """The client of a runs folder's store, and the runs of the results by name."""
    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("hacpo-results")
    runs = client.search_runs([experiment.experiment_id])
    assert len({run.info.run_name for run in runs}) == len(runs), "each once"
    return client, {run.info.run_name: run for run in runs}


def test_methods_have_rows_with_the_same_metrics_however_they_train(grid: GridRecord, tmp_path: Path) -> None:
    sync(tmp_path, [], [grid], ["HACPO is ahead", "HACPO is level"])
    client, runs = runs_in(tmp_path)
    assert set(runs) == {"tiny hacpo seed 0", "tiny gspo seed 0"}
    hacpo, gspo = runs["tiny hacpo seed 0"], runs["tiny gspo seed 0"]
    costs = {"tokens_sampled": 2000.0, "tokens_trained": 800.0, "hours": 0.02, "gpu_hours": 0.0}
    assert hacpo.data.metrics == {f"mean/{TEST}": 0.625, "mean/reward": 0.5, **costs}
    assert gspo.data.metrics == {f"mean/{TEST}": 0.5, "mean/reward": 0.5, **costs}
    curve = client.get_metric_history(gspo.info.run_id, f"mean/{TEST}")
    assert [(point.step, point.value) for point in curve] == [(0, 0.25), (2, 0.5)]
    names = {"pair": "tiny", "seed": "0", "model_pair": "qwen-tiny + llama-tiny"}
    assert hacpo.data.params.items() >= (names | {"method": "hacpo", "α": "1.0", "δ": "0.2"}).items()
    assert gspo.data.params.items() >= (names | {"method": "gspo"}).items()
    assert not {"α", "δ", "K"} & set(gspo.data.params), "they do not act"
    assert hacpo.data.params["train.num_steps"] == "2"
    assert not {"optimizer.weight_decay", "runtime.runs_dir", "method.name"} & set(hacpo.data.params)
    warm_up = {f"pair.agents.{agent}.warm_up.num_steps": "700" for agent in AGENTS}
    assert hacpo.data.params.items() >= warm_up.items() and gspo.data.params.items() >= warm_up.items()
    for run in (hacpo, gspo):
        assert run.data.tags.items() >= {"grid.grid": "true", "pair.tiny": "true"}.items()
        assert run.data.tags["verdict.grid"] == "HACPO is ahead; HACPO is level"
        assert run.info.status == "FINISHED"
    experiment = client.get_experiment(hacpo.info.experiment_id)
    assert json.loads((tmp_path / "mlflow.json").read_text(encoding="utf-8")) == {
        "experiment": experiment.experiment_id
    }
    view = json.loads(experiment.tags["mlflow.sharedViewState.hacpo"])
    places = ["params.`pair`", "params.`method`", "params.`seed`", "params.`α`", f"metrics.`mean/{TEST}`"]
    assert [name for name in view["columnOrder"] if name in places] == places, "parameters stand left"
    assert set(view["columnOrder"]) < set(view["selectedColumns"]) and view["columnWidths"][places[-1]] > 200
    assert hacpo.info.end_time - hacpo.info.start_time == 3_600_000 * costs["hours"], "the training's duration"


def test_rows_join_other_grids_and_take_what_was_evaluated_later(grid: GridRecord, tmp_path: Path) -> None:
    sync(tmp_path, [], [grid])
    client, before = runs_in(tmp_path)
    sync(tmp_path, [], [replace(grid, name="table 1+2")])
    _, after = runs_in(tmp_path)
    assert set(after) == set(before)
    row = after["tiny hacpo seed 0"]
    assert row.info.run_id == before["tiny hacpo seed 0"].info.run_id
    assert row.data.tags.items() >= {"grid.grid": "true", "grid.table 1-2": "true"}.items()
    for agent in AGENTS:
        root = tmp_path / "experiments" / grid.cells[0].experiment
        evaluate(StepStore(root), 1, TEST, agent, np.array([[1.0], [1.0], [1.0], [0.0]]))
    sync(tmp_path, [], [grid])
    metrics = runs_in(tmp_path)[1]["tiny hacpo seed 0"].data.metrics
    assert metrics[f"mean/{TEST}"] == 0.625, "the table shows the last step"
    history = client.get_metric_history(row.info.run_id, f"mean/{TEST}")
    assert sorted((point.step, point.value) for point in history) == [(0, 0.25), (1, 0.75), (2, 0.625)]


def test_mean_of_agents_that_ended_after_different_steps_is_that_of_their_last_values(tmp_path: Path) -> None:
    def ended(agent: str, last: int, dev: Mapping[int, int]) -> Plan:
        rewards = {(step, DEV, agent): [[1]] * right + [[0]] * (4 - right) for step, right in dev.items()}
        rewards |= {(0, TEST, agent): [[1], [0], [0], [0]], (last, TEST, agent): [[1], [1], [1], [0]]}
        folder = tmp_path / "experiments"
        plan = finished(folder, "gspo", agents=[agent], rewards=rewards, metrics=METRICS, is_tracked=True)
        train = replace(plan.config.train, stop=StopConfig(metric=DEV, patience=1))
        evaluate = replace(plan.config.evaluate, every=1)
        plan = replace(plan, config=replace(plan.config, train=train, evaluate=evaluate), contents={})
        save_plan(plan)
        return plan

    plans = ended("qwen-tiny", 1, {0: 2, 1: 1}), ended("llama-tiny", 2, {0: 1, 1: 2, 2: 3})
    sync(tmp_path, [], [record_of(*plans)])
    assert runs_in(tmp_path)[1]["tiny gspo seed 0"].data.metrics[f"mean/{TEST}"] == 0.75


def test_store_that_is_away_is_one_warning_for_a_grid_and_its_trainings(
    grid: GridRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////proc/none/mlflow.db")
    assert sync(tmp_path, sorted({cell.experiment for cell in grid.cells}), [grid]) == []
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "not sent to MLflow" in warning and warning.endswith("`hacpo sync` sends it later")
