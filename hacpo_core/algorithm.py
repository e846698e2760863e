"""Algorithm 1 of the paper, once, as phases that a runner may call directly or run as tasks.

    problems -> rollout[k] -> verify[k] -> advantage -> (teach[k]) -> update[k] -> metrics
                (agent k)                  (joint)      (agent k)     (agent k)

Every phase starts from what the step store holds and commits what it makes, so that it may be run again at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from hacpo_core.experiment import Experiment
from hacpo_core.phases.advantage import advantage
from hacpo_core.phases.metrics import metrics
from hacpo_core.phases.rollout import rollout
from hacpo_core.phases.runner import Handle, Phase, Runner
from hacpo_core.phases.teach import teach
from hacpo_core.phases.update import update
from hacpo_core.phases.verify import verify


@dataclass(frozen=True, slots=True)
class StartedStep:
    """A step whose phases are under way: the update of each agent, by name."""

    step: int
    updates: Mapping[str, Handle]


def train_step(experiment: Experiment, step: int, runner: Runner, *, before: StartedStep | None = None) -> StartedStep:
    """Start one step of Algorithm 1; an agent samples as soon as its own update of the step before is done.

    Args:
        experiment: the experiment.
        step: 1-based.
        runner: where and when the phases run.
        before: the step before, where it is still under way.
    Source: HACPO, Algorithm 1.
    """
    problems = experiment.batch(step)  # line 5
    verdicts: list[Handle] = []
    for round in range(
        experiment.method.plan.num_rounds
    ):  # one, but for methods that sample again by what was verified
        rollouts = {  # line 10: sample G outputs from every agent's old policy
            agent: runner.start(
                Phase("rollout", step, agent, round),
                partial(rollout, experiment, step, agent, problems, round=round),
                after=verdicts or ([before.updates[agent]] if before is not None else []),
            )
            for agent in experiment.agents
        }
        verdicts = [  # line 11: verify
            runner.start(
                Phase("verify", step, agent, round),
                partial(verify, experiment, step, agent, round=round),
                after=[rollouts[agent]],
            )
            for agent in experiment.agents
        ]
    estimated = runner.start(  # lines 12, 15: advantages of all agents' responses
        Phase("advantage", step), partial(advantage, experiment, step, problems), after=verdicts
    )
    ready = [estimated]
    if experiment.method.estimate.has_teachers:  # before any teacher learns from this step
        ready = [
            runner.start(
                Phase("teach", step, agent), partial(teach, experiment, step, agent, problems), after=[estimated]
            )
            for agent in experiment.agents
        ]
    updates = {  # lines 16-18: update every agent on its mini-batches
        agent: runner.start(Phase("update", step, agent), partial(update, experiment, step, agent), after=ready)
        for agent in experiment.agents
    }
    return StartedStep(step, updates)


def finish_step(experiment: Experiment, started: StartedStep) -> None:
    """Wait for a step's updates, and commit what is measured of it."""
    for update_done in started.updates.values():
        update_done.result()
    metrics(experiment, started.step)
