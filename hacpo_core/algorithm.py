"""Algorithm 1 of the paper, once, as phases that a runner may call directly or run as tasks.

    problems -> rollout[k] -> verify[k] -> advantage -> update[k] -> metrics
                (agent k)                  (joint)      (agent k)

Every phase starts from what the step store holds and commits what it makes, so that it may be run again at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hacpo_core.experiment import Experiment
from hacpo_core.phases.advantage import advantage
from hacpo_core.phases.metrics import metrics
from hacpo_core.phases.rollout import rollout
from hacpo_core.phases.runner import Handle, Phase, Runner
from hacpo_core.phases.update import update
from hacpo_core.phases.verify import verify


@dataclass(frozen=True, slots=True)
class StartedStep:
    """A step whose phases are under way: the update of each agent, by name."""

    step: int
    updates: Mapping[str, Handle]


def train_step(x: Experiment, step: int, runner: Runner, *, before: StartedStep | None = None) -> StartedStep:
    """Start one step of Algorithm 1; an agent samples as soon as its own update of the step before is done.

    Args:
        x: the experiment.
        step: 1-based.
        runner: where and when the phases run.
        before: the step before, where it is still under way.
    Source: HACPO, Algorithm 1.
    """
    problems = x.batch(step)  # line 5
    rollouts = {  # line 10: sample G outputs from every agent's old policy
        k: runner.start(
            Phase("rollout", step, k),
            lambda k=k: rollout(x, step, k, problems),  # type: ignore[misc]
            after=[before.updates[k]] if before is not None else [],
        )
        for k in x.names
    }
    verdicts = [  # line 11: verify
        runner.start(Phase("verify", step, k), lambda k=k: verify(x, step, k), after=[rollouts[k]])  # type: ignore[misc]
        for k in x.names
    ]
    joint = runner.start(Phase("advantage", step), lambda: advantage(x, step, problems), after=verdicts)  # 12, 15
    updates = {  # lines 16-18: update every agent on its mini-batches
        k: runner.start(Phase("update", step, k), lambda k=k: update(x, step, k), after=[joint])  # type: ignore[misc]
        for k in x.names
    }
    return StartedStep(step, updates)


def finish_step(x: Experiment, started: StartedStep) -> None:
    """Wait for a step's updates, and commit what is measured of it."""
    for update_done in started.updates.values():
        update_done.result()
    metrics(x, started.step)
