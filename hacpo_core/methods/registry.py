"""Implementations of a method's parts by name: shipped ones, and a user's own as `package.module:Class`."""

import dataclasses
import importlib
from collections.abc import Collection, Mapping

from hacpo_core.config import MethodConfig
from hacpo_core.errors import ConfigError, did_you_mean
from hacpo_core.methods.base import MethodPart
from hacpo_core.methods.build import Builder
from hacpo_core.methods.builders.bandit import Bandit
from hacpo_core.methods.builders.shuffled import Shuffled
from hacpo_core.methods.builders.successes import PeerSuccesses
from hacpo_core.methods.estimate import Estimator
from hacpo_core.methods.estimators.batch_normalised import BatchNormalised
from hacpo_core.methods.estimators.calibrated import Calibrated
from hacpo_core.methods.estimators.capability import CapabilityEstimator
from hacpo_core.methods.estimators.difficulty import DifficultyWeighted
from hacpo_core.methods.estimators.distilled import Distilled
from hacpo_core.methods.estimators.groups import GroupEstimator
from hacpo_core.methods.estimators.leave_one_out import LeaveOneOut
from hacpo_core.methods.estimators.peers import PeerRows
from hacpo_core.methods.objective import Objective
from hacpo_core.methods.objectives.cispo import Cispo
from hacpo_core.methods.objectives.cross_clip import CrossClip
from hacpo_core.methods.objectives.gmpo import Gmpo
from hacpo_core.methods.objectives.peer_shaping import PeerShaping
from hacpo_core.methods.objectives.sapo import Sapo
from hacpo_core.methods.objectives.self_normalised import SelfNormalised
from hacpo_core.methods.objectives.sequence_clip import SequenceClip
from hacpo_core.methods.objectives.token_clip import TokenClip
from hacpo_core.methods.plan import SamplingPlan
from hacpo_core.methods.plans.dynamic_sampling import DynamicSampling
from hacpo_core.methods.plans.every_problem import EveryProblem
from hacpo_core.methods.plans.interaction import Interaction
from hacpo_core.methods.plans.step_search import PartlySearched

PART_CLASSES: Mapping[str, type[MethodPart]] = {
    "plan": SamplingPlan,
    "estimate": Estimator,
    "build": Builder,
    "objective": Objective,
}
"""base class of each part's implementations"""
SHIPPED: Mapping[str, Mapping[str, type[MethodPart]]] = {
    "plan": {
        "every_problem": EveryProblem,
        "dynamic_sampling": DynamicSampling,
        "step_search": PartlySearched,
        "interaction": Interaction,
    },
    "estimate": {
        "group": GroupEstimator,
        "leave_one_out": LeaveOneOut,
        "batch_normalised": BatchNormalised,
        "capability": CapabilityEstimator,
        "difficulty_weighted": DifficultyWeighted,
        "calibrated": Calibrated,
        "peer_rows": PeerRows,
        "distilled": Distilled,
    },
    "build": {"shuffled": Shuffled, "peer_successes": PeerSuccesses, "bandit": Bandit},
    "objective": {
        "token_clip": TokenClip,
        "cispo": Cispo,
        "sapo": Sapo,
        "gmpo": Gmpo,
        "peer_shaping": PeerShaping,
        "sequence_clip": SequenceClip,
        "cross_clip": CrossClip,
        "self_normalised": SelfNormalised,
    },
}


def trains_alone(method: MethodConfig) -> bool:
    """Whether it is certain that an agent gets the same weights with and without its partners.

    False for a user's class, even if derived from a shipped one, since it may inherit a wrong `reads_partners`.
    """
    if method.shares_rollouts:
        return False
    chosen = [(shipped, getattr(method, part)) for part, shipped in SHIPPED.items()]
    return all(type(each) in shipped.values() and not each.reads_partners for shipped, each in chosen)


def find(part: str, name: str) -> type[MethodPart]:
    """The implementation with this name.

    Args:
        part: plan, estimate, build or objective.
        name: of a shipped implementation, or `package.module:Class`.

    Raises:
        ConfigError: the name is unknown, cannot be imported, or is not an implementation of the part.
    """
    if name in SHIPPED[part]:
        return SHIPPED[part][name]
    return _user_class(f"method.{part}.name", name, PART_CLASSES[part], SHIPPED[part])


def _user_class(field: str, name: str, base: type[MethodPart], shipped: Collection[str]) -> type[MethodPart]:
    """A user's own class: imported, and checked against the class that it derives from.

    Args:
        field: configuration field that names it, for messages.
        name: `package.module:Class`.
        base: abstract class that it must be derived from.
        shipped: the names that are not a user's, for messages.

    Raises:
        ConfigError: the name is unknown, cannot be imported, or is no implementation of `base`.
    """
    module, colon, attribute = name.partition(":")
    if not colon:
        hint = did_you_mean(name, list(shipped))
        raise ConfigError(
            f"{field}: got {name!r}, expected one of {', '.join(shipped)}, or package.module:Class of your own"
            f"{hint and f'; {hint}'}"
        )
    try:
        source = importlib.import_module(module)
    except Exception as error:  # a user's module may raise anything
        remedy = f"fix {module}"
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
            remedy = (
                f"put the folder of {module.partition('.')[0]} on PYTHONPATH, or name a class of an importable module"
            )
        raise ConfigError(f"{field}: {name} cannot be imported ({type(error).__name__}: {error}); {remedy}") from error
    implementation = getattr(source, attribute, None)
    if implementation is None:
        hint = did_you_mean(attribute, dir(source))
        raise ConfigError(f"{field}: {module} has no class {attribute!r}; {hint or 'write it there'}")
    is_derived = isinstance(implementation, type) and issubclass(implementation, base)
    is_fit = is_derived and dataclasses.is_dataclass(implementation)
    if not is_fit:
        raise ConfigError(
            f"{field}: {name} is not of class {base.__name__}; derive a frozen dataclass from "
            f"{base.__module__}.{base.__name__}"
        )
    missing_names = ", ".join(sorted(getattr(implementation, "__abstractmethods__", ())))
    if missing_names:
        raise ConfigError(f"{field}: {name} lacks {missing_names}; implement it")
    return implementation  # type: ignore[no-any-return]
