"""One step of the paper's Algorithm 1, as phases that a runner calls directly or runs as tasks.

    problems -> rollout[k] -> verify[k] -> advantage -> (teach[k]) -> update[k] -> metrics
                (agent k)                  (joint)      (agent k)     (agent k)

Every phase reads its input from the step store and commits its output there, so it can be run again at any time.
"""

from functools import partial

from hacpo_core.experiment import Experiment
from hacpo_core.phases.advantage import advantage
from hacpo_core.phases.metrics import metrics
from hacpo_core.phases.rollout import rollout
from hacpo_core.phases.runner import Handle, Phase, Runner
from hacpo_core.phases.teach import teach
from hacpo_core.phases.update import update
from hacpo_core.phases.verify import verify


def train_step(experiment: Experiment, step: int, runner: Runner) -> None:
    """Run one step of Algorithm 1 and commit its metrics.

    Args:
        experiment: the experiment to advance.
        step: 1-based.
        runner: decides where and when the phases run.

    Raises:
        HacpoError: a phase failed.

    Source: HACPO, Algorithm 1.
    """
    problems = experiment.problems(step)  # line 5
    verdicts: list[Handle] = []
    for round_index in range(experiment.method.plan.num_rounds):  # several if the plan samples again after verification
        rollouts = {  # line 10: sample G outputs from every agent's old policy
            agent: runner.start(
                Phase("rollout", step, agent, round_index),
                partial(rollout, experiment, step, agent, problems, round_index=round_index),
                after=verdicts,
            )
            for agent in experiment.agents
        }
        verdicts = [  # line 11: verify
            runner.start(
                Phase("verify", step, agent, round_index),
                partial(verify, experiment, step, agent, round_index=round_index),
                after=[rollouts[agent]],
            )
            for agent in experiment.agents
        ]
    estimated = runner.start(  # lines 12, 15: advantages of all agents' responses
        Phase("advantage", step), partial(advantage, experiment, step, problems), after=verdicts
    )
    ready = [estimated]
    if experiment.method.estimate.has_teachers:  # teachers score before their own update in this step
        ready = [
            runner.start(
                Phase("teach", step, agent), partial(teach, experiment, step, agent, problems), after=[estimated]
            )
            for agent in experiment.agents
        ]
    updates = [  # lines 16-18: update every agent on its mini-batches
        runner.start(Phase("update", step, agent), partial(update, experiment, step, agent), after=ready)
        for agent in experiment.agents
    ]
    for update_done in updates:
        update_done.result()
    metrics(experiment, step)
