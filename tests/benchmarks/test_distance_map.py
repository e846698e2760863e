"""The map of distances, from results whose every figure is known."""

from pathlib import Path

import pytest

from benchmarks import distance_map
from dashboards.report import load_results, read_results, save_results, write_report
from tests.dashboards.report.finished import AGENTS, finished, grid_of

pytestmark = pytest.mark.slow
METRICS = {"tokens/sampled": 500.0, "tokens/trained": 200.0, "time/rollout_s": 9.0, "time/verify_s": 3.0}
METRICS |= {"time/update_s": 6.0, "gpu/rollout_s": 0.0, "gpu/update_s": 0.0, "reward/mean": 0.5}


def test_gain_stands_against_the_ratio_of_the_first_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plans = []
    for seed in (0, 1):
        for method, right in (("gspo", 1), ("naive", 3)):
            after = [[float(number < right)] for number in range(4)]
            rewards = {(step, "arithmetic_test", agent): after for step in (0, 2) for agent in AGENTS}
            cross = {"ratio_cross/mean": 0.7 + 0.1 * seed, "clip_cross/stopped_share": 0.25}
            metrics = METRICS | (cross if method == "naive" else {})
            plans.append(finished(tmp_path, method, seed=seed, rewards=rewards, metrics=metrics))
    save_results(
        read_results(grid_of(plans, against=["gspo"], benchmarks=["arithmetic_test"])), tmp_path / "results.json.gz"
    )
    distance_map.main(tmp_path / "results.json.gz", tmp_path / "map.svg")
    shown = capsys.readouterr().out
    assert "| tiny | all agents | 0.75 | +50.0 (" in shown and "| tiny | all agents | 0.75 | 25% |" in shown
    assert "gain over GSPO, points" in (tmp_path / "map.svg").read_text(encoding="utf-8")


def test_committed_report_and_map_are_computed_from_the_committed_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    docs = Path(__file__).parents[2] / "docs"
    for folder in (docs / "results").iterdir():
        write_report(load_results(folder / "results.json.gz"), tmp_path / folder.name)
        report = (tmp_path / folder.name / "report.md").read_text(encoding="utf-8")
        assert report == (folder / "report.md").read_text(encoding="utf-8")
    distance_map.main(docs / "results" / "tiny_distance" / "results.json.gz", None)
    assert capsys.readouterr().out in (docs / "results.md").read_text(encoding="utf-8")
