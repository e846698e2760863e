"""All agents in this process, taking turns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from hacpo_core.agents import Agent
from hacpo_core.checkpoints import Checkpoint, latest_checkpoint, load_agent, save_checkpoint
from hacpo_core.config import ExperimentConfig

Replay = Callable[[Agent, int], None]
_log = logging.getLogger(__name__)


class LocalPlacement:
    """Holds the agents and brings any of them back to the version that a phase needs."""

    def __init__(self, config: ExperimentConfig, *, root: Path, initial: Mapping[str, Path]) -> None:
        """Place agents without loading them yet.

        Args:
            config: of the experiment.
            root: its folder, where checkpoints lie.
            initial: folder of each agent's initial model.
        """
        self._config, self._root, self._initial = config, root, dict(initial)
        self._agents: dict[str, Agent] = {}

    def open(self) -> Checkpoint | None:
        """Load every agent from the newest intact checkpoint, or from its initial model when there is none.

        Returns:
            that checkpoint.
        """
        checkpoint = latest_checkpoint(self._root)
        for name in self._initial:
            self._load(name, at_most=checkpoint.step if checkpoint else 0)
        return checkpoint

    def _load(self, name: str, *, at_most: int) -> Agent:
        checkpoint = latest_checkpoint(self._root, at_most=at_most)
        folder = self._initial[name]
        if name in self._agents:
            self._agents.pop(name).close()
        if checkpoint is None:
            agent = Agent(name, self._config, initial=folder, folder=folder, version=0)
        else:
            agent = load_agent(name, checkpoint, config=self._config, initial=folder)
        self._agents[name] = agent
        return agent

    def close(self) -> None:
        """End what the agents started."""
        while self._agents:
            self._agents.popitem()[1].close()

    def agent(self, name: str) -> Agent:
        """The agent as it is."""
        return self._agents[name]

    def agent_at(self, name: str, version: int, *, replay: Replay) -> Agent:
        """The agent with the weights of that version.

        An agent that failed in mid-update, or that is elsewhere, is loaded from a checkpoint and taken through the
        stored rollouts again.

        Args:
            name: of the agent.
            version: update phases that its weights must have seen.
            replay: repeats the update phase of one step on the agent.
        """
        agent = self._agents[name]
        if agent.is_dirty or agent.version > version:
            _log.warning("agent %s is restored to version %d", name, version)
            agent = self._load(name, at_most=version)
        for step in range(agent.version + 1, version + 1):
            replay(agent, step)
        agent.require_version(version)
        return agent

    def checkpoint(self, step: int, window: Mapping[str, list[float]]) -> None:
        """Save all agents after `step`."""
        save_checkpoint(self._root, step, self._agents, window, keep=self._config.checkpoint.keep)
