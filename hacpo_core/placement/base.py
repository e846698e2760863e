"""Placement of agents: the interface of a placed agent, and how agents are brought to a version of their weights."""

import gc
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import torch

from hacpo_core.columns import Ragged
from hacpo_core.config import ExperimentConfig
from hacpo_core.data.batches import Minibatch
from hacpo_core.engines.learning.allocator import release_unused
from hacpo_core.engines.learning.outcomes import UpdateOutcome
from hacpo_core.engines.learning.replay import UpdateTrace
from hacpo_core.methods.base import State
from hacpo_core.methods.objective import Objective
from hacpo_core.methods.plan import SampleSpec
from hacpo_core.placement.agent_tokenizer import AgentTokenizer
from hacpo_core.placement.agents import Agent, Purpose
from hacpo_core.placement.checkpoints import Checkpoint, latest_checkpoint, load_agent, save_agent
from hacpo_core.responses import Responses

_log = logging.getLogger(__name__)


class PlacedAgent(Protocol):
    """An agent in this or other processes; see `hacpo_core.placement.agents.Agent` for the methods.

    `version` is the number of update phases applied to its weights. `is_dirty` is True if the weights are not of this
    version, or unfit for use: an update is running or was interrupted, the sampler failed, or their process was lost.
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
        objective_state: State | None = None,
    ) -> tuple[UpdateOutcome, UpdateTrace]:
        """One optimizer update per mini-batch, and their trace; afterwards, the weights are of `version`."""

    def gradient_cosine(self, rows: Minibatch, objective: Objective) -> float | None:
        """As `BaseLearner.gradient_cosine`."""

    def rest(self) -> None:
        """Release device memory for other agents until the next call."""

    def close(self) -> None:
        """Stop everything that was started for the agent."""


class Placement:
    """Holds the agents and provides each of them with the weights version that a phase needs.

    Agents are objects in this process, whose phases run one after another; `RayPlacement` puts them elsewhere.
    """

    def __init__(self, config: ExperimentConfig, *, root: Path, initial: Mapping[str, Path]) -> None:
        """Prepare the agents without loading their weights.

        Args:
            config: the experiment's.
            root: the experiment's folder, with its checkpoints.
            initial: folder of each agent's initial model.

        Raises:
            ModelError: a tokenizer cannot be loaded.
        """
        self._config, self._root, self._initial = config, root, dict(initial)
        self.tokenizers = {
            name: AgentTokenizer(
                name, config.pair.agents[name], initial=folder, stops_at_turn_end=config.rollout.stops_at_turn_end
            )
            for name, folder in initial.items()
        }
        self._agents: dict[str, PlacedAgent] = {}
        self._last = ""
        """the agent that worked last; only used if agents share devices"""

    def _load(self, name: str, checkpoint: Checkpoint | None) -> PlacedAgent:
        """A new agent with the weights of the checkpoint, or with the initial ones."""
        return load_agent(self.tokenizers[name], checkpoint, config=self._config, initial=self._initial[name])

    def _save(self, name: str, folder: Path) -> dict[str, Any]:
        """Save the agent in a folder, as `save_agent` does."""
        agent = self._agents[name]
        assert isinstance(agent, Agent)
        return save_agent(agent, folder)

    @property
    def shares_devices(self) -> bool:
        """Whether agents must release device memory for each other."""
        return len(self._initial) > 1

    def folder(self, name: str) -> Path:
        """Folder of an agent's initial model."""
        return self._initial[name]

    def turn(self, name: str) -> AbstractContextManager[object]:
        """Context manager for work with an agent: phases in other threads that need it, or its devices, wait here."""
        return nullcontext()

    def open(self, checkpoint: Checkpoint | None = None) -> None:
        """Load every agent from a checkpoint, or from its initial model."""
        for name in self._initial:
            self._make_room(name)
            self._agents[name] = self._load(name, checkpoint)

    def _make_room(self, name: str) -> None:
        """Make the agent that worked last release shared devices, unless it is this agent."""
        last = self._agents.get(self._last)
        if self.shares_devices and self._last != name and last is not None and not last.is_dirty:
            last.rest()
        self._last = name

    def break_off(self) -> None:
        """Abort what agents are doing in other threads, if possible."""

    def close(self) -> None:
        """Stop everything that the agents started."""
        while self._agents:
            self._agents.popitem()[1].close()

    def has_seen(self, name: str, version: int) -> bool:
        """Whether at least `version` update phases have been applied to the agent's weights."""
        agent = self._agents.get(name)
        return agent is not None and not agent.is_dirty and agent.version >= version

    def agent_at(self, name: str, version: int, *, replay: Callable[[PlacedAgent, int], None]) -> PlacedAgent:
        """The agent with the weights of this version.

        An agent that failed during an update, was lost or is at a later version is loaded from a checkpoint; then its
        updates are repeated from the stored rollouts.

        Args:
            name: of the agent.
            version: number of update phases that its weights must have.
            replay: repeats the update phase of one step on the agent.
        """
        self._make_room(name)
        agent = self._agents.get(name)
        if agent is None or agent.is_dirty or agent.version > version:
            _log.info("restoring agent %s to weights version %d", name, version)
            del agent  # free its memory
            if name in self._agents:
                self._agents.pop(name).close()
            gc.collect()  # DeepSpeed's engine contains reference cycles
            release_unused(torch.device(self._config.engine.device))
            agent = self._agents[name] = self._load(name, latest_checkpoint(self._root, at_most=version, end=version))
        for step in range(agent.version + 1, version + 1):
            replay(agent, step)
        assert not agent.is_dirty and agent.version == version, "loaded at or below this version, then replayed"
        return agent

    def save(self, name: str, folder: Path) -> dict[str, Any]:
        """Save an agent in a folder, replacing an incomplete earlier attempt; see `save_agent`."""
        shutil.rmtree(folder, ignore_errors=True)
        return self._save(name, folder)
