"""Phase advantage: what each response of the step carries for each learner."""

from __future__ import annotations

from collections.abc import Sequence

from hacpo_core.experiment import Experiment
from hacpo_core.methods import state
from hacpo_core.methods.base import ScoredStep
from hacpo_core.methods.checks import checked_estimate
from hacpo_core.records import Problem
from hacpo_core.stopwatch import Stopwatch
from hacpo_core.store.ledger import EstimatedStep


def advantage(x: Experiment, step: int, problems: Sequence[Problem]) -> None:
    """Advantages and weights of all responses for all learners.

    Raises:
        MethodError: the estimator returned no estimate.
    """
    if x.ledger.has(step, "advantage"):
        return
    estimator = x.method.estimate
    scored = ScoredStep(
        step=step,
        problem_ids=tuple(problem.id for problem in problems),
        responses={agent: x.ledger.verdicts(step, agent).responses for agent in x.names},
        seed=x.config.seed,
    )
    with Stopwatch() as watch:
        sources = {agent: x.sources(agent) for agent in x.names}
        estimate, after = checked_estimate(estimator, scored, sources, x.state_before(step, "advantage"))
    encoded = state.encode(after, owner=f"method.estimate ({estimator.name})")
    x.ledger.save_estimate(step, EstimatedStep(estimate, encoded, watch.cost()))
