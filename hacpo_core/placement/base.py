"""Where agents live: what is asked of a placed agent, and how one gets to the version that a phase needs."""

from __future__ import annotations

import gc
import logging
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import torch

from hacpo_core.columns import Ragged
from hacpo_core.config import ExperimentConfig
from hacpo_core.data.batches import Minibatch
from hacpo_core.engines.torch.offload import release_unused
from hacpo_core.methods.base import Objective, SampleSpec
from hacpo_core.placement.agents import AgentTokenizer, AppliedUpdate, Purpose
from hacpo_core.responses import Responses
from hacpo_core.store.checkpoints import Checkpoint, latest_checkpoint

_log = logging.getLogger(__name__)


class PlacedAgent(Protocol):
    """An agent, wherever its weights are; `hacpo_core.placement.agents.Agent` says what the methods do.

    `version` counts the update phases that its weights have seen. `is_dirty` is True where they are not of that
    version: an update is under way, was broken off, or the process that held them is gone.
    """

    name: str
    version: int
    is_dirty: bool

    def sample(self, specs: Sequence[SampleSpec], *, step: int, purpose: Purpose) -> Responses:
        """Sample a response for each spec, in their order."""

    def score(self, responses: Responses) -> Ragged:
        """The training engine's log-probabilities (float32, nats) of the responses under the current weights."""

    def update(
        self,
        minibatches: Sequence[Minibatch],
        objective: Objective,
        *,
        version: int,
        measures_cosine: bool,
        recomputes_own: bool,
    ) -> AppliedUpdate:
        """One optimizer update per mini-batch, in order; the weights are of `version` afterwards."""

    def rest(self) -> None:
        """Leave the device to other agents; the next call takes it back."""

    def close(self) -> None:
        """End what was started for it."""


ReplayUpdate = Callable[[PlacedAgent, int], None]


class Placement(ABC):
    """Holds the agents and brings any of them back to the version that a phase needs."""

    def __init__(self, config: ExperimentConfig, *, root: Path, initial: Mapping[str, Path]) -> None:
        """Place agents without loading their weights yet.

        Args:
            config: of the experiment.
            root: its folder, where checkpoints lie.
            initial: folder of each agent's initial model.

        Raises:
            ModelError: a tokenizer cannot be loaded.
        """
        self._config, self._root, self._initial = config, root, dict(initial)
        self.tokenizers = {
            name: AgentTokenizer(name, config.pair.agents[name], initial=folder) for name, folder in initial.items()
        }
        self._agents: dict[str, PlacedAgent] = {}
        self._last = ""
        """the agent that worked last; not read where agents have devices of their own"""

    @abstractmethod
    def _load(self, name: str, checkpoint: Checkpoint | None) -> PlacedAgent:
        """A new agent with the checkpoint's weights, or with the initial ones."""

    @abstractmethod
    def _save(self, name: str, folder: Path) -> dict[str, Any]:
        """Write the agent into a folder, as `hacpo_core.store.checkpoints.save_agent` does."""

    @property
    def shares_devices(self) -> bool:
        """Whether agents have to make room for each other."""
        return len(self._initial) > 1

    def turn(self) -> AbstractContextManager[object]:
        """Held by whoever works with an agent; agents that share a device wait here for each other."""
        return nullcontext()

    def open(self) -> Checkpoint | None:
        """Load every agent from the newest intact checkpoint, or from its initial model when there is none.

        Returns:
            that checkpoint.
        """
        checkpoint = latest_checkpoint(self._root)
        for name in self._initial:
            self._make_room(name)
            self._agents[name] = self._load(name, checkpoint)
        return checkpoint

    def _make_room(self, name: str) -> None:
        """Have the agent that worked last leave the devices, where that is another one and they are shared."""
        last = self._agents.get(self._last)
        if self.shares_devices and self._last != name and last is not None and not last.is_dirty:
            last.rest()
        self._last = name

    def break_off(self) -> None:  # noqa: B027  local agents have no other threads
        """End what the agents are doing for other threads, where that is possible."""

    def close(self) -> None:
        """End what the agents started."""
        while self._agents:
            self._agents.popitem()[1].close()

    def has_seen(self, name: str, version: int) -> bool:
        """Whether the agent's weights have seen that many update phases, or more."""
        agent = self._agents.get(name)
        return agent is not None and not agent.is_dirty and agent.version >= version

    def agent_at(self, name: str, version: int, *, replay: ReplayUpdate) -> PlacedAgent:
        """The agent with the weights of that version.

        An agent that failed in mid-update, that was lost, or that is elsewhere, is loaded from a checkpoint and taken
        through the stored rollouts again.

        Args:
            name: of the agent.
            version: update phases that its weights must have seen.
            replay: repeats the update phase of one step on the agent.
        """
        self._make_room(name)
        agent = self._agents.get(name)
        if agent is None or agent.is_dirty or agent.version > version:
            _log.warning("agent %s is restored to version %d", name, version)
            del agent  # its memory is needed
            if name in self._agents:
                self._agents.pop(name).close()
            gc.collect()  # DeepSpeed's engine holds itself in a circle
            release_unused(torch.device(self._config.engine.device))
            agent = self._agents[name] = self._load(name, latest_checkpoint(self._root, at_most=version))
        for step in range(agent.version + 1, version + 1):
            replay(agent, step)
        assert not agent.is_dirty and agent.version == version, "loaded at or below the version, then replayed to it"
        return agent

    def save(self, name: str, folder: Path) -> dict[str, Any]:
        """Write an agent, as it is, into a folder, in place of what one that died left there; see `save_agent`."""
        shutil.rmtree(folder, ignore_errors=True)
        return self._save(name, folder)
