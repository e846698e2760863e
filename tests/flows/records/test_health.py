"""How findings about a run's health reach people: once when they begin and end, and the same after a kill."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from flows.planning.plans import Plan
from flows.records.mlflow_address import STATE_FILE
from flows.records.progress import PROGRESS_FILE, Progress, read_progress
from flows.records.runlog import read_log
from flows.records.watcher import ProgressRecorder, Watcher
from flows.runs.experiment import run_experiment
from flows.runs.tracking import plan_tracking_uri
from hacpo_core.evaluation.results import results
from hacpo_core.phases import metrics
from hacpo_core.phases.health import Finding
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.store.steps import StepStore
from tests.dashboards.report.finished import finished
from tests.experiments_outcome import findings_of

pytestmark = pytest.mark.slow

COSTS = ("tokens/sampled", "time/rollout_s", "time/verify_s", "time/update_s", "gpu/rollout_s", "gpu/update_s")
CUT = (0.5, 0.5, 0.5, 0.5, 0.0, 0.0, 0.0)
"""share of cut responses by step: a finding begins at step 3 and ends at step 7"""


class _Remembers(Watcher):
    def __init__(self, last: int | None = None) -> None:
        self.findings: list[Finding] = []
        self._last = last

    def stepped(self, progress: Progress) -> None:
        if progress.step == self._last:
            raise KeyboardInterrupt

    def judged(self, finding: Finding) -> None:
        self.findings.append(finding)


@pytest.fixture
def cut_plan(small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Plan]:
    """A plan of seven steps in which qwen's responses are cut as CUT says."""
    inner = metrics.step_metrics

    def measured(ledger: Any, step: int, **options: Any) -> dict[str, Any]:
        values = inner(ledger, step, **options)
        values["agents"]["qwen"]["response/cut_share"] = CUT[step - 1]
        return values

    monkeypatch.setattr(metrics, "step_metrics", measured)
    short = ("train.num_steps=7", "evaluate.during=[]", "evaluate.final=[]")
    return lambda *overrides: small_plan("hacpo", *short, *overrides)


def cut_of(findings: list[Finding]) -> list[tuple[str, int, int | None]]:
    return [(f.agent, f.begun_at, f.ended_at) for f in findings if f.rule == "responses_cut"]


def test_finding_is_told_when_it_begins_and_when_it_ends(cut_plan: Callable[..., Plan]) -> None:
    planned, watcher = cut_plan(), _Remembers()
    run_experiment(planned, DirectRunner(), watcher)
    assert cut_of(watcher.findings) == [("qwen", 3, None), ("qwen", 3, 7)]
    progress = read_progress(planned.root)
    assert progress is not None
    assert tuple(progress.findings) == findings_of(StepStore(planned.root), planned.config)
    assert cut_of(progress.findings) == [("qwen", 3, 7)]
    assert cut_of(progress.open_findings) == []
    lines = [line.text for line in read_log(planned.root) if line.kind == "health" and "cut" in line.text]
    assert [text.partition(";")[0] for text in lines] == [
        "step 3, qwen: responses cut: 50% of the responses are cut at the token limit",
        "step 7, qwen: responses cut is over",
    ]


@pytest.mark.parametrize("num_kills", [1, 2])
def test_run_that_is_killed_and_resumed_says_the_same_and_nothing_twice(
    num_kills: int, cut_plan: Callable[..., Plan]
) -> None:
    planned, watchers = cut_plan("checkpoint.every=100"), list[_Remembers]()
    for last in [5, 4][:num_kills]:  # the second attempt repeats the first steps, and does not reach the fifth again
        watchers.append(_Remembers(last))
        with pytest.raises(KeyboardInterrupt):
            run_experiment(planned, DirectRunner(), watchers[-1])
    watchers.append(_Remembers())
    run_experiment(planned, DirectRunner(), watchers[-1])
    told = [cut_of(watcher.findings) for watcher in watchers]
    assert told == [[("qwen", 3, None)], *[[]] * (num_kills - 1), [("qwen", 3, 7)]]
    progress = read_progress(planned.root)
    assert progress is not None
    assert tuple(progress.findings) == findings_of(StepStore(planned.root), planned.config)
    assert len([line for line in read_log(planned.root) if line.kind == "health" and "cut" in line.text]) == 2


def test_mlflow_has_a_tag_with_the_findings_that_hold(cut_plan: Callable[..., Plan]) -> None:
    planned = cut_plan("tracking.enabled=true")

    def tag() -> str:
        run = json.loads((planned.root / STATE_FILE).read_text(encoding="utf-8"))["run"]
        return str(MlflowClient(plan_tracking_uri(planned)).get_run(run).data.tags["hacpo.health"])

    with pytest.raises(KeyboardInterrupt):
        run_experiment(planned, DirectRunner(), _Remembers(4))
    assert "responses_cut (qwen)" in tag().split("; ")
    run_experiment(planned, DirectRunner())
    assert "responses_cut" not in tag()


def test_bounds_that_let_no_row_through_are_found(small_plan: Callable[..., Plan]) -> None:
    short = ("train.num_steps=6", "evaluate.during=[]", "evaluate.final=[]")
    closed = ("method.objective.cross_floor=1.0", "method.objective.cross_step=0.0")
    planned, watcher = small_plan("hacpo", *short, *closed), _Remembers()
    run_experiment(planned, DirectRunner(), watcher)
    store, stopped = StepStore(planned.root), dict[str, list[float]]()
    for step in range(1, 7):
        for agent, values in store.metrics(step)["agents"].items():
            if "clip_cross/stopped_share" in values:
                stopped.setdefault(agent, []).append(values["clip_cross/stopped_share"])
    assert max(map(len, stopped.values())) >= 3, "some step has rows with an advantage"
    found = {f.agent for f in watcher.findings if f.rule == "cross_rows_stopped"}
    in_three = {k for k, v in stopped.items() if any(min(v[n : n + 3]) >= 0.95 for n in range(len(v) - 2))}
    assert found == in_three
    assert found


@pytest.mark.parametrize("when", ["during", "final"])
def test_fall_of_accuracy_is_told_while_the_reward_rises(when: str, tmp_path: Path) -> None:
    """On every benchmark that the training evaluates; `demo_llm` has those of evaluate.final alone."""
    right = {(0, "qwen-tiny"): 40, (0, "llama-tiny"): 20, (2, "qwen-tiny"): 20, (2, "llama-tiny"): 30}
    rewards = {(step, "held_out", k): [[1]] * n + [[0]] * (50 - n) for (step, k), n in right.items()}
    measured = {"reward/mean": 0.9, **dict.fromkeys(COSTS, 1.0)}
    planned, watcher = finished(tmp_path, "hacpo", rewards=rewards, metrics=measured), _Remembers()
    evaluate = replace(planned.config.evaluate, **{"during": [], "final": [], when: ["held_out"]})
    store, config = StepStore(planned.root), replace(planned.config, evaluate=evaluate)
    evaluations = list(results(planned.root))
    (planned.root / PROGRESS_FILE).unlink()
    ProgressRecorder(store, config, step=2, evaluations=evaluations, watcher=watcher)
    progress = read_progress(planned.root)
    assert progress is not None
    assert [(f.rule, f.agent, f.text) for f in progress.open_findings] == [
        ("accuracy_falls", "qwen-tiny", "accuracy on held_out fell from 0.800 before training to 0.400")
    ]
    assert watcher.findings == progress.findings
    assert "health: qwen-tiny: accuracy falls" in progress.outcome
