"""`engine.num_threads: auto` shares the usable cores out; a number stands for itself."""

from dataclasses import replace
from pathlib import Path

import pytest

from flows.planning.compose import compose
from hacpo_core.config import AgentConfig, EngineConfig, ExperimentConfig, PlacementConfig, RayConfig, TeamConfig
from hacpo_core.config import threads as threads_module
from hacpo_core.config.threads import SLOTS, num_threads, usable_cores
from hacpo_core.errors import ConfigError

PAIR = TeamConfig(agents={"a": AgentConfig(path="/a"), "b": AgentConfig(path="/b")})


@pytest.fixture(autouse=True)
def twelve_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads_module.os, "sched_getaffinity", lambda _: set(range(12)))
    monkeypatch.setattr(threads_module, "CPU_LIMIT", Path("/nowhere"))
    monkeypatch.delenv(SLOTS, raising=False)


def config_of(placement: PlacementConfig | None = None, **engine: object) -> ExperimentConfig:
    return replace(
        ExperimentConfig(),
        pair=PAIR,
        engine=EngineConfig(**engine),  # type: ignore[arg-type]
        placement=placement or PlacementConfig(),
    )


@pytest.mark.parametrize(("slots", "expected"), [("", 12), ("1", 12), ("5", 2), ("12", 1), ("40", 1)])
def test_auto_shares_cores_among_slots(slots: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SLOTS, slots)
    assert num_threads(config_of()) == expected
    assert num_threads(config_of(num_threads=7)) == 7


def test_auto_shares_cores_among_this_machines_processes() -> None:
    assert num_threads(config_of(PlacementConfig(kind="ray"))) == 6
    assert num_threads(config_of(PlacementConfig(kind="ray", colocated=True))) == 12
    assert num_threads(config_of(PlacementConfig(kind="ray", ray=RayConfig(address="auto")))) == 1


@pytest.mark.parametrize(
    ("limit", "expected"), [("max 100000", 12), ("300000 100000", 3), ("50000 100000", 1), ("9900000 100000", 12)]
)
def test_limit_of_a_container_counts(
    limit: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu.max").write_text(limit + "\n")
    monkeypatch.setattr(threads_module, "CPU_LIMIT", tmp_path / "cpu.max")
    assert usable_cores() == expected


@pytest.mark.parametrize("wrong", ["all", "0", "5000"])
def test_other_words_and_counts_are_refused(wrong: str) -> None:
    said = rf"engine.num_threads: got '?{wrong}'?, expected auto or a whole number in \[1, 4096\]"
    with pytest.raises(ConfigError, match=said):
        compose("tiny", "gspo", overrides=[f"engine.num_threads={wrong}"])
