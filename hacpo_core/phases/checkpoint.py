"""Checkpoints of all agents and of the parts' states."""

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from hacpo_core.experiment import Experiment
from hacpo_core.phases.agent_at import agent_at
from hacpo_core.phases.runner import restarting
from hacpo_core.placement.checkpoints import save_checkpoint


def checkpoint(experiment: Experiment, step: int, *, best: Collection[int]) -> None:
    """Save all agents as they are after `step`, side by side if they are in processes of their own.

    An agent whose process dies meanwhile is restored and saved again.

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

    def save_all(at: Path) -> dict[str, dict[str, Any]]:
        agents = experiment.agents
        if experiment.config.placement.kind == "local":
            return {agent: save(agent, at / agent) for agent in agents}
        with ThreadPoolExecutor(len(agents)) as pool:
            entries = [pool.submit(restarting, partial(save, agent, at / agent)) for agent in agents]
            try:
                return {agent: entry.result() for agent, entry in zip(agents, entries, strict=True)}
            except BaseException as error:
                if not isinstance(error, Exception):  # Ctrl-C, SIGTERM: else the other agents would write to the end
                    experiment.placement.break_off()
                raise

    save_checkpoint(
        experiment.ledger.store.root,
        step,
        save_all,
        {phase: experiment.ledger.state(step, phase) for phase in phases},
        keep=experiment.config.checkpoint.keep,
        also=frozenset(best),
    )
