"""Work with an agent that has the weights of a step, whatever happened to it before."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from hacpo_core.errors import AgentLostError
from hacpo_core.experiment import Experiment
from hacpo_core.phases.apply_update import apply_update
from hacpo_core.placement.base import PlacedAgent
from hacpo_core.records import PhaseCost

MAX_RESTARTS = 2
"""restarts of the agent's process in a phase, which fails if the process dies once more"""
_log = logging.getLogger(__name__)
Result = TypeVar("Result")


def with_agent(
    experiment: Experiment, agent: str, version: int, work: Callable[[PlacedAgent], Result]
) -> tuple[Result, PhaseCost]:
    """Result and cost of `work` on an agent that has the weights of this version; to get it there is not counted.

    If necessary, the agent is restored from a checkpoint and the stored rollouts. If its process dies meanwhile, it is
    started again and `work` is repeated.
    """

    def replay(placed: PlacedAgent, step: int) -> None:
        apply_update(experiment, placed, step)

    for restarts in range(MAX_RESTARTS + 1):
        try:
            with experiment.placement.turn(agent):
                placed = experiment.placement.agent_at(agent, version, replay=replay)
                with experiment.stopwatch(agent) as watch:
                    result = work(placed)
                return result, watch.cost()
        except AgentLostError as error:
            if restarts == MAX_RESTARTS:
                raise
            _log.warning("%s; starting it again", error)
    raise AssertionError("the last loss is raised")
