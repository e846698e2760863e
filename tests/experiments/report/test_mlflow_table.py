"""A grid in MLflow: one row for each pair, method and seed, whether its agents trained together or alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from experiments.planner import GridPlan
from experiments.report import write_report
from tests.experiments.report.finished import AGENTS, finished, grid_of

TEST = "arithmetic_test"
METRICS = {"tokens/sampled": 500.0, "tokens/trained": 200.0, "time/rollout_s": 9.0, "reward/mean": 0.5}


@pytest.fixture
def grid(tmp_path: Path) -> GridPlan:
    """HACPO brings qwen from .25 to .75 and llama to .5; GSPO, each agent alone, brings both to .5."""

    def planned(method: str, **after: float) -> Any:
        rewards: dict[tuple[int, str, str], Any] = {}
        for name, value in after.items():
            agent = name.replace("_", "-")
            rewards[0, TEST, agent] = [[1], [0], [0], [0]]
            rewards[2, TEST, agent] = [[1] if row < 4 * value else [0] for row in range(4)]
        agents = [name.replace("_", "-") for name in after]
        return finished(tmp_path, method, agents=agents, rewards=rewards, metrics=METRICS, is_tracked=True)

    plans = [planned("hacpo", qwen_tiny=0.75, llama_tiny=0.5)]
    plans += [planned("gspo", qwen_tiny=0.5), planned("gspo", llama_tiny=0.5)]
    return grid_of(plans, benchmarks=[TEST])


def runs_in(folder: Path) -> tuple[MlflowClient, Mapping[str, Any]]:
    """The client of a runs folder's store, and the runs of the results by name."""
    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("hacpo-results")
    runs = client.search_runs([experiment.experiment_id])
    assert len({run.info.run_name for run in runs}) == len(runs), "each once"
    return client, {run.info.run_name: run for run in runs}


def test_methods_have_rows_with_the_same_metrics_however_they_train(grid: GridPlan, tmp_path: Path) -> None:
    write_report(grid, tmp_path / "out")
    client, runs = runs_in(tmp_path)
    assert set(runs) == {"tiny hacpo seed 0", "tiny gspo seed 0", "grid grid"}
    hacpo, gspo = runs["tiny hacpo seed 0"], runs["tiny gspo seed 0"]
    accuracy = {f"qwen-tiny/{TEST}": 0.75, f"llama-tiny/{TEST}": 0.5, f"mean/{TEST}": 0.625}
    costs = {"tokens_sampled": 2000.0, "tokens_trained": 800.0, "hours": 0.02, "gpu_hours": 0.0}
    rewards = {f"{name}/reward": 0.5 for name in (*AGENTS, "mean")}
    assert hacpo.data.metrics == accuracy | costs | rewards
    assert gspo.data.metrics == dict.fromkeys(accuracy, 0.5) | costs | rewards
    curve = client.get_metric_history(gspo.info.run_id, f"mean/{TEST}")
    assert [(point.step, point.value) for point in curve] == [(0, 0.25), (2, 0.5)]
    names = {"pair": "tiny", "seed": "0", "model_pair": "qwen-tiny + llama-tiny"}
    assert hacpo.data.params.items() >= (names | {"method": "hacpo", "α": "1.0", "δ": "0.2", "floor": "0.8"}).items()
    assert gspo.data.params.items() >= (names | {"method": "gspo"}).items()
    assert not {"α", "δ", "floor", "K"} & set(gspo.data.params), "they do not act"
    assert hacpo.data.params["train.num_steps"] == "2"
    assert "optimizer.weight_decay" not in hacpo.data.params, "a default"
    for run in (hacpo, gspo):
        assert run.data.tags.items() >= {"grid.grid": "true", "pair.tiny": "true", "hacpo.kind": "row"}.items()
        assert run.info.status == "FINISHED"


def test_view_shows_rows_alone_and_the_page_knows_where_they_are(grid: GridPlan, tmp_path: Path) -> None:
    write_report(grid, tmp_path / "out")
    client, _ = runs_in(tmp_path)
    experiment = client.get_experiment_by_name("hacpo-results")
    assert json.loads((tmp_path / "mlflow.json").read_text(encoding="utf-8")) == {
        "experiment": experiment.experiment_id
    }
    view = json.loads(experiment.tags["mlflow.sharedViewState.hacpo"])
    assert view["searchFilter"] == "tags.`hacpo.kind` = 'row'"
    assert {"params.`method`", "params.`δ_step`", f"metrics.`mean/{TEST}`", "metrics.`hours`"} <= set(
        view["selectedColumns"]
    )


def test_report_and_table_of_a_grid_are_artifacts_of_its_run(grid: GridPlan, tmp_path: Path) -> None:
    write_report(grid, tmp_path / "out")
    client, runs = runs_in(tmp_path)
    run_id = runs["grid grid"].info.run_id
    assert {file.path for file in client.list_artifacts(run_id)} >= {"report.html", "report.md", "results.json"}
    folder = tmp_path / "mlartifacts" / run_id / "artifacts"
    assert (folder / "report.html").read_bytes() == (tmp_path / "out" / "report.html").read_bytes()
    table = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert len(table["data"]) == 4 and {"pair", "method", "agent", "tokens_sampled"} <= set(table["columns"])


def test_rows_are_sent_once_and_join_other_grids(grid: GridPlan, tmp_path: Path) -> None:
    write_report(grid, tmp_path / "out")
    client, before = runs_in(tmp_path)
    other = GridPlan("table 1+2", grid.config, grid.cells, grid.plans)
    write_report(other, tmp_path / "out")
    _, after = runs_in(tmp_path)
    assert set(after) - set(before) == {"grid table 1+2"}
    row = after["tiny hacpo seed 0"]
    assert row.info.run_id == before["tiny hacpo seed 0"].info.run_id
    assert row.data.tags.items() >= {"grid.grid": "true", "grid.table 1-2": "true"}.items()
    assert len(client.get_metric_history(row.info.run_id, f"mean/{TEST}")) == 2


def test_row_that_was_sent_in_part_is_completed(grid: GridPlan, tmp_path: Path) -> None:
    from flows.records.mlflow_store import MlflowStore

    with pytest.MonkeyPatch.context() as patch:

        def broken(*_: Any) -> None:
            raise KeyboardInterrupt

        patch.setattr(MlflowStore, "add_points", broken)
        with pytest.raises(KeyboardInterrupt):
            write_report(grid, tmp_path / "out")
    write_report(grid, tmp_path / "out")
    _, runs = runs_in(tmp_path)
    assert runs["tiny hacpo seed 0"].data.metrics[f"mean/{TEST}"] == 0.625


def test_row_needs_all_agents_of_the_pair(grid: GridPlan, tmp_path: Path) -> None:
    cells = [cell for cell in grid.cells if cell.method == "gspo" and cell.agent == "qwen-tiny"]
    missing = [cell for cell in grid.cells if cell.method == "gspo" and cell.agent == "llama-tiny"]
    part = replace(grid, cells=[*cells, *(replace(cell, status="missing") for cell in missing)])
    write_report(part, tmp_path / "out")
    _, runs = runs_in(tmp_path)
    assert set(runs) == {"grid grid"}


def test_store_that_is_away_is_a_warning_and_the_report_is_written(
    grid: GridPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////proc/none/mlflow.db")
    page = write_report(grid, tmp_path / "out").page
    assert page.is_file()
    assert "`hacpo report grid` sends it later" in caplog.text
