"""Checkpoints of all agents and of the parts' states."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from hacpo_core.experiment import Experiment
from hacpo_core.phases.agent_at import agent_at
from hacpo_core.phases.runner import restarting
from hacpo_core.placement.checkpoints import save_checkpoint


def checkpoint(experiment: Experiment, step: int, *, best: Collection[int]) -> None:
    """Save all agents as they are after `step`. An agent whose process dies meanwhile is restored and saved again.

    Args:
        best: steps whose checkpoints stay, beside the newest ones.

    Raises:
        StoreError: the disk is full or not writable.
    """
    experiment.ledger.store.sync()  # the steps behind a checkpoint must be on disk before it
    kinds = ("rollout", "update", "objective")
    phases = ["advantage", *(f"{kind}.{agent}" for kind in kinds for agent in experiment.agents)]

    def save(agent: str, at: Path) -> dict[str, Any]:
        with agent_at(experiment, agent, step):
            return experiment.placement.save(agent, at)

    save_checkpoint(
        experiment.ledger.store.root,
        step,
        experiment.agents,
        lambda agent, at: restarting(lambda: save(agent, at)),
        {phase: experiment.ledger.state(step, phase) for phase in phases},
        keep=experiment.config.checkpoint.keep,
        also=frozenset(best),
    )
