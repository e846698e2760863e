"""The four parts of a method, each replaceable: plan, estimate, build, objective.

    plan       which responses an agent samples, and how          once per agent and step
    estimate   advantage and weight of each row for each learner  once per step, all agents together
    build      which rows make up which mini-batch                once per learner and step
    objective  what an update maximises                           once per micro-batch

Each has a file beside this one.

An implementation is a frozen dataclass whose fields are its parameters (`hacpo_core.config.fields.setting`). The field
`method.<part>.name` selects it, by its name in `registry.py` or as `package.module:Class`. What it remembers between
steps is its *state*: a mapping of JSON values and numpy arrays. It receives the state that the previous step committed
({} in the first step) and returns the next state with its result. Both are committed together, so that a retry, a
replay and a resume start from the same state.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hacpo_core.config.fields import setting

if TYPE_CHECKING:
    from hacpo_core.config import ExperimentConfig

State = Mapping[str, Any]


@dataclass(frozen=True)
class MethodPart(ABC):  # noqa: B024  each part has an abstract method of its own
    """What all implementations have in common."""

    name: str = setting("", "name of a shipped implementation, or package.module:Class")

    @property
    def reads_partners(self) -> bool:
        """Whether it reads other agents' responses even without shared rollouts; a grid then trains them jointly."""
        return True

    @property
    def needs_shared_rollouts(self) -> bool:
        """Whether it has no effect of its own unless learners train on other agents' rows."""
        return False


def why_no_partners(_: Any, config: ExperimentConfig) -> str | None:
    """Why a field about other agents' rows cannot take effect, or None if it can."""
    if not config.method.shares_rollouts:
        return f"method {config.method.name} shares no rollouts"
    return "one agent has no partner to share with" if len(config.pair.agents) == 1 else None
