"""The page of responses over a real run: a benchmark's answers."""

from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from dashboards.app import create_app
from flows.planning.plans import Plan
from flows.runs.experiment import run_experiment
from hacpo_core.phases.runner import DirectRunner


@pytest.mark.slow
def test_benchmarks_answers_are_shown_with_reference_and_without_effects(small_plan: Callable[..., Plan]) -> None:
    planned = small_plan("hacpo", "train.num_steps=1", "evaluate.during=[]")
    run_experiment(planned, DirectRunner())
    benchmark = planned.config.evaluate.final[0]
    app = create_app(Path(planned.config.runtime.runs_dir), connect=lambda: None)
    page = TestClient(app, base_url="http://127.0.0.1")
    text = page.get(f"/samples/{planned.id}?benchmark={benchmark}").text
    assert "Reference answer" in text and "advantage" not in text
    assert 'id="step-before"' in text, "before training"
