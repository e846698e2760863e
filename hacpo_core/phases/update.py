"""Phase update.<agent>: a learner trains on its mini-batches.

The result of an update is the agent's weights, which exist in memory only. After a resume, or when an agent's process
was lost, its committed updates are therefore repeated (`hacpo_core.phases.apply_update`).
"""

from __future__ import annotations

from hacpo_core.experiment import Experiment
from hacpo_core.phases.apply_update import apply_update
from hacpo_core.phases.with_agent import with_agent


def update(experiment: Experiment, step: int, agent: str) -> None:
    """Update an agent on its mini-batches. A committed update is repeated if the agent's weights lack it.

    Raises:
        MethodError: the builder failed or returned invalid mini-batches.
        ReplayError: a repeated update gives different weights, and `checkpoint.accept_divergence` is off.
    """
    if experiment.ledger.has(step, f"update.{agent}") and experiment.placement.has_seen(agent, step):
        return
    with_agent(experiment, agent, step - 1, lambda placed: apply_update(experiment, placed, step))
