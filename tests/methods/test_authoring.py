"""What docs/authoring.md tells a user to write works."""

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.grids.planner import plan_grid
from flows.planning.compose import compose
from flows.planning.plans import Plan
from flows.runs.experiment import run_experiment
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.store.steps import StepStore

PAGE = (Path(__file__).parents[2] / "docs" / "authoring.md").read_text(encoding="utf-8")
FILES = {name: text for text, name in re.findall(r"```\w+\n(# (\w+\.(?:py|yaml))\b.*?)```", PAGE, re.DOTALL)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's files in a folder outside the package, which is the working directory and on the path."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def test_page_has_all_its_files() -> None:
    assert list(FILES) == [
        *("running_mean.py", "running_mean.yaml", "only_rewarded.py", "twice.py"),
        *("test_running_mean.py", "mine.yaml", "my_rewards.py"),
    ]


def test_test_of_the_page_passes_and_fails_for_another_share(folder: Path) -> None:
    module: Any = importlib.import_module("test_running_mean")
    tests = [value for name, value in vars(module).items() if name.startswith("test_")]
    assert len(tests) == 1
    tests[0]()
    module.RunningMean = lambda share: importlib.import_module("running_mean").RunningMean(share=2 * share)
    with pytest.raises(AssertionError):
        tests[0]()


def test_method_and_grid_of_the_page_are_read_from_a_folder_outside_the_package(folder: Path) -> None:
    estimate: Any = compose("tiny", "running_mean.yaml", overrides=["method.estimate.share=0.5"]).method.estimate
    assert (estimate.name, estimate.share) == ("running_mean:RunningMean", 0.5)
    grid = plan_grid("mine.yaml", runs_dir=folder / "runs")
    assert {planned.config.method.name for planned in grid.plans.values()} == {"gspo", "running_mean"}
    assert {planned.config.train.num_steps for planned in grid.plans.values()} == {20}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "override"),
    [
        ("running_mean.yaml", "method.estimate.share=0.5"),
        ("hacpo", "method.objective.name=only_rewarded:OnlyRewarded"),
        ("hacpo", "method.build.name=twice:Twice"),
        ("gspo", "reward.functions=[my_rewards:brevity]"),
    ],
)
def test_classes_of_the_page_train(method: str, override: str, folder: Path, small_plan: Callable[..., Plan]) -> None:
    planned = small_plan(method, override, "evaluate.during=[]", "evaluate.final=[]", "train.num_steps=2")
    run_experiment(planned, DirectRunner())
    assert any(phase.startswith("update") for phase in StepStore(planned.root).committed(2))
