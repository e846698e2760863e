"""Curves, comparisons and answers, with literal values."""

import math
from pathlib import Path

import pandas as pd
import pytest

from dashboards.charts.pictures import svg
from dashboards.models.listing import Runs
from dashboards.models.runs.curves import folded_areas, read_metrics, run_chart
from dashboards.models.runs.responses import ANY, Filter, group
from dashboards.report.cells import read_runs
from dashboards.report.compared import TOGETHER
from dashboards.report.comparison import Comparer
from flows.records.gridfile import GridRecord
from tests.dashboards.stores import evaluations, write_grid, write_run


def test_run_has_a_panel_per_metric_and_a_line_per_agent(runs_dir: Path) -> None:
    root = runs_dir / "experiments" / write_run(runs_dir, step=20, with_steps=True)
    metrics = read_metrics(root)
    areas = folded_areas(metrics)
    assert areas["capability"] == ["capability/ratio_to_llama", "capability/ratio_to_qwen", "capability/smoothed"]
    assert "reward" not in areas, "the first chart has it"
    update = run_chart(metrics, [], "update")
    assert update is not None
    kl = update.table[update.table.metric == "update/kl_nats"]
    assert [(row.line, row.x, row.value) for row in kl.itertuples()] == [
        ("qwen", 10, 0.2), ("llama", 10, 0.2), ("qwen", 20, 0.2), ("llama", 20, 0.2),
    ]  # fmt: skip
    assert run_chart(metrics, [], "nothing") is run_chart({}, []) is None
    first = run_chart(metrics, evaluations(["qwen", "llama"], 20))
    assert first is not None
    assert list(dict.fromkeys(first.table.metric))[:3] == ["accuracy on dev", "reward/mean", "ratio_own/mean"]
    measured_once = run_chart(metrics, [e for e in evaluations(["qwen", "llama"], 20) if e.step == 20])
    assert measured_once is not None and "accuracy on dev" not in set(measured_once.table.metric)
    llama = first.table[(first.table.line == "llama") & (first.table.metric == "accuracy on dev")]
    assert (llama["x"].tolist(), llama["value"].tolist()) == ([0, 10, 20], pytest.approx([0.5, 0.525, 0.55]))
    assert svg(first).startswith("<svg")


def comparer(runs_dir: Path, **grid: object) -> Comparer:
    return compared(runs_dir, write_grid(runs_dir, **grid))  # type: ignore[arg-type]


def compared(runs_dir: Path, record: GridRecord) -> Comparer:
    runs = Runs(runs_dir)
    return Comparer(read_runs(record, runs.status, runs.root_of), record.cells[0].pair)


def test_table_has_mean_and_interval_over_seeds(runs_dir: Path) -> None:
    found = comparer(runs_dir)
    lines = {(line.agent, line.variant.method): line for line in found.lines}
    qwen = lines["qwen", "hacpo"]
    summary = qwen.figures[0].summary
    assert summary is not None
    assert (summary.mean, summary.num_seeds) == (pytest.approx(0.71), 3)
    assert summary.half_width == pytest.approx(4.302653 * 0.01 / math.sqrt(3), rel=1e-5)
    together = lines[TOGETHER, "gspo"]
    assert together.figures[0].summary is not None
    # Each agent alone: the mean of two experiments of one seed, the sum of their tokens.
    assert (together.figures[0].summary.mean, together.tokens) == (pytest.approx(0.61), 80_000)
    assert lines["llama", "gspo"].tokens == 40_000


def test_papers_value_stands_beside_ours(runs_dir: Path) -> None:
    pair, agents = "qwen3-4b+qwen3-4b-instruct", ("qwen3-4b", "qwen3-4b-instruct")
    record = write_grid(runs_dir, pair=pair, agents=agents, table="table1")
    found = compared(runs_dir, record)
    assert all(figure.paper is None for line in found.lines for figure in line.figures)  # "dev" is not in the paper
    for path in runs_dir.rglob("progress.json"):
        path.write_text(path.read_text(encoding="utf-8").replace('"dev"', '"math500"'), encoding="utf-8")
    record.benchmarks[:] = ["math500"]
    lines = compared(runs_dir, record).lines
    printed = {(line.agent, line.variant.method): line.figures[0].paper for line in lines}
    assert printed["qwen3-4b", "base"] == 0.802
    assert printed["qwen3-4b", "hacpo"] is not None and printed[TOGETHER, "hacpo"] is None


def frame_of(statuses: dict[str, tuple[str, str]]) -> pd.DataFrame:
    rows = [
        {"problem_id": p, "agent": k, "sample": 0, "text": "x" * (place + 1), "num_tokens": 10 * (place + 1),
         "finish_reason": "length", "status": status, "extracted": None, "reason": "", "advantage_for_weak": 0.5,
         "advantage_for_strong": -1.0, "ratio_for_weak": math.nan, "stopped_for_weak": math.nan,
         "ratio_for_strong": 0.8, "stopped_for_strong": 1.0,
         "question": "What is asked" if p == "none" else math.nan, "answer": "1" if p == "none" else math.nan}
        for place, (p, answers) in enumerate(statuses.items())
        for k, status in zip(("strong", "weak"), answers, strict=True)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_filter_finds_problems_by_what_an_agent_answered() -> None:
    verdicts = {
        "both": ("correct", "correct"),
        "strong only": ("correct", "wrong"),
        "strong too": ("correct", "wrong"),
        "weak only": ("wrong", "correct"),
        "none": ("wrong", "unscored"),
    }
    found = group(frame_of(verdicts), ["strong", "weak"])
    assert found.by_strength == ("weak", "strong")
    assert [(one.question, one.gold) for one in found.problems[3:]] == [(None, None), ("What is asked", "1")], "no nan"
    for wanted, expected in (
        (Filter(), list(verdicts)),
        (Filter(right="strong", wrong="weak"), ["strong only", "strong too"]),
        (Filter(right=ANY, wrong=ANY), ["strong only", "strong too", "weak only"]),
        (Filter(wrong="weak"), ["strong only", "strong too"]),
        (Filter(verdict="unscored"), ["none"]),
        (Filter(text="STRONG O"), ["strong only"]),
        (Filter(text="is asked", verdict="unscored"), ["none"]),
        (Filter(text="XXXX"), ["weak only", "none"]),
    ):
        assert [one.problem_id for one in found.select(wanted)] == expected, wanted


def test_effects_say_what_was_clipped_and_what_was_not_used() -> None:
    found = group(frame_of({"p": ("correct", "wrong")}), ["strong", "weak"])
    assert found.problems[0].responses["weak"][0]["effects"] == [
        {"learner": "strong", "advantage": -1.0, "ratio": 0.8, "clipped": "clipped"},
        {"learner": "weak", "advantage": 0.5, "ratio": None, "clipped": "not used"},
    ]
