"""What `hacpo doctor --gpu` tries, with the engines that a machine without a GPU has."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from flows.cli import app
from flows.doctor import engine_trial
from flows.doctor.engine_trial import quick_trial, trial_report
from flows.doctor.machine import VLLM_WORDS
from flows.doctor.trials import TrialStep, Workload, trial_config
from hacpo_core.config import ExperimentConfig
from hacpo_core.engines.learning.torch_learner import TorchLearner
from hacpo_core.errors import ConfigError

pytestmark = pytest.mark.slow

STEPS = ["load", "hand over and sample", "sample again", "score", "update", "score the update"]
STEPS += ["checkpoint", "resume", "replay"]
SMALL = Workload(num_problems=4, num_samples=2, max_tokens=16)
BF16 = ("engine.dtype=bfloat16", "engine.grad_dtype=float32")
has_vllm = importlib.util.find_spec("vllm") is not None


def verdicts(report: dict[str, Any]) -> dict[str, str]:
    assert report["is_ok"], report["steps"][-1]
    assert [step["name"] for step in report["steps"]] == STEPS
    return {step["name"]: step["detail"] for step in report["steps"]}


@pytest.mark.deepspeed
def test_deepspeed_in_bfloat16_goes_through_an_agents_life() -> None:
    pytest.importorskip("deepspeed", reason="needs the deepspeed extra")
    report = trial_report("cpu_deepspeed", workload=SMALL, overrides=BF16)
    found = verdicts(report)
    assert found["replay"].startswith("exact")
    figures = {step["name"]: step["figures"] for step in report["steps"]}
    assert figures["update"]["own_noise_rms"] < 1e-6
    assert 0 < figures["score"]["difference_mean_nats"] < 0.05
    assert report["device"] == "cpu"


@pytest.mark.soak
@pytest.mark.ray
@pytest.mark.deepspeed
def test_ranks_placed_by_ray_go_through_an_agents_life() -> None:
    for extra in ("ray", "deepspeed"):
        pytest.importorskip(extra, reason=f"needs the {extra} extra")
    words = ("placement.kind=ray", "placement.num_ranks=auto", "placement.total_ranks=4")  # two for one that is alone
    report = trial_report("cpu_deepspeed", workload=SMALL, overrides=words)
    assert verdicts(report)["replay"].startswith("exact")


@pytest.mark.vllm
@pytest.mark.skipif(not has_vllm, reason="vLLM is not installed here; make test-vllm")
def test_vllm_in_processes_of_its_own_goes_through_an_agents_life() -> None:
    pytest.importorskip("deepspeed", reason="needs the deepspeed extra")
    words = ("engine.learner=deepspeed", "engine.vllm.process=own")
    found = verdicts(trial_report("cpu_vllm", workload=SMALL, overrides=words))
    assert "vllm sampler" in found["load"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpu_goes_through_an_agents_life() -> None:
    pytest.importorskip("deepspeed", reason="needs the deepspeed extra")
    verdicts(trial_report("one_gpu_vllm" if has_vllm else "one_gpu", workload=SMALL))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_deterministic_kernels_replay_to_the_bit() -> None:
    words = ("engine.learner=torch", "engine.deterministic=true")
    assert verdicts(trial_report("one_gpu", workload=SMALL, overrides=words))["replay"].startswith("exact")


def test_engine_that_shares_the_process_of_the_only_agent_may_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may not beside a second agent, which the trial does not have."""
    tried: list[ExperimentConfig] = []

    def try_none(config: ExperimentConfig, *_: object, **__: object) -> list[TrialStep]:
        tried.append(config)
        return [TrialStep("load", False, 0.0, "tried nothing")] * 3

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(engine_trial, "try_engines", try_none)
    with pytest.raises(RuntimeError, match="tried nothing"):
        quick_trial(*VLLM_WORDS)
    shared = ("engine.learner=torch", "engine.vllm.process=shared")
    tried.append(trial_config("one_gpu_vllm", model=None, workload=SMALL, overrides=shared))
    for config in tried:
        assert list(config.pair.agents) == ["trial"]
        assert (config.engine.vllm.process, config.engine.vllm.sleeps) == ("shared", True)


def test_step_that_fails_is_the_last_one_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = TorchLearner.optimizer_step

    def noisy(self: TorchLearner) -> Any:
        for parameter in self.trainable.values():
            if parameter.grad is not None:
                parameter.grad *= 1 + 1e-3 * torch.randn_like(parameter.grad)
        return inner(self)

    monkeypatch.setattr(TorchLearner, "optimizer_step", noisy)
    report = trial_report("cpu", workload=SMALL)
    assert not report["is_ok"]
    assert [step["is_ok"] for step in report["steps"]] == [True] * 8 + [False]
    assert "RuntimeError: replaying the update gives other weights" in report["steps"][-1]["detail"]


@pytest.mark.system
def test_command_prints_a_verdict_for_each_step_and_keeps_the_figures(tmp_path: Path) -> None:
    words = ["doctor", "--gpu", "--hardware", "cpu", "--runs-dir", str(tmp_path / "runs")]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 0, found.output
    lines = found.output.splitlines()
    assert lines[0] == "tiny with --hardware cpu"
    assert [line[:2] for line in lines[1:10]] == ["ok"] * 9
    assert lines[10] == "tiny twice, in turn"
    assert [line[:2] for line in lines[11:18]] == ["ok"] * 7
    kept = json.loads((tmp_path / "runs" / "doctor-gpu.json").read_text(encoding="utf-8"))
    assert [step["name"] for step in kept[0]["steps"]] == STEPS
    assert [(report["agents"], len(report["steps"])) for report in kept] == [(1, 9), (2, 7)]


def test_hardware_file_for_one_agent_only_is_tried_with_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ConfigError("engine.vllm.sleeps: got true, but 2 agents share this process")

    monkeypatch.setattr("flows.doctor.swap_trial.swap_report", refuse)
    words = ["doctor", "--gpu", "--hardware", "cpu", "--runs-dir", str(tmp_path)]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 0, found.output
    assert "not tried: engine.vllm.sleeps: got true, but 2 agents share this process" in found.output
    assert len(json.loads((tmp_path / "doctor-gpu.json").read_text(encoding="utf-8"))) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_machine_without_a_gpu_is_told_so(tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["doctor", "--gpu", "--hardware", "one_gpu", "--runs-dir", str(tmp_path)])
    assert found.exit_code != 0
    assert "NO  load" in found.output
    assert "NO  driver" in found.output
    assert "in turn" not in found.output
    assert "PyTorch sees no GPU" in found.output
