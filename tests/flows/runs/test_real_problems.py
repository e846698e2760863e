"""The main job on real MATH problems: two untrained byte-level models, real templates, real verification."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flows.planning.compose import compose
from flows.planning.plans import plan, save_plan
from flows.runs.experiment import run_experiment
from flows.runs.samples import step_samples
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.store.steps import StepStore

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("HACPO_DATA_DIR"), reason="HACPO_DATA_DIR is not set: no MATH problems here"),
]


@pytest.mark.system
def test_untrained_pair_trains_on_real_math_problems_end_to_end(tmp_path: Path) -> None:
    words = [f"runtime.runs_dir={tmp_path}", "tracking.enabled=false", "verifier.style=auto", "verifier.num_workers=1"]
    planned = plan(compose("tiny_untrained", "hacpo", overrides=words))
    save_plan(planned)
    result = run_experiment(planned, DirectRunner())
    assert [row["agent"] for row in result.table] == ["qwen-bytes", "llama-bytes"]
    store = StepStore(planned.root)
    assert store.last_step() == 3
    samples = step_samples(planned, 2)
    assert len(samples) == 8 * 2 * 4
    assert set(samples["problem_id"].str.split("/").str[0]) == {"MATH"}
    assert set(samples["status"]) <= {"correct", "wrong"}
    assert samples["extracted"].notna().any(), "style auto finds a number in some random text"
    for step in (1, 2, 3):
        metrics = store.metrics(step)["agents"]["qwen-bytes"]
        assert metrics["tokens/sampled"] > 0
        assert metrics["sampler/logprob_difference_max"] < 1e-4
