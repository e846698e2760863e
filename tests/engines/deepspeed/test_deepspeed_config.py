"""What a configuration says of DeepSpeed: checked, without effect under another learner, and no part of older ids."""

import sys

import pytest

from flows.planning.compose import compose
from hacpo_core.config import EngineConfig, OptimizerConfig
from hacpo_core.engines.deepspeed.learner import DeepspeedLearner
from hacpo_core.errors import ConfigError, EngineError
from tests.engines.small import small_model

DEEPSPEED = "engine.learner=deepspeed"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["engine.learner=fsdp"], "engine.learner: got 'fsdp', expected one of torch, deepspeed"),
        (["engine.deepspeed.stage=2"], "engine.deepspeed.stage cannot take effect: engine.learner is torch"),
        ([DEEPSPEED, "engine.deepspeed.stage=4"], r"engine.deepspeed.stage: got 4, expected one of 1, 2"),
    ],
)
def test_bad_field_is_one_sentence_that_names_it(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        compose("tiny", "hacpo", overrides=overrides)
    assert "\n" not in str(caught.value)


def new_learner() -> DeepspeedLearner:
    engine = EngineConfig(learner="deepspeed")
    return DeepspeedLearner(small_model(), optimizer=OptimizerConfig(), engine=engine, temperature=1.0, total_updates=1)


def test_missing_deepspeed_is_one_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", None)  # an import then fails as if it were not installed
    message = r"engine.learner: deepspeed cannot be imported .*pip install 'hacpo\[deepspeed\]', or set engine.learner="
    with pytest.raises(EngineError, match=message):
        new_learner()


@pytest.mark.deepspeed
def test_engine_that_does_not_start_is_one_error_with_what_to_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    deepspeed = pytest.importorskip("deepspeed", reason="needs the deepspeed extra")

    def initialize(**options: object) -> None:
        raise RuntimeError("out of memory:\n tried to allocate")

    monkeypatch.setattr(deepspeed, "initialize", initialize)
    message = "did not start: out of memory: tried to allocate; if memory is short, raise engine.deepspeed.stage or off"
    with pytest.raises(EngineError, match=message):
        new_learner()
