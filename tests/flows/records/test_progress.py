"""The progress file: what it holds after a run, after a run that was broken off and resumed, and when it is torn."""

from collections.abc import Callable

import pytest

from flows.planning.plans import Plan
from flows.records.progress import PROGRESS_FILE, Progress, read_progress
from flows.records.states import experiment_status
from flows.records.watcher import Watcher
from flows.runs.evaluate import run_evaluation
from flows.runs.experiment import run_experiment
from flows.runs.results import read_final
from hacpo_core.evaluation.results import results
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.store.lock import ExperimentLock

pytestmark = pytest.mark.slow


class _StopsAfter(Watcher):
    """Ctrl-C behind a step."""

    def __init__(self, step: int) -> None:
        self._step = step

    def stepped(self, progress: Progress) -> None:
        if progress.step == self._step:
            raise KeyboardInterrupt


def progress_of(planned: Plan) -> Progress:
    found = read_progress(planned.root)
    assert found is not None
    return found


def test_progress_says_what_the_result_says(small_plan: Callable[..., Plan]) -> None:
    planned = small_plan("hacpo")
    run_experiment(planned, DirectRunner())
    found, final = progress_of(planned), read_final(planned.root)
    assert final is not None
    assert (found.pair, found.method, found.seed, found.step, found.num_steps) == ("small", "hacpo", 0, 4, 4)
    for row in final.table:
        assert found.spent[row["agent"]].tokens == row["tokens_sampled"]
        assert found.spent[row["agent"]].seconds == pytest.approx(row["seconds"], abs=0.01)
    points = {(e.step, e.benchmark, e.agent): e.value for e in found.evaluations}
    assert points == {(r.step, r.benchmark, r.agent): r.value for r in results(planned.root)}
    assert [e.spent.tokens for e in found.evaluations if e.step == 0] == [0] * 4
    for row in final.table:
        name = next(name.removesuffix("_after") for name in row if name.endswith("_after"))
        before, after = row[f"{name}_before"], row[f"{name}_after"]
        assert f"{name} {row['agent']} {before:.3f} to {after:.3f}" in found.outcome
    half = {e.agent: e.spent.tokens for e in found.evaluations if e.step == 2}
    assert all(0 < half[k] < found.spent[k].tokens for k in ("qwen", "llama"))


def test_later_evaluation_is_another_point(small_plan: Callable[..., Plan]) -> None:
    planned = small_plan("hacpo", "evaluate.during=[dev]")
    run_experiment(planned, DirectRunner())
    before = progress_of(planned)
    run_evaluation(planned, 3, DirectRunner())
    after = progress_of(planned)
    added = {(e.step, e.benchmark, e.agent): e for e in after.evaluations if e not in before.evaluations}
    assert set(added) == {(3, name, k) for name in ("dev", "test") for k in ("qwen", "llama")}
    assert 0 < added[3, "dev", "qwen"].spent.tokens < before.spent["qwen"].tokens
    assert (after.step, after.spent, after.rewards) == (4, before.spent, before.rewards)


def test_run_that_is_resumed_counts_no_step_twice(small_plan: Callable[..., Plan]) -> None:
    planned, whole = small_plan("hacpo"), small_plan("hacpo", "train.num_steps=4", "evaluate.every=1")
    run_experiment(whole, DirectRunner())
    with pytest.raises(KeyboardInterrupt):
        run_experiment(planned, DirectRunner(), _StopsAfter(3))
    assert experiment_status(planned.root).reason == "interrupted at step 3 of 4"
    (never_stepped := planned.root.with_name("tiny-hacpo-s9-x")).mkdir()
    assert experiment_status(never_stepped).reason == "not run"
    with ExperimentLock(never_stepped):
        assert experiment_status(never_stepped).reason == "starting"
    status = experiment_status(never_stepped)
    assert (status.shown(status.state), status.reason) == ("interrupted", "interrupted at the start")
    run_experiment(planned, DirectRunner())
    tokens = {k: spent.tokens for k, spent in progress_of(planned).spent.items()}
    assert tokens == {k: spent.tokens for k, spent in progress_of(whole).spent.items()}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"step": 1}', '{"spent": {}, "evaluations": [3]}'])
def test_torn_file_counts_as_missing(
    text: str, small_plan: Callable[..., Plan], caplog: pytest.LogCaptureFixture
) -> None:
    planned = small_plan("hacpo")
    (planned.root / PROGRESS_FILE).write_text(text, encoding="utf-8")
    assert read_progress(planned.root) is None
    assert "counts as missing" in caplog.text
