"""Two agents that take turns, as `hacpo doctor --gpu` tries them."""

from __future__ import annotations

import importlib.util
from itertools import count
from typing import Any

import pytest
import torch

from flows.doctor.swap_trial import swap_report
from flows.doctor.trials import Trial, Workload
from hacpo_core.engines.learning.torch_learner import TorchLearner
from hacpo_core.placement.agents import Agent

pytestmark = pytest.mark.slow

SMALL = Workload(num_problems=4, num_samples=2, max_tokens=16)
STEPS = ["load both", *(f"step {step}, {agent}" for step in (1, 2, 3) for agent in ("first", "second"))]


def test_each_agent_rests_at_each_swap_and_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    rested: list[str] = []
    rest, gib = Agent.rest, count(1)

    def noted(self: Agent) -> None:
        rested.append(self.name)
        rest(self)

    monkeypatch.setattr(Agent, "rest", noted)
    monkeypatch.setattr(Trial, "_memory", lambda self: {"device_gib": float(next(gib))})
    report = swap_report("cpu", workload=SMALL)
    assert report is not None
    assert report["is_ok"], report["steps"][-1]
    assert [step["name"] for step in report["steps"]] == STEPS
    assert rested == ["first", *["second", "first"] * 3], "while the second is loaded, and before each turn"
    first, *_, last = report["steps"][1:]
    assert first["detail"].endswith(" GiB after the swap, 3.0 GiB sampled, 4.0 GiB updated")
    assert {key: last["figures"][f"{key}_device_gib"] for key in ("swap", "sampled", "updated")} == {
        "swap": 17.0,
        "sampled": 18.0,
        "updated": 19.0,
    }
    assert (report["agents"], report["model"]) == (2, "tiny")


def test_second_step_trains_on_the_weights_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    updates: list[tuple[int, int]] = []
    update = Agent.update

    def noted(self: Agent, *args: Any, version: int, **options: Any) -> Any:
        updates.append((self.version, version))
        return update(self, *args, version=version, **options)

    monkeypatch.setattr(Agent, "update", noted)
    assert swap_report("cpu", workload=SMALL) is not None
    assert updates == [(0, 1), (0, 1), (1, 2), (1, 2), (2, 3), (2, 3)]


def test_turn_that_fails_is_the_last_one_and_says_whose(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers, step = count(1), TorchLearner.optimizer_step

    def failing(self: TorchLearner) -> Any:
        if next(numbers) > 2:  # the first agent's two updates
            raise RuntimeError("CUDA out of memory")
        return step(self)

    monkeypatch.setattr(TorchLearner, "optimizer_step", failing)
    report = swap_report("cpu", workload=SMALL)
    assert report is not None
    assert [step["name"] for step in report["steps"]] == STEPS[:3]
    assert (report["is_ok"], report["steps"][-1]["detail"]) == (False, "RuntimeError: CUDA out of memory")


def test_agents_with_devices_of_their_own_have_no_swaps_to_try() -> None:
    assert swap_report("cpu_deepspeed", overrides=("placement.kind=ray",)) is None


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here; make test-vllm")
def test_two_engines_of_vllm_take_turns() -> None:
    words = ("engine.vllm.process=own",)
    report = swap_report("cpu_vllm", workload=SMALL, overrides=words)
    assert report is not None
    assert report["is_ok"], report["steps"][-1]
    assert "vllm samplers" in report["steps"][0]["detail"]


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_two_agents_take_turns_on_a_gpu() -> None:
    report = swap_report("one_gpu_vllm" if importlib.util.find_spec("vllm") else "one_gpu", workload=SMALL)
    assert report is not None
    assert report["is_ok"], report["steps"][-1]
    assert report["steps"][-1]["figures"]["swap_device_gib"] > 0
