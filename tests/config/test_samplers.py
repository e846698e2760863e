"""What a sampler declares is what checks, plans and memory estimates read; a user's class is found like a method's."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flows.planning.capacity import check_fits, with_memory_plan
from flows.planning.compose import compose
from flows.planning.host_memory import host_gib
from flows.planning.memory import agent_memory
from flows.planning.plans import contents_of, initial_models, load_benchmarks, plan
from hacpo_core.config import AUTO, EngineConfig, ExperimentConfig
from hacpo_core.config.counts import num_gpus, occupied_gpus
from hacpo_core.config.fields import setting
from hacpo_core.config.identity import experiment_id, identity_fields
from hacpo_core.config.samplers import SHIPPED, SamplerKind, TransferCheck, find_sampler, sampler_of
from hacpo_core.data.benchmarks import Benchmark
from hacpo_core.engines.learning.allocator import EXPANDABLE, VARIABLE, use_expandable_segments
from hacpo_core.errors import CapacityError, ConfigError, DataError
from hacpo_core.evaluation.prompts import check_prompts
from hacpo_core.placement.agent_tokenizer import AgentTokenizer
from tests.flows.planning.test_memory import BILLION, config_of

HERE = "engine.sampler=tests.config.test_samplers"
OWN = f"{HERE}:OwnEngine"
OPTION = "engine.sampler_options"


@dataclass(frozen=True)
class OwnEngine(SamplerKind):
    """An engine in processes of its own, each on some GPUs."""

    memory_share: float | str | None = setting(None, "share of a GPU", identity=False)
    num_gpus: int = setting(2, "GPUs of an engine", at_least=1)
    max_tokens: int | None = setting(None, "longest prompt and response", unit="tokens")
    sleeps: bool = setting(True, "release memory between rollouts", identity=False)

    title = "the engine"
    asleep_gib = 1.0

    def why_unfit(self, config: ExperimentConfig) -> str | None:
        is_short = self.max_tokens is not None and self.max_tokens < config.rollout.max_response_tokens
        return f"{OPTION}.max_tokens: got {self.max_tokens}; raise it" if is_short else None

    def gpus_per_process(self, engine: EngineConfig) -> int:
        return self.num_gpus

    def has_own_process(self, engine: EngineConfig) -> bool:
        return True

    def can_sleep(self, engine: EngineConfig) -> bool:
        return self.sleeps

    def gpu_share(self, engine: EngineConfig) -> float | str | None:
        return self.memory_share

    def max_sequence(self, config: ExperimentConfig) -> int | None:
        return self.max_tokens

    def open(self, model: Any, *, config: Any, agent: str, initial: Path, eos_ids: Any, pad_id: int) -> Any:
        raise AssertionError("not opened")


@dataclass(frozen=True)
class SleepsHere(OwnEngine):
    def has_own_process(self, engine: EngineConfig) -> bool:
        return False


@dataclass(frozen=True)
class NeverOpens(SamplerKind):
    pass


class NoDataclass:
    pass


BAD_SAMPLERS = {
    ("engine.sampler=vlm",): "'vlm', expected one of transformers, vllm, or package.module:Class .*did you mean vllm",
    ("engine.sampler=nowhere:Engine",): "engine.sampler: nowhere:Engine cannot be imported .*on PYTHONPATH",
    (f"{HERE}:NoDataclass",): "is not of class SamplerKind; derive a frozen dataclass from hacpo_core.config.samp",
    (f"{HERE}:NeverOpens",): "engine.sampler: .*NeverOpens lacks open; implement it",
    (OWN, f"{OPTION}.num_gpu=1"): rf"{OPTION}.num_gpu \(in the command line\): .*num_gpus",
    (OWN, f"{OPTION}.num_gpus=0"): rf"{OPTION}.num_gpus: got 0, expected a value of at least 1",
    (OWN, f"{OPTION}=3"): rf"{OPTION} \(in the command line\): got 3, expected a mapping",
    (f"{OPTION}.num_gpus=1",): rf"{OPTION}.num_gpus \(in the command line\): .*; correct it, or engine.sampler=",
    (OWN, f"{OPTION}.max_tokens=8"): rf"{OPTION}.max_tokens: got 8; raise it",
    (OWN, "engine.device=cuda", "placement.kind=ray", "placement.colocated=true"): (
        rf"{OPTION}.num_gpus: got 2 with placement.colocated=true, where each rank gets a share of a single GPU"
    ),
}


def test_sampler_that_cannot_be_is_one_sentence() -> None:
    for words, message in BAD_SAMPLERS.items():
        with pytest.raises(ConfigError, match=message) as caught:
            compose("tiny", "hacpo", overrides=words)
        assert "\n" not in str(caught.value), words


def test_options_are_those_of_the_layers_from_the_one_that_names_the_sampler(tmp_path: Path) -> None:
    hardware = tmp_path / "mine.yaml"
    engine = {"sampler": OWN.partition("=")[2], "sampler_options": {"num_gpus": 4, "sleeps": False}}
    hardware.write_text(json.dumps({"engine": engine}), encoding="utf-8")

    def options(*words: str) -> Any:
        return sampler_of(compose("tiny", "hacpo", hardware=str(hardware), overrides=words).engine)

    assert options() == OwnEngine(num_gpus=4, sleeps=False)
    assert options(OWN, f"{OPTION}.num_gpus=1") == OwnEngine(num_gpus=1, sleeps=False)
    assert options("engine.sampler=transformers") == find_sampler("transformers")()


def test_id_holds_the_options_and_the_source_of_an_own_sampler_and_nothing_of_a_shipped_one() -> None:
    def name(*words: str) -> str:
        return experiment_id(compose("tiny", "hacpo", overrides=words), {})

    assert not {field for field in identity_fields(compose("tiny", "hacpo")) if field.startswith(OPTION)}
    assert name(OWN) == name(OWN, f"{OPTION}.sleeps=false")
    assert len({name(), name(OWN), name(OWN, f"{OPTION}.num_gpus=1")}) == 3
    assert "engine.sampler" in contents_of(compose("tiny", "hacpo", overrides=[OWN]))
    assert "engine.sampler" not in contents_of(compose("tiny", "hacpo"))


def test_changed_source_of_an_own_sampler_is_another_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "changing_sampler.py"
    source = "from tests.config.test_samplers import OwnEngine as Mine\n"
    monkeypatch.syspath_prepend(tmp_path)
    ids = []
    for text in (source, f"{source}# faster\n"):
        module.write_text(text, encoding="utf-8")
        words = ["engine.sampler=changing_sampler:Mine", f"runtime.runs_dir={tmp_path}"]
        ids.append(plan(compose("tiny", "gspo", overrides=words)).id)
    assert ids[0] != ids[1]


def test_gpus_of_each_process_are_counted() -> None:
    words = [OWN, "engine.device=cuda"]
    local = compose("tiny", "hacpo", overrides=words)
    assert (num_gpus(local), occupied_gpus(local)) == (2, 2), "agents take turns in one process"
    ray = compose("tiny", "hacpo", overrides=[*words, "placement.kind=ray", f"{OPTION}.num_gpus=3"])
    assert (num_gpus(ray), occupied_gpus(ray)) == (3, 6), "two agents of one rank each"
    assert num_gpus(compose("tiny", "hacpo", overrides=[OWN])) == 0, "on the CPU"


def test_memory_is_a_copy_and_the_cache_over_its_gpus_or_the_share_it_asks_for() -> None:
    response = (1024 + 8196) * 2 * 10 * 50 * 2 / 2**30

    def memory(*words: str, is_least: bool = False) -> Any:
        config = config_of("engine.learner=torch", OWN, "rollout.batch_size=8", *words)
        return agent_memory(config, BILLION, ranks=1, gpu_gib=80, is_least=is_least)

    assert memory().sampler == pytest.approx((2.0 + 8 * response) / 2)
    assert memory(is_least=True).sampler == pytest.approx((2.0 + response) / 2)
    assert memory(f"{OPTION}.memory_share=0.25").sampler == 20.0
    assert memory(f"{OPTION}.memory_share=auto").sampler == pytest.approx((2.0 + response) / 2)
    assert memory().always == 1.5 + 0.5, "what stays after an update, and the context of its process"
    assert memory().idle_sampler == 1.0
    awake = memory(f"{OPTION}.sleeps=false")
    assert awake.idle_sampler == awake.sampler


def test_copy_for_another_process_takes_host_memory() -> None:
    words = ("engine.learner=torch", "engine.offloads=true", "engine.grad_dtype=same")
    here, other = config_of(*words), config_of(*words, OWN)
    shapes = dict.fromkeys(here.pair.agents, BILLION)
    assert host_gib(here, shapes) == 28.0, "masters and moments 12, weights 2, of two agents"
    assert host_gib(other, shapes) == 30.0


def test_auto_share_of_an_own_sampler_is_computed_and_a_share_too_large_is_refused_with_it() -> None:
    words = ("engine.learner=torch", OWN, f"{OPTION}.num_gpus=1", "engine.gpu_memory_gb=80")
    config = config_of(*words, f"{OPTION}.memory_share={AUTO}")
    shapes = dict.fromkeys(config.pair.agents, BILLION)
    sampling = 2.0 + 12.0 + 1.5 + 0.5  # weights, optimizer, left of an update, context of the engine
    assert (80 - 3 - 0.5 - sampling - (sampling + 1.0)) / 80 == 0.54375
    planned = with_memory_plan(config, shapes)
    assert planned.engine.sampler_options == OwnEngine(memory_share=0.54, num_gpus=1)
    message = rf"the engine takes 0.9 of it; set {OPTION}.memory_share=auto, which gives 0.54 here"
    with pytest.raises(CapacityError, match=message):
        check_fits(config_of(*words, f"{OPTION}.memory_share=0.9"), shapes)


def test_longest_sequence_of_an_own_sampler_limits_the_prompts_of_a_benchmark(
    small_models: Path,
) -> None:
    words = [OWN, f"{OPTION}.max_tokens=41", f"runtime.runs_dir={small_models}"]
    config = compose(str(small_models / "small.yaml"), "hacpo", overrides=words)
    folder = initial_models(config)["qwen"].make()
    tokens = AgentTokenizer("qwen", config.pair.agents["qwen"], initial=folder, stops_at_turn_end=True)
    benchmarks: list[Benchmark] = list(load_benchmarks(config).values())
    with pytest.raises(
        DataError, match="expected at most 1 before a response of up to 40; .* let the engine take more than 41"
    ):
        check_prompts(benchmarks, tokens, config, folder=folder)


@pytest.mark.parametrize(("name", "expected"), [("OwnEngine", EXPANDABLE), ("SleepsHere", None)])
def test_engine_that_sleeps_in_the_learners_process_keeps_plain_segments(
    name: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in (VARIABLE, "PYTORCH_ALLOC_CONF"):
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    monkeypatch.setattr("hacpo_core.engines.learning.allocator._has_users_choice", lambda: False)
    use_expandable_segments(EngineConfig(device="cuda", sampler=f"tests.config.test_samplers:{name}"))
    assert os.environ.get(VARIABLE) == expected


def test_transfer_is_checked_with_the_limits_of_the_sampler() -> None:
    vllm = compose("tiny", "hacpo", overrides=["engine.sampler=vllm", "engine.vllm.sync_tolerance=0.5"]).engine
    assert sampler_of(vllm).transfer_check(vllm) == TransferCheck(256, 0.5, 2.0, "engine.vllm.sync_tolerance")
    own = EngineConfig(sampler=OWN.partition("=")[2])
    assert sampler_of(own).transfer_check(own) == TransferCheck(256, 1e-3, 2.0, f"{OPTION}.sync_tolerance")


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_samplers_are_classes_that_can_be_opened(name: str) -> None:
    kind = find_sampler(name)
    assert issubclass(kind, SamplerKind) and not kind.__abstractmethods__
