"""A grid in MLflow: one row for each pair, method and seed, whether its agents trained together or alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from mlflow.tracking import MlflowClient

from dashboards.mlflow_page import MlflowPage
from dashboards.report import write_report
from flows.grids.planner import GridPlan
from flows.service.processes import Record
from hacpo_core.config.schema import StopConfig
from hacpo_core.store.steps import StepStore
from tests.dashboards.browsing import chromium, reason_to_skip, screenshots
from tests.dashboards.report.finished import AGENTS, evaluate, finished, grid_of
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

DEV, TEST = "arithmetic_dev", "arithmetic_test"
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
    assert not {"optimizer.weight_decay", "runtime.runs_dir", "method.name"} & set(hacpo.data.params)
    warm_up = {f"pair.agents.{agent}.warm_up.num_steps": "700" for agent in AGENTS}
    assert hacpo.data.params.items() >= warm_up.items() and gspo.data.params.items() >= warm_up.items()
    for run in (hacpo, gspo):
        assert run.data.tags.items() >= {"grid.grid": "true", "pair.tiny": "true", "hacpo.kind": "row"}.items()
        assert run.info.status == "FINISHED"


def test_bits_per_byte_are_metrics_beside_the_accuracies(tmp_path: Path) -> None:
    values = {(step, TEST, agent): [[1], [0]] for step in (0, 2) for agent in AGENTS}
    bits = {(0, TEST, "qwen-tiny"): 1.5, (2, TEST, "qwen-tiny"): 1.0, (2, TEST, "llama-tiny"): 0.5}
    plan = finished(tmp_path, "hacpo", rewards=values, metrics=METRICS, is_tracked=True, bits=bits)
    write_report(grid_of([plan], benchmarks=[TEST]), tmp_path / "out")
    metrics = runs_in(tmp_path)[1]["tiny hacpo seed 0"].data.metrics
    assert {name: value for name, value in metrics.items() if "bits" in name} == {
        f"qwen-tiny/{TEST}_bits_per_byte": 1.0,
        f"llama-tiny/{TEST}_bits_per_byte": 0.5,
        f"mean/{TEST}_bits_per_byte": 0.75,
    }
    assert metrics[f"mean/{TEST}"] == 0.5


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


def test_row_takes_what_was_evaluated_after_it_was_sent(grid: GridPlan, tmp_path: Path) -> None:
    write_report(grid, tmp_path / "out")
    before = runs_in(tmp_path)[1]["tiny hacpo seed 0"]
    (plan,) = [plan for plan in grid.plans.values() if plan.config.method.name == "hacpo"]
    for agent in AGENTS:
        evaluate(StepStore(plan.root), 1, TEST, agent, np.array([[1.0], [1.0], [1.0], [0.0]]))
    write_report(grid, tmp_path / "out")
    client, runs = runs_in(tmp_path)
    row = runs["tiny hacpo seed 0"]
    assert row.info.run_id == before.info.run_id
    history = client.get_metric_history(row.info.run_id, f"mean/{TEST}")
    assert {point.step: point.value for point in history} == {0: 0.25, 1: 0.75, 2: 0.625}
    assert len(history) == 3, "each value once"
    assert row.data.metrics[f"mean/{TEST}"] == 0.625, "the table shows the last step"


def test_mean_of_agents_that_ended_after_different_steps_is_that_of_their_last_values(tmp_path: Path) -> None:
    def ended(agent: str, last: int, dev: Mapping[int, int]) -> Any:
        rewards = {(step, DEV, agent): [[1]] * right + [[0]] * (4 - right) for step, right in dev.items()}
        rewards |= {(0, TEST, agent): [[1], [0], [0], [0]], (last, TEST, agent): [[1], [1], [1], [0]]}
        plan = finished(tmp_path, "gspo", agents=[agent], rewards=rewards, metrics=METRICS, is_tracked=True)
        train = replace(plan.config.train, stop=StopConfig(metric=DEV, patience=1))
        evaluate = replace(plan.config.evaluate, every=1)
        return replace(plan, config=replace(plan.config, train=train, evaluate=evaluate))

    plans = [ended("qwen-tiny", 1, {0: 2, 1: 1}), ended("llama-tiny", 2, {0: 1, 1: 2, 2: 3})]
    write_report(grid_of(plans, benchmarks=[TEST]), tmp_path / "out")
    row = runs_in(tmp_path)[1]["tiny gspo seed 0"]
    assert row.data.metrics[f"mean/{TEST}"] == 0.75


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


def responds(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).is_success
    except httpx.TransportError:
        return False


@pytest.mark.system
@pytest.mark.browser
@pytest.mark.skipif(bool(reason_to_skip()), reason=reason_to_skip())
def test_mlflows_own_page_groups_rows_by_method_and_compares_two(grid: GridPlan, tmp_path: Path) -> None:
    write_report(grid, tmp_path / "out")
    experiment = json.loads((tmp_path / "mlflow.json").read_text(encoding="utf-8"))["experiment"]
    (tmp_path / "prefect").mkdir()
    page = MlflowPage(tmp_path, Record(tmp_path / "prefect", "mlflow-page"))
    try:
        page.ensure()
        wait_until(lambda: responds(page.url), "MLflow's page")
        with chromium() as browser:
            tab = browser.new_page(viewport={"width": 1600, "height": 620})
            tab.set_default_timeout(60_000)
            view = f"{page.url}/#/experiments/{experiment}/runs?viewStateShareKey=hacpo"
            tab.goto(view)
            tab.get_by_text("tiny gspo seed 0").wait_for()
            assert not tab.get_by_text("grid grid").count(), "the view shows rows alone"
            tab.get_by_role("button", name="Close", exact=True).click()  # MLflow's assistant
            tab.get_by_role("button", name="Hide banner").click()
            tab.screenshot(path=str(screenshots(tmp_path) / "mlflow_table.png"))
            for name in ("tiny hacpo seed 0", "tiny gspo seed 0"):
                row = tab.locator("[role=row]").filter(has_text=name).first.get_attribute("row-id")
                tab.locator(f"[role=row][row-id='{row}'] input[type=checkbox]").first.click()
            tab.get_by_role("button", name="Compare").click()
            tab.get_by_text("Show diff only").first.wait_for()
            compared = tab.inner_text("body")
            for values in ("α\t1.0\t", "δ_step\t0.025\t", "K\t5\t", "method\thacpo\tgspo"):
                assert values in compared
            metrics = compared.rpartition("\nMetrics\nShow diff only\n")[2].partition("\nArtifacts\n")[0].split("\n")
            place, num_metrics = metrics.index(f"mean/{TEST}"), len(metrics) // 3  # the names, then a pair for each
            assert metrics[num_metrics + 2 * place :][:2] == ["0.625", "0.5"]
            tab.screenshot(path=str(screenshots(tmp_path) / "mlflow_compare.png"))
            tab.goto(view)
            tab.get_by_role("button", name="Group by").click()
            tab.get_by_role("menuitemcheckbox", name="method", exact=True).click()
            tab.get_by_text("0.625 (average)").wait_for()
    finally:
        page.end()
