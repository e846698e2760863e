"""The methods of experiments/methods: every ablation is a field, and only that field."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from flows.planning.compose import compose
from flows.planning.declarations import available
from hacpo_core.config import as_dict, flatten

# What each file of experiments/methods declares differently from its base.
ABLATIONS: dict[str, dict[str, object]] = {
    "hacpo_no_adv": {"estimate.baseline": "own"},
    "hacpo_no_omega": {"estimate.cross_weight": "one"},
    "hacpo_no_baseline_omega": {"estimate.baseline": "pooled"},
    "hacpo_alpha0": {"objective.cross_exponent": 0.0},
    "hacpo_alpha1": {},
    "hacpo_alpha2": {"objective.cross_exponent": 2.0},
    "hacpo_alpha3": {"objective.cross_exponent": 3.0},
    "hacpo_no_clip": {"objective.cross_bounds": "none"},
    "hacpo_no_stepwise": {"objective.cross_step": 0.0},
    "hacpo_window1": {"estimate.window": 1},
    "hacpo_window5": {},
    "hacpo_window20": {"estimate.window": 20},
}
EVERY = {"plan.name": "every_problem", "plan.factor": 1, "build.name": "shuffled", "build.problems": 16}
EVERY |= {"build.order": "mixed", "objective.kl_coef": 0.0, "objective.aggregation": "sum_of_means"}
EVERY |= {"objective.kl_aggregation": "rows", "objective.mask_truncated": "none"}
EVERY |= {"objective.entropy_coef": 0.0}
EVERY |= {"build.num_iterations": 1}
EVERY |= {"build.drops_equal_rewards": False, "objective.correction": "none"}
EVERY |= {"objective.correction_level": "sequence", "objective.correction_limit": 3.0}
GROUP = {"estimate.name": "group", "estimate.baseline": "own", "estimate.scale": "group", "shares_rollouts": False}
GROUP |= {"estimate.overlong_share": 0.0, "estimate.overlong_penalty": 1.0}
# 0.1 is the tiny pair's; the paper's 3e-4 and 4e-4 are the defaults.
SEQUENCE = {"objective.sequence_low": 0.1, "objective.sequence_high": 0.1, "objective.log_ratio_clamp": "both"}
GSPO_OBJECTIVE = {**EVERY, "objective.name": "sequence_clip", **SEQUENCE}
GSPO = {**GSPO_OBJECTIVE, **GROUP}
TOKEN_MEAN = {"objective.token_aggregation": "token_mean"}
TOKEN = {
    "objective.name": "token_clip",
    "objective.token_low": 0.2,
    "objective.token_high": 0.28,
    "objective.dual_clip": None,
    **TOKEN_MEAN,
}
SEARCH = {"plan.name": "step_search", "plan.num_searched": 2, "plan.num_beams": 2, "plan.num_candidates": 4}
SEARCH |= {"plan.step_tokens": 256, "plan.step_end": "\n\n", "plan.closing_mark": "</think>"}
EQUAL_BOUNDS = {**EVERY, **TOKEN, "objective.token_high": 0.2, "shares_rollouts": False}
HACPO = {
    **EVERY,
    "shares_rollouts": True,
    "estimate.name": "capability",
    "estimate.window": 5,
    "estimate.metric": "reward_mean",
    "estimate.max_counted": None,
    "estimate.equal_before": 0,
    "estimate.baseline": "capability",
    "estimate.binary_guard": True,
    "estimate.cross_baseline": "source",
    "estimate.cross_weight": "capability",
    "objective.name": "cross_clip",
    **SEQUENCE,
    "objective.cross_exponent": 1.0,
    "objective.cross_bounds": "stepwise",
    "objective.cross_is_pessimistic": False,
    "objective.cross_floor": 0.8,
    "objective.cross_step": 0.025,
}
SELF_NORMALISED = {
    "objective.name": "self_normalised",
    "objective.cross_ceiling": "mirrored",
    "objective.window": 5,
}
DIFFICULTY = {
    "estimate.name": "difficulty_weighted",
    "estimate.anchor": "hard",
    "estimate.anchor_steps": 10,
    "estimate.kalman_gain": 1.0,
    "estimate.difficulty_scale": 1.3,
    "estimate.weighs": "own",
}
BANDIT = {
    "build.name": "bandit",
    "build.kept_share": 0.75,
    "build.reused_share": 0.25,
    "build.reuse_steps": 2,
    "build.exploration": 0.1,
    "build.entropy_limit": 1.0,
    "build.entropy_penalty": 0.1,
}
CAPABILITY = {field: value for field, value in HACPO.items() if field.startswith("estimate.")}
OWN_BASELINE = {**CAPABILITY, "estimate.baseline": "own", "shares_rollouts": False}
SUCCESSES = {"estimate.name": "peer_rows", "build.name": "peer_successes", "shares_rollouts": True}
SUCCESSES |= {"build.success_from": 1.0}
DECLARED: dict[str, dict[str, object]] = {
    "ha_dw": {**GSPO_OBJECTIVE, **OWN_BASELINE, **DIFFICULTY},
    "hacpo_ha_dw": {**HACPO, **DIFFICULTY},
    "ilr": {**EVERY, **TOKEN, **OWN_BASELINE, "estimate.name": "calibrated"},
    "ilr_interaction": {
        **EVERY,
        **TOKEN,
        **OWN_BASELINE,
        "estimate.name": "calibrated",
        "plan.name": "interaction",
        "plan.num_interactive": 2,
        "plan.max_idea_chars": 2000,
    },
    "hacpo_ilr": {**HACPO, "estimate.name": "calibrated"},
    "cbs": {**GSPO, **BANDIT},
    "hacpo_cbs": {**HACPO, **BANDIT},
    "distil": {
        **EVERY,
        **TOKEN,
        **OWN_BASELINE,
        "estimate.name": "distilled",
        "estimate.teacher_weight": 1.0,
        "estimate.max_difference": 10.0,
    },
    "xgrpo": {**EVERY, **TOKEN, **CAPABILITY, "shares_rollouts": False},
    "sgt": {
        **GSPO,
        **SUCCESSES,
        "estimate.peer_advantage": "reward",
        "build.max_per_problem": 0,
        "objective.aggregation": "mean_of_rows",
    },
    "luffy": {
        **EVERY,
        **GROUP,
        **TOKEN,
        **SUCCESSES,
        "estimate.peer_advantage": "group",
        "build.max_per_problem": 1,
        "objective.name": "peer_shaping",
        "objective.shaping": 0.1,
        "objective.aggregation": "mean_of_rows",
    },
    "hacpo": HACPO,
    "hacpo_sn": {**HACPO, **SELF_NORMALISED},
    "gspo": GSPO,
    "gspo_x2": {**GSPO, "plan.factor": 2},
    "grpo": {**EVERY, **GROUP, **TOKEN},
    "sage": {**GSPO, **SEARCH},
    "sage_grpo": {**EVERY, **GROUP, **TOKEN, **SEARCH},
    "dr_grpo": {
        **EQUAL_BOUNDS,
        **GROUP,
        "estimate.scale": "none",
        "objective.token_aggregation": "seq_mean_token_sum_norm",
    },
    "rloo": {**EQUAL_BOUNDS, "estimate.name": "leave_one_out"},
    "reinforce_pp": {
        **EQUAL_BOUNDS,
        "estimate.name": "batch_normalised",
        "estimate.subtracts_group_mean": False,
    },
    "dapo": {
        **EVERY,
        **GROUP,
        **TOKEN,
        "plan.name": "dynamic_sampling",
        "plan.max_rounds": 3,
        "estimate.overlong_share": 0.2,
        "build.drops_equal_rewards": True,
    },
    "cispo": {
        **EVERY,
        **GROUP,
        **TOKEN_MEAN,
        "objective.name": "cispo",
        "objective.ratio_floor": 0.0,
        "objective.ratio_ceiling": 5.0,
    },
    "sapo": {
        **EVERY,
        **GROUP,
        "objective.name": "sapo",
        "objective.token_aggregation": "seq_mean_token_mean",
        "objective.positive_temperature": 1.0,
        "objective.negative_temperature": 1.05,
    },
    "gmpo": {**EVERY, **GROUP, "objective.name": "gmpo", "objective.log_low": 0.4, "objective.log_high": 0.4},
    "naive": {**GSPO, "estimate.baseline": "pooled", "shares_rollouts": True},
    **{name: {**HACPO, **changes} for name, changes in ABLATIONS.items()},
}


@cache
def method_fields(name: str, *overrides: str) -> dict[str, Any]:
    fields = flatten(as_dict(compose("tiny", name, overrides=overrides).method))
    return {field: value for field, value in fields.items() if field != "name"}


def test_every_declared_method_is_listed_here() -> None:
    assert set(available("method")) == set(DECLARED)


@pytest.mark.parametrize("name", DECLARED)
def test_method_is_what_its_file_declares(name: str) -> None:
    assert method_fields(name) == DECLARED[name]


def test_official_preset_sets_all_of_the_methods_conformance_fields() -> None:
    assert method_fields("hacpo", "conformance=official") == HACPO | {
        "estimate.metric": "positive_rate",
        "estimate.cross_baseline": "learner",
        "objective.aggregation": "mean_of_rows",
        "objective.kl_coef": 0.001,
    }


def test_original_preset_sets_all_of_the_methods_conformance_fields() -> None:
    assert method_fields("hacpo", "conformance=original") == HACPO | {
        "estimate.cross_baseline": "learner",
        "estimate.max_counted": 8,
        "objective.aggregation": "mean_of_rows",
        "objective.kl_coef": 0.001,
        "objective.kl_aggregation": "own_tokens",
        "objective.log_ratio_clamp": "above",
        "build.order": "length",
    }
