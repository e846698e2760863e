"""Implementations of the seams by name: shipped ones, and a user's own as `package.module:Class`."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Mapping

from hacpo_core.config import MethodConfig
from hacpo_core.errors import ConfigError
from hacpo_core.methods.base import Builder, Estimator, Objective, SamplingPlan, Seam
from hacpo_core.methods.builders.bandit import Bandit
from hacpo_core.methods.builders.shuffled import Shuffled
from hacpo_core.methods.builders.successes import PeerSuccesses
from hacpo_core.methods.estimators.batch_normalised import BatchNormalised
from hacpo_core.methods.estimators.calibrated import Calibrated
from hacpo_core.methods.estimators.capability import CapabilityEstimator
from hacpo_core.methods.estimators.decoupled import Decoupled
from hacpo_core.methods.estimators.difficulty import DifficultyWeighted
from hacpo_core.methods.estimators.distilled import Distilled
from hacpo_core.methods.estimators.groups import GroupEstimator
from hacpo_core.methods.estimators.leave_one_out import LeaveOneOut
from hacpo_core.methods.estimators.length_weighted import LengthWeighted
from hacpo_core.methods.estimators.pass_at_k import PassAtK
from hacpo_core.methods.estimators.peers import PeerRows
from hacpo_core.methods.objectives.cispo import Cispo
from hacpo_core.methods.objectives.cross_clip import CrossClip
from hacpo_core.methods.objectives.dppo import Dppo
from hacpo_core.methods.objectives.gmpo import Gmpo
from hacpo_core.methods.objectives.length_unbiased import LengthUnbiased
from hacpo_core.methods.objectives.peer_shaping import PeerShaping
from hacpo_core.methods.objectives.sapo import Sapo
from hacpo_core.methods.objectives.self_normalised import SelfNormalised
from hacpo_core.methods.objectives.sequence_clip import SequenceClip
from hacpo_core.methods.objectives.token_clip import TokenClip
from hacpo_core.methods.objectives.vespo import Vespo
from hacpo_core.methods.plans.dynamic_sampling import DynamicSampling
from hacpo_core.methods.plans.every_problem import EveryProblem
from hacpo_core.methods.plans.interaction import Interaction
from hacpo_core.methods.plans.step_search import PartlySearched

SEAM_CLASSES: Mapping[str, type[Seam]] = {
    "plan": SamplingPlan,
    "estimate": Estimator,
    "build": Builder,
    "objective": Objective,
}
"""base class of each seam's implementations"""
SHIPPED: Mapping[str, Mapping[str, type[Seam]]] = {
    "plan": {
        "every_problem": EveryProblem,
        "dynamic_sampling": DynamicSampling,
        "step_search": PartlySearched,
        "interaction": Interaction,
    },
    "estimate": {
        "group": GroupEstimator,
        "leave_one_out": LeaveOneOut,
        "length_weighted": LengthWeighted,
        "pass_at_k": PassAtK,
        "batch_normalised": BatchNormalised,
        "decoupled": Decoupled,
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
        "dppo": Dppo,
        "vespo": Vespo,
        "peer_shaping": PeerShaping,
        "sequence_clip": SequenceClip,
        "length_unbiased": LengthUnbiased,
        "cross_clip": CrossClip,
        "self_normalised": SelfNormalised,
    },
}


def trains_alone(method: MethodConfig) -> bool:
    """Whether it is certain that an agent gets the same weights with and without its partners.

    False for a user's class, even if derived from a shipped one, since it may inherit a wrong `reads_partners`.
    """
    parts = {seam: getattr(method, seam) for seam in SHIPPED}
    are_shipped = all(type(part) in SHIPPED[seam].values() for seam, part in parts.items())
    return are_shipped and not method.shares_rollouts and not any(part.reads_partners for part in parts.values())


def find(seam: str, name: str) -> type[Seam]:
    """The implementation with this name.

    Args:
        seam: plan, estimate, build or objective.
        name: of a shipped implementation, or `package.module:Class`.

    Raises:
        ConfigError: the name is unknown, cannot be imported, or is not an implementation of the seam.
    """
    if name in SHIPPED[seam]:
        return SHIPPED[seam][name]
    module, colon, attribute = name.partition(":")
    known = ", ".join(SHIPPED[seam])
    if not colon:
        raise ConfigError(f"method.{seam}.name: got {name!r}, expected {known}, or package.module:Class of your own")
    try:
        implementation = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a user's module may raise anything
        raise ConfigError(
            f"method.{seam}.name: {name} cannot be imported ({type(error).__name__}: {error}); put the folder of "
            f"{module.partition('.')[0]} on PYTHONPATH, or name a class of an importable module"
        ) from error
    kind = SEAM_CLASSES[seam]
    if not (
        isinstance(implementation, type)
        and issubclass(implementation, kind)
        and dataclasses.is_dataclass(implementation)
    ):
        raise ConfigError(
            f"method.{seam}.name: {name} is not of class {kind.__name__}; derive a frozen dataclass from "
            f"hacpo_core.methods.base.{kind.__name__}"
        )
    missing = ", ".join(sorted(getattr(implementation, "__abstractmethods__", ())))
    if missing:
        raise ConfigError(f"method.{seam}.name: {name} lacks {missing}; implement it")
    _check_signatures(f"method.{seam}.name: {name}", implementation, kind)
    return implementation


def _check_signatures(context: str, implementation: type[Seam], kind: type[Seam]) -> None:
    """Check that what a user's class overrides can be called, or read, as the seam's own.

    Raises:
        ConfigError: a method takes other arguments, or a method stands in place of a property.
    """
    for name in (each for each in dir(kind) if not each.startswith("_")):
        expected, own = inspect.getattr_static(kind, name), inspect.getattr_static(implementation, name)
        if isinstance(expected, property) and inspect.isfunction(own):
            raise ConfigError(f"{context}.{name} is a method, expected a property; add @property above it")
        if not inspect.isfunction(expected) or own is expected:
            continue
        if not inspect.isfunction(own):
            raise ConfigError(
                f"{context}.{name} is of type {type(own).__name__}, expected a method; define it with def"
            )
        declared, given = inspect.signature(expected), inspect.signature(own)
        named = [each for each in declared.parameters.values() if each.kind is each.KEYWORD_ONLY]
        positional = list(declared.parameters)[: len(declared.parameters) - len(named)]
        try:
            given.bind(*positional, **{each.name: None for each in named})
        except TypeError as error:
            raise ConfigError(
                f"{context}.{name} takes {_arguments(given)}, expected {_arguments(declared)}; correct its arguments"
            ) from error


def _arguments(signature: inspect.Signature) -> str:
    """The arguments without annotations and defaults, such as (self, scored, state)."""
    bare = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=signature.empty))
