"""The main job on real MATH problems: two untrained byte-level models, real templates, real verification."""

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

PAIR = """
pair:
  name: untrained
  agents:
    qwen-bytes: {tiny: {family: qwen3, tokenizer: byte, max_positions: 4096, seed: 0}}
    llama-bytes: {tiny: {family: llama, tokenizer: byte, max_positions: 4096, seed: 1}}
engine: {num_threads: 1}
train: {num_steps: 3, problems: 8}
method: {build: {problems: 4}}
rollout: {num_samples: 4, max_prompt_tokens: 512, max_response_tokens: 64}
data: {train: [math]}
evaluate: {every: 0, during: [], final: [math500], benchmarks: {math500: {limit: 16, max_response_tokens: 64}}}
checkpoint: {every: 2}
"""


@pytest.mark.system
def test_untrained_pair_trains_on_real_math_problems_end_to_end(tmp_path: Path) -> None:
    words = [f"runtime.runs_dir={tmp_path}", "tracking.enabled=false", "verifier.style=auto", "verifier.num_workers=1"]
    (tmp_path / "untrained.yaml").write_text(PAIR, encoding="utf-8")
    planned = plan(compose(str(tmp_path / "untrained.yaml"), "hacpo", overrides=words))
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
        assert metrics.get("sampler/logprob_difference_mean", 0.0) < 1e-4, "absent where no own row trains"
