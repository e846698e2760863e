"""Phase update.<agent>: a learner trains on its mini-batches.

The result of an update is the agent's weights, which exist in memory only. After a resume, or when an agent's process
was lost, its committed updates are therefore repeated (`hacpo_core.phases.agent_at`).
"""

from dataclasses import replace

from hacpo_core.experiment import Experiment
from hacpo_core.methods import state
from hacpo_core.phases.agent_at import agent_at, chosen_rows, learner_batches
from hacpo_core.store.ledger import UpdateRecord


def update(experiment: Experiment, step: int, agent: str) -> None:
    """Update an agent on its mini-batches, and commit what was measured.

    Raises:
        MethodError: the builder failed or returned invalid mini-batches.
        ReplayError: a repeated update gives different weights, and `checkpoint.accept_divergence` is off.
    """
    objective, ledger = experiment.method.objective, experiment.ledger
    if ledger.has(step, f"update.{agent}"):
        if not experiment.placement.has_seen(agent, step):
            with agent_at(experiment, agent, step):
                pass  # replays have brought it there
        return
    with agent_at(experiment, agent, step - 1) as (placed, watch):
        rows, builder_state = chosen_rows(experiment, step, agent)
        minibatches, figures = learner_batches(experiment, step, agent, rows)
        objective_state = experiment.state_before(step, f"objective.{agent}")
        outcome, trace = placed.update(minibatches, objective, version=step, objective_state=objective_state)
    encoded = state.encode(outcome.objective_state, owner=f"method.objective ({objective.name})")
    outcome = replace(outcome, objective_state=encoded)
    ledger.save_update(step, agent, UpdateRecord(outcome, trace, figures, builder_state, watch.cost()))
