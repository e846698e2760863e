"""What a configuration says of vLLM: checked, without effect under another sampler, and no part of older ids."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flows.planning.compose import compose
from hacpo_core.config import EngineConfig, RolloutConfig, VllmConfig
from hacpo_core.config.counts import longest_sequence
from hacpo_core.config.identity import experiment_id
from hacpo_core.engines.sampling.base import SampleRequest
from hacpo_core.engines.vllm import sampler as vllm_sampler
from hacpo_core.engines.vllm.sampler import VllmSampler
from hacpo_core.errors import ConfigError, EngineError
from hacpo_core.records import SamplingLimits
from tests.engines.small import small_model

VLLM = "engine.sampler=vllm"
ON_TWO_GPUS = ("engine.device=cuda", "engine.vllm.tensor_parallel_size=2")


def new_sampler(folder: Path, engine: EngineConfig, *, unknown_ids: tuple[int, ...] = ()) -> VllmSampler:
    options: dict[str, Any] = {"engine": engine, "rollout": RolloutConfig(), "max_tokens": 8, "eos_ids": [1]}
    return VllmSampler(small_model(), initial=folder, unknown_ids=unknown_ids, **options)


def test_bad_field_is_one_sentence_that_names_it() -> None:
    two_on_one = (*ON_TWO_GPUS, "placement.kind=ray", "placement.colocated=true")
    for words, message in (
        (["engine.sampler=sglang"], "engine.sampler: got 'sglang', expected one of transformers, vllm"),
        (["engine.vllm.memory_share=0.5"], "engine.vllm.memory_share cannot take effect: engine.sampler is transf"),
        ([VLLM, "engine.vllm.memory_share=1.5"], r"engine.vllm.memory_share: got 1.5, expected .*\(0, 1\]"),
        ([VLLM, "engine.vllm.quantization=int3"], "engine.vllm.quantization: got 'int3', expected one of fp8"),
        ([VLLM, *two_on_one], "got 2 with placement.colocated=true, where each rank gets a share"),
        ([VLLM, "rollout.top_p=0.9", "rollout.temperature=0.6"], "rollout.top_p: got 0.9 with .* 0.6, for which vLLM"),
    ):
        with pytest.raises(ConfigError, match=message):
            compose("tiny", "hacpo", overrides=words)


@pytest.mark.slow
def test_id_depends_on_the_sampler_and_not_on_its_memory_or_place() -> None:
    def name(*overrides: str) -> str:
        return experiment_id(compose("tiny", "hacpo", overrides=overrides), {})

    same = [(), ("engine.vllm.memory_share=0.2",), ("engine.vllm.kv_cache_gb=1",)]
    assert len({name(VLLM, *overrides) for overrides in same}) == 1
    others = ("engine.vllm.enforce_eager=true", "engine.vllm.quantization=fp8")
    assert len({name(), name(VLLM), *(name(VLLM, override) for override in others)}) == 4


def test_engine_has_room_for_the_longest_response_of_training_and_evaluation() -> None:
    assert longest_sequence(compose("tiny", "hacpo")) == 80
    assert longest_sequence(compose("tiny", "hacpo", overrides=["rollout.max_response_tokens=64"])) == 104
    longer = ["evaluate.benchmarks.arithmetic_dev.max_response_tokens=100"]
    assert longest_sequence(compose("tiny", "hacpo", overrides=longer)) == 140


class FailingEngine:
    """Stands for vLLM's engine: every `generate` fails."""

    def __init__(self) -> None:
        self.is_shut_down = False
        self.llm_engine = SimpleNamespace(engine_core=self)

    def shutdown(self, timeout: float) -> None:
        self.is_shut_down = True

    def collective_rpc(self, *_: Any, **__: Any) -> list[None]:
        return [None]

    def generate(self, *_: Any, **__: Any) -> None:
        raise RuntimeError("CUDA error: an illegal address was met")


def options_of(vllm: VllmConfig, monkeypatch: pytest.MonkeyPatch, folder: Path) -> dict[str, Any]:
    """What vLLM is started with."""
    given: dict[str, Any] = {}

    def start(options: dict[str, Any], engine: EngineConfig) -> FailingEngine:
        given.update(options)
        return FailingEngine()

    monkeypatch.setattr(vllm_sampler, "start_engine", start)
    new_sampler(folder, EngineConfig(sampler="vllm", vllm=vllm)).close()
    return given


@pytest.mark.parametrize(("size", "executor"), [(1, None), (2, "mp")])
def test_engine_on_several_gpus_starts_its_processes_itself_and_not_by_ray(
    size: int, executor: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = options_of(VllmConfig(tensor_parallel_size=size), monkeypatch, tmp_path)
    assert given["tensor_parallel_size"] == size
    assert given.get("distributed_executor_backend") == executor


def test_quantization_is_passed_on_if_it_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert options_of(VllmConfig(quantization="fp8"), monkeypatch, tmp_path)["quantization"] == "fp8"
    assert "quantization" not in options_of(VllmConfig(), monkeypatch, tmp_path)


def test_seeds_fit_into_the_signed_integers_that_vllm_keeps_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[int] = []
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=lambda **o: asked.append(o["seed"])))
    monkeypatch.setattr(vllm_sampler, "start_engine", lambda *_: FailingEngine())
    sampler = new_sampler(tmp_path, EngineConfig(sampler="vllm"))
    requests = [SampleRequest((1, 2), seed=seed) for seed in (0, 2**63 - 1, 2**63 + 5, 2**64 - 1)]
    with pytest.raises(EngineError, match="sampling failed"):
        sampler.sample(requests, SamplingLimits(1.0, 1.0, 4))
    assert asked == [0, 2**63 - 1, 5, 2**63 - 1]


