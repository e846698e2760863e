"""The paper's methods, field by field: every ablation is a field, and only that field."""

from functools import cache
from typing import Any

from flows.planning.compose import compose
from hacpo_core.config import as_dict, flatten

# What each ablation declares differently from HACPO.
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
    "hacpo_no_guard": {"estimate.binary_guard": False},
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
GSPO = {**EVERY, "objective.name": "sequence_clip", **SEQUENCE, **GROUP}
TOKEN_MEAN = {"objective.token_aggregation": "token_mean"}
TOKEN = {
    "objective.name": "token_clip",
    "objective.token_low": 0.2,
    "objective.token_high": 0.28,
    "objective.dual_clip": None,
    **TOKEN_MEAN,
}
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
PRESETS = ("paper", "official", "original")
DECLARED: dict[str, dict[str, object]] = {
    "hacpo": HACPO,
    "gspo": GSPO,
    "gspo_x2": {**GSPO, "plan.factor": 2},
    "grpo": {**EVERY, **GROUP, **TOKEN},
    "naive": {**GSPO, "estimate.baseline": "pooled", "shares_rollouts": True},
    **{name: {**HACPO, **changes} for name, changes in ABLATIONS.items()},
}


@cache
def method_fields(name: str, *overrides: str) -> dict[str, Any]:
    fields = flatten(as_dict(compose("tiny", name, overrides=overrides).method))
    return {field: value for field, value in fields.items() if field != "name"}


def test_methods_of_the_paper_are_what_their_files_declare() -> None:
    for name, declared in DECLARED.items():
        assert method_fields(name) == declared, name


def test_presets_of_the_authors_code_have_verls_dual_clip_in_grpo() -> None:
    clips = {name: method_fields("grpo", f"conformance={name}")["objective.dual_clip"] for name in PRESETS}
    assert clips == {"paper": None, "official": 3.0, "original": 3.0}


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
