"""How many steps may be replayed on a GPU."""

from pathlib import Path

import pytest

from flows.planning.compose import compose
from flows.planning.plans import plan
from hacpo_core.config.replays import MAX_REPLAYED_STEPS, NEAR_SHARE, expected_distance
from hacpo_core.errors import ConfigError


def test_checkpoints_come_before_half_of_the_limit_is_used() -> None:
    assert expected_distance(1) == 0.037
    assert expected_distance(10) == pytest.approx(0.106, abs=1e-3), "measured: .106"
    assert expected_distance(MAX_REPLAYED_STEPS) <= NEAR_SHARE / 2 < expected_distance(MAX_REPLAYED_STEPS + 1)
    assert expected_distance(28) < NEAR_SHARE < expected_distance(29), "some thirty"


@pytest.mark.parametrize("words", [(), ("engine.deterministic=true",), ("checkpoint.accept_divergence=true",)])
def test_rare_checkpoints_are_refused_where_replays_drift(words: tuple[str, ...], tmp_path: Path) -> None:
    runs = f"runtime.runs_dir={tmp_path}"
    rare = compose("tiny", "hacpo", hardware="one_gpu", overrides=[runs, "checkpoint.every=13", *words])
    if words:
        assert plan(rare).config.checkpoint.every == 13
        return
    with pytest.raises(ConfigError, match=r"checkpoint.every: got 13, expected at most 12 on a GPU, .*; set it to 12,"):
        plan(rare)


@pytest.mark.parametrize(
    ("hardware", "words"),
    [
        ("one_gpu", ("checkpoint.every=12",)),
        ("one_gpu", ("checkpoint.every=100", "train.num_steps=12")),
        ("cpu", ("checkpoint.every=100",)),
    ],
)
def test_others_are_planned(hardware: str, words: tuple[str, ...], tmp_path: Path) -> None:
    runs = f"runtime.runs_dir={tmp_path}"
    plan(compose("tiny", "hacpo", hardware=hardware, overrides=[runs, *words]))
