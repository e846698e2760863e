"""Phase advantage: the advantage and weight of each response of the step for each learner.

Shapes: R response of one agent.
"""

from collections.abc import Sequence

from hacpo_core.experiment import Experiment
from hacpo_core.methods import state
from hacpo_core.methods.checks import checked_estimate, checked_shape
from hacpo_core.methods.estimate import ScoredStep
from hacpo_core.records import Problem
from hacpo_core.stopwatch import Stopwatch
from hacpo_core.store.ledger import Committed


def advantage(experiment: Experiment, step: int, problems: Sequence[Problem]) -> None:
    """Commit the advantages and weights of all responses for all learners.

    Raises:
        MethodError: the estimator failed or returned an invalid estimate.
    """
    if experiment.ledger.has(step, "advantage"):
        return
    estimator, scored = experiment.method.estimate, scored_step(experiment, step, problems)
    with Stopwatch() as watch:
        scored = checked_shape(estimator, scored)
        sources = {agent: experiment.sources(agent) for agent in experiment.agents}
        estimate, next_state = checked_estimate(estimator, scored, sources, experiment.state_before(step, "advantage"))
    encoded_state = state.encode(next_state, owner=f"method.estimate ({estimator.name})")
    reward_R = {agent: scored.reward_R(agent) for agent in experiment.agents}
    experiment.ledger.save_estimate(step, Committed(estimate, watch.cost(), encoded_state), reward_R)


def scored_step(experiment: Experiment, step: int, problems: Sequence[Problem]) -> ScoredStep:
    """All agents' verified responses of a step, with unshaped rewards."""
    return ScoredStep(
        step=step,
        problem_ids=tuple(problem.id for problem in problems),
        responses={agent: experiment.ledger.verdicts(step, agent).value for agent in experiment.agents},
        seed=experiment.config.seed,
        max_response_tokens=experiment.config.rollout.max_response_tokens,
    )
