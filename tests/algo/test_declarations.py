"""The methods of experiments/methods: every ablation is a field, and only that field."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from flows.compose import available, compose
from hacpo_core.algo.methods import Method
from hacpo_core.algorithm import method_of
from hacpo_core.config import ExperimentConfig

# What each file of experiments/methods declares differently from HACPO; everything else must be HACPO's.
DECLARED: dict[str, dict[str, object]] = {
    "hacpo": {},
    "hacpo_no_adv": {"baseline": "own"},
    "hacpo_no_omega": {"cross_weight": "one"},
    "hacpo_no_baseline_omega": {"baseline": "pooled"},
    "hacpo_alpha0": {"cross_exponent": 0.0},
    "hacpo_alpha1": {"cross_exponent": 1.0},
    "hacpo_alpha2": {"cross_exponent": 2.0},
    "hacpo_alpha3": {"cross_exponent": 3.0},
    "hacpo_no_clip": {"cross_bounds": "none"},
    "hacpo_no_stepwise": {"cross_step": 0.0},
    "hacpo_window1": {"capability_window": 1},
    "hacpo_window5": {"capability_window": 5},
    "hacpo_window20": {"capability_window": 20},
    "gspo": {"shares_rollouts": False, "baseline": "own", "cross_weight": "one"},
    "gspo_x2": {"shares_rollouts": False, "baseline": "own", "cross_weight": "one", "rollout_factor": 2},
    "grpo": {
        "ratio": "token",
        "shares_rollouts": False,
        "baseline": "own",
        "cross_weight": "one",
        "own_low": 0.2,
        "own_high": 0.28,
    },
    "naive": {
        "baseline": "pooled",
        "cross_weight": "one",
        "cross_exponent": 0.0,
        "cross_bounds": "own",
        "cross_is_pessimistic": True,
    },
}
PAPER = {
    "ratio": "sequence",
    "shares_rollouts": True,
    "baseline": "capability",
    "cross_baseline": "source",
    "cross_weight": "capability",
    "cross_exponent": 1.0,
    "cross_power": "ratio",
    "cross_bounds": "stepwise",
    "cross_is_pessimistic": False,
    "cross_floor": 0.8,
    "cross_step": 0.025,
    "own_low": 0.1,  # of the tiny pair; the paper's 3e-4 and 4e-4 are the schema's defaults
    "own_high": 0.1,
    "aggregation": "sum_of_means",
    "token_aggregation": "token_mean",
    "binary_guard": True,
    "capability_metric": "reward_mean",
    "capability_window": 5,
    "kl_coef": 0.0,
    "rollout_factor": 1,
}


@cache
def composed(name: str) -> ExperimentConfig:
    return compose("tiny", name)


def test_every_declared_method_is_listed_here() -> None:
    assert set(available("method")) == set(DECLARED)


@pytest.mark.parametrize("name", DECLARED)
def test_method_differs_from_hacpo_in_its_declared_fields_alone(name: str) -> None:
    assert method_of(composed(name)) == Method(name=name, **{**PAPER, **DECLARED[name]})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("section", "setting", "field", "value"),
    [
        ("capability", "metric", "capability_metric", "positive_rate"),
        ("advantage", "cross_baseline", "cross_baseline", "learner"),
        ("advantage", "binary_guard", "binary_guard", False),
        ("objective", "aggregation", "aggregation", "mean_of_rows"),
        ("objective", "cross_power", "cross_power", "clipped"),
        ("objective", "kl_coef", "kl_coef", 0.001),
        ("clip", "cross_floor", "cross_floor", 0.9),
    ],
)
def test_each_conformance_setting_changes_one_field(section: str, setting: str, field: str, value: object) -> None:
    config = composed("hacpo")
    changed = replace(config, **{section: replace(getattr(config, section), **{setting: value})})
    before, after = method_of(config), method_of(changed)
    assert after == replace(before, **{field: value})  # type: ignore[arg-type]
    assert after != before


def test_official_preset_sets_all_of_the_methods_conformance_fields() -> None:
    paper = method_of(composed("hacpo"))
    official = method_of(compose("tiny", "hacpo", overrides=["conformance=official"]))
    assert official == replace(
        paper,
        capability_metric="positive_rate",
        cross_baseline="learner",
        aggregation="mean_of_rows",
        cross_power="clipped",
        kl_coef=0.001,
    )