def test_rows_without_a_token_are_never_sampled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=lambda **o: asked.append(o)))
    monkeypatch.setattr(vllm_sampler, "start_engine", lambda *_: FailingEngine())
    sampler = new_sampler(tmp_path, EngineConfig(sampler="vllm"), unknown_ids=(5, 7))
    with pytest.raises(EngineError, match="sampling failed"):
        sampler.sample([SampleRequest((1, 2), seed=0)], SamplingLimits(1.0, 1.0, 4))
    assert asked[0]["logit_bias"] == {5: -1e9, 7: -1e9}


def test_narrowing_is_passed_on_unless_the_likeliest_token_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=lambda **o: asked.append(o)))
    monkeypatch.setattr(vllm_sampler, "start_engine", lambda *_: FailingEngine())
    for is_greedy, expected in ((False, 0.9), (True, 1.0)):
        sampler = new_sampler(tmp_path, EngineConfig(sampler="vllm"))
        limits = SamplingLimits(1.0, 0.9, 4, is_greedy)
        with pytest.raises(EngineError, match="sampling failed"):
            sampler.sample([SampleRequest((1, 2), seed=0)], limits)
        assert asked[-1]["top_p"] == expected
        assert sampler.reports_policy(limits) is is_greedy, "the engine was started for a policy without narrowing"


def test_retry_after_a_failure_names_the_first_cause(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=dict))
    monkeypatch.setattr(vllm_sampler, "start_engine", lambda *_: FailingEngine())
    sampler = new_sampler(tmp_path, EngineConfig(sampler="vllm"))
    with pytest.raises(EngineError, match="vLLM: sampling failed: CUDA error: an illegal address was met"):
        sampler.sample([SampleRequest((1, 2), seed=0)], SamplingLimits(1.0, 1.0, 4))
    with pytest.raises(EngineError, match="has stopped: .*CUDA error.*; resume the experiment"):
        sampler.synchronise(0, lambda: None)
    assert not Path(sampler.bucket.path).exists()


@pytest.mark.parametrize("is_learner", [True, False])
def test_transfer_that_fails_on_either_side_stops_the_engine(
    is_learner: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(call: Any, **_: Any) -> None:
        if is_learner or call == "load_half":
            raise RuntimeError("CUDA error: an illegal address was met")

    engine = FailingEngine()
    monkeypatch.setattr(vllm_sampler, "start_engine", lambda *_: engine)
    sampler = new_sampler(tmp_path, EngineConfig(sampler="vllm"))
    if is_learner:
        monkeypatch.setattr(sampler.bucket, "fill", fail)
    else:
        monkeypatch.setattr(engine, "collective_rpc", fail)
    with pytest.raises(EngineError, match="vLLM: the weights could not be transferred: CUDA error"):
        sampler.synchronise(1, lambda: None)
    assert engine.is_shut_down


def test_missing_vllm_is_one_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)  # an import then fails as if it were not installed
    monkeypatch.delitem(sys.modules, "vllm.platforms", raising=False)
    with pytest.raises(EngineError, match=r"engine.sampler: vllm cannot be imported .*pip install 'hacpo\[vllm\]'"):
        new_sampler(tmp_path, EngineConfig(sampler="vllm"))


def test_what_vllm_changes_for_the_whole_process_is_restored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Importing its CUDA platform switches cuDNN's attention off; its CPU worker replaces `set_num_threads`."""

    class Changes:
        def __init__(self, **options: object) -> None:
            torch.backends.cuda.enable_cudnn_sdp(not before)
            monkeypatch.setattr(torch, "set_num_threads", None)
            raise RuntimeError("cold")

    before, set_num_threads = torch.backends.cuda.cudnn_sdp_enabled(), torch.set_num_threads
    platforms = SimpleNamespace(current_platform=SimpleNamespace(device_type="cpu"))
    stub = SimpleNamespace(LLM=Changes, envs=SimpleNamespace(disable_envs_cache=lambda: None), platforms=platforms)
    for name in ("vllm", "vllm.envs", "vllm.platforms"):
        monkeypatch.setitem(sys.modules, name, stub)
    monkeypatch.delenv("VLLM_ENGINE_READY_TIMEOUT_S", raising=False)
    with pytest.raises(EngineError, match="the engine did not start: cold"):
        new_sampler(tmp_path, EngineConfig(sampler="vllm"))
    assert torch.backends.cuda.cudnn_sdp_enabled() == before
    assert torch.set_num_threads is set_num_threads
    assert os.environ["VLLM_ENGINE_READY_TIMEOUT_S"] == "1800"
