"""A field that is declared to have no effect in a configuration changes no digest there."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from flows.planning.plans import Plan, plan
from flows.runs.experiment import run_experiment
from hacpo_core.config.fields import Field, fields_of
from hacpo_core.errors import ConfigError
from hacpo_core.phases.runner import DirectRunner

SHORT = ("train.num_steps=2", "evaluate.during=[]", "evaluate.final=[]")
OWN_REWARD = ("verifier.equality=normalised", "reward.functions=[tests.plugins:brevity]")
CASES: Mapping[str, tuple[str, ...]] = {
    "gspo": (),
    "grpo": (*OWN_REWARD, "verifier.max_unscored_fraction=1"),
    "xgrpo": ("rollout.top_p=0.9",),
    "hacpo": ("method.shares_rollouts=false",),
    "hacpo_no_clip": ("method.estimate.baseline=own", "method.estimate.cross_weight=one"),
    "cbs": ("method.build.reused_share=0", "method.build.entropy_penalty=0"),
    "ha_dw": ("conformance=official", "method.objective.kl_coef=0"),
}


def other_value(field: Field) -> Any:
    """Another allowed value of a field; its own if none is known."""
    value, declared = field.value, field.declared
    if declared.choices:
        return next((choice for choice in declared.choices if choice != value), value)
    if isinstance(value, bool):
        return not value
    if not isinstance(value, int | float):
        return value
    for other in (2 * value + 1, value / 2, declared.at_least, declared.at_most):
        other = type(value)(value if other is None else other)
        try:
            declared.check(field.name, other)
        except ConfigError:
            continue
        if other != value:
            return other
    return value


def with_values(section: Any, values: Mapping[str, Any], prefix: str = "") -> Any:
    """A section with other values of fields, by dotted name."""

    def of(name: str, value: Any) -> Any:
        if dataclasses.is_dataclass(value):
            return with_values(value, values, f"{name}.")
        if isinstance(value, dict) and value:
            return {key: of(f"{name}.{key}", entry) for key, entry in value.items()}
        return values.get(name, value)

    changes = {
        each.name: of(f"{prefix}{each.name}", getattr(section, each.name)) for each in dataclasses.fields(section)
    }
    return dataclasses.replace(section, **changes)


@pytest.mark.system
@pytest.mark.parametrize("method", CASES)
def test_fields_without_effect_change_no_weight(method: str, small_plan: Callable[..., Plan], tmp_path: Path) -> None:
    planned = small_plan(method, *SHORT, *CASES[method])
    inert = [field for field in fields_of(planned.config) if field.inert is not None]
    values = {field.name: other_value(field) for field in inert}
    assert sum(values[field.name] != field.value for field in inert) > 10
    other = plan(with_values(planned.config, values))
    assert other.id == planned.id
    other = dataclasses.replace(other, root=tmp_path / "other" / other.id)
    digests = [run_experiment(each, DirectRunner()).digests for each in (planned, other)]
    assert digests[0] == digests[1]
