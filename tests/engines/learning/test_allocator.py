"""When torch's CUDA allocator uses expandable segments."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flows.planning.compose import compose
from flows.planning.plans import plan
from flows.runs.opening import open_experiment
from hacpo_core.config import EngineConfig
from hacpo_core.data.training import load_training
from hacpo_core.engines.learning import allocator
from hacpo_core.engines.learning.allocator import EXPANDABLE, VARIABLE, use_expandable_segments
from hacpo_core.engines.sampling.transformers_sampler import TransformersSampler
from hacpo_core.errors import ConfigError, EngineError
from hacpo_core.placement.agent_tokenizer import AgentTokenizer
from hacpo_core.placement.agents import Agent
from hacpo_core.placement.initial_model import InitialModel
from tests.conftest import specs_of
from tests.engines.vllm.test_vllm_config import new_sampler


@pytest.fixture(autouse=True)
def no_choice(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (VARIABLE, "PYTORCH_ALLOC_CONF"):
        monkeypatch.setenv(name, "")  # so that it is restored
        monkeypatch.delenv(name)
    allocator._has_users_choice.cache_clear()
    yield
    allocator._has_users_choice.cache_clear()


def test_segments_expand_on_a_gpu_alone() -> None:
    use_expandable_segments(EngineConfig(device="cpu"))
    assert VARIABLE not in os.environ
    use_expandable_segments(EngineConfig(device="cuda"))
    assert os.environ[VARIABLE] == EXPANDABLE


@pytest.mark.parametrize("name", [VARIABLE, "PYTORCH_ALLOC_CONF"])
def test_users_own_settings_stay(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "max_split_size_mb:512")
    use_expandable_segments(EngineConfig(device="cuda"))
    assert {key: os.environ[key] for key in (VARIABLE, "PYTORCH_ALLOC_CONF") if key in os.environ} == {
        name: "max_split_size_mb:512"
    }


@pytest.mark.parametrize(("chosen", "expected"), [(None, None), (EXPANDABLE, EXPANDABLE)])
def test_engine_in_processes_of_its_own_does_not_inherit_the_learners_setting(
    chosen: str | None, expected: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """But it gets what the user chose."""
    inherited: list[str | None] = []

    class Engine:
        def __init__(self, **_: object) -> None:
            inherited.append(os.environ.get(VARIABLE))
            raise RuntimeError("seen")

    platforms = SimpleNamespace(current_platform=SimpleNamespace(device_type="cuda"))
    stub = SimpleNamespace(LLM=Engine, envs=SimpleNamespace(disable_envs_cache=lambda: None), platforms=platforms)
    for name in ("vllm", "vllm.envs", "vllm.platforms"):
        monkeypatch.setitem(sys.modules, name, stub)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    if chosen is not None:
        monkeypatch.setenv(VARIABLE, chosen)
    engine = EngineConfig(device="cuda", sampler="vllm")
    use_expandable_segments(engine)
    with pytest.raises(EngineError, match="the engine did not start: seen"):
        new_sampler(tmp_path, engine)
    assert inherited == [expected]
    assert os.environ[VARIABLE] == EXPANDABLE, "the learner keeps it"


def test_agent_chooses_before_its_model_is_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def load(*_: object, **__: object) -> None:
        raise RuntimeError(os.environ.get(VARIABLE))

    monkeypatch.setattr("hacpo_core.placement.agents.load_model", load)
    config = compose("tiny", "hacpo", hardware="one_gpu_vllm")
    tokens = SimpleNamespace(name="qwen-tiny")
    with pytest.raises(RuntimeError, match=EXPANDABLE):
        Agent(tokens, config, initial=tmp_path, folder=tmp_path, version=0)  # type: ignore[arg-type]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_run_chooses_before_anything_is_loaded(tmp_path: Path) -> None:
    planned = plan(compose("tiny", "hacpo", hardware="one_gpu", overrides=[f"runtime.runs_dir={tmp_path}"]))
    with pytest.raises(ConfigError, match="sees no GPU"), open_experiment(planned):
        pass
    assert os.environ[VARIABLE] == EXPANDABLE


def test_allocator_gives_back_what_is_free_before_a_sampler_starts_and_whenever_others_may_need_it(
    small_models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    class Noted(TransformersSampler):
        def __init__(self, *args: Any, **options: Any) -> None:
            events.append("sampler starts")
            super().__init__(*args, **options)

        def synchronise(self, version: int, check: Callable[[], None]) -> None:
            events.append("synchronise")

    monkeypatch.setattr("hacpo_core.placement.agents.release_unused", lambda device: events.append("release"))
    monkeypatch.setattr("hacpo_core.placement.agents.TransformersSampler", Noted)
    config = compose(str(small_models / "small.yaml"), "hacpo")
    folder = InitialModel("qwen", config.pair.agents["qwen"], small_models / "models").make()
    tokens = AgentTokenizer("qwen", config.pair.agents["qwen"], initial=folder)
    agent = Agent(tokens, config, initial=folder, folder=folder, version=0)
    assert events == ["release", "sampler starts"]
    responses = agent.sample(specs_of(config, load_training(config.data).problems[:1]), step=1, purpose="rollout")
    assert events[2:] == ["release", "synchronise"]
    for work in (lambda: agent.score(responses), agent.rest):
        events.clear()
        work()
        assert events == ["release"]
    monkeypatch.setattr(agent.learner, "update", lambda *_, **__: None)
    events.clear()
    agent.update([], config.method.objective, version=1)
    assert events == ["release"]
