"""What a configuration says of DeepSpeed: checked, without effect under another learner, and no part of older ids."""

from __future__ import annotations

import sys

import pytest

from flows.planning.compose import compose
from hacpo_core.config import DeepspeedConfig, EngineConfig, OptimizerConfig
from hacpo_core.config.identity import experiment_id, inert_fields
from hacpo_core.engines.deepspeed.learner import DeepspeedLearner
from hacpo_core.errors import ConfigError, EngineError
from tests.engines.small import small_model

DEEPSPEED = "engine.learner=deepspeed"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["engine.learner=fsdp"], "engine.learner: got 'fsdp', expected one of torch, deepspeed"),
        (["engine.deepspeed.stage=2"], "engine.deepspeed.stage cannot take effect: engine.learner is torch"),
        ([DEEPSPEED, "engine.deepspeed.stage=4"], r"engine.deepspeed.stage: got 4, expected one of 0, 1, 2, 3"),
        ([DEEPSPEED, "engine.deepspeed.stage=-1"], r"engine.deepspeed.stage: got -1, expected one of 0, 1, 2, 3"),
        (
            [DEEPSPEED, "engine.deepspeed.stage=2", "engine.deepspeed.offload_parameters=true"],
            "engine.deepspeed.offload_parameters: got true with engine.deepspeed.stage=2, which keeps all",
        ),
        (
            [DEEPSPEED, "engine.deepspeed.stage=0", "engine.deepspeed.offload_optimizer=true"],
            "engine.deepspeed.offload_optimizer: got true with engine.deepspeed.stage=0, which cannot",
        ),
    ],
)
def test_bad_field_is_one_sentence_that_names_it(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        compose("tiny", "hacpo", overrides=overrides)
    assert "\n" not in str(caught.value)


def test_offloading_at_its_stages_is_accepted() -> None:
    words = [DEEPSPEED, "engine.deepspeed.stage=3", "engine.deepspeed.offload_optimizer=true"]
    deepspeed = compose(
        "tiny", "hacpo", overrides=[*words, "engine.deepspeed.offload_parameters=true"]
    ).engine.deepspeed
    assert deepspeed == DeepspeedConfig(stage=3, offload_optimizer=True, offload_parameters=True)


@pytest.mark.slow
def test_id_depends_on_the_learner_and_its_stage_and_not_on_where_tensors_lie() -> None:
    def name(*overrides: str) -> str:
        return experiment_id(compose("tiny", "hacpo", overrides=overrides), {})

    assert name(DEEPSPEED) == name(DEEPSPEED, "engine.deepspeed.offload_optimizer=true")
    stages = [name(DEEPSPEED, f"engine.deepspeed.stage={stage}") for stage in range(4)]
    assert len({name(), *stages}) == 5
    assert name(DEEPSPEED) == stages[2]


def test_all_fields_of_deepspeed_are_inert_under_another_learner() -> None:
    def inert(*overrides: str) -> set[str]:
        found = inert_fields(compose("tiny", "hacpo", overrides=overrides))
        return {field for field in found if field.startswith("engine.deepspeed.")}

    assert inert() == {f"engine.deepspeed.{name}" for name in vars(DeepspeedConfig())}
    assert inert(DEEPSPEED) == set()


def test_missing_deepspeed_is_one_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", None)  # an import then fails as if it were not installed
    message = r"engine.learner: deepspeed cannot be imported .*pip install 'hacpo\[deepspeed\]', or set engine.learner="
    with pytest.raises(EngineError, match=message):
        DeepspeedLearner(
            small_model(),
            optimizer=OptimizerConfig(),
            engine=EngineConfig(learner="deepspeed"),
            temperature=1.0,
            total_updates=1,
        )


@pytest.mark.deepspeed
def test_engine_that_does_not_start_is_one_error_with_what_to_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    deepspeed = pytest.importorskip("deepspeed", reason="needs the deepspeed extra")

    def initialize(**options: object) -> None:
        raise RuntimeError("out of memory:\n tried to allocate")

    monkeypatch.setattr(deepspeed, "initialize", initialize)
    message = "did not start: out of memory: tried to allocate; if memory is short, raise engine.deepspeed.stage or off"
    with pytest.raises(EngineError, match=message):
        DeepspeedLearner(
            small_model(),
            optimizer=OptimizerConfig(),
            engine=EngineConfig(learner="deepspeed"),
            temperature=1.0,
            total_updates=1,
        )
