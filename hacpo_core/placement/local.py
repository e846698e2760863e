"""All agents in this process, one at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hacpo_core.placement.agents import Agent
from hacpo_core.placement.base import Placement
from hacpo_core.placement.checkpoints import Checkpoint, load_agent, save_agent


class LocalPlacement(Placement):
    """Agents are objects in this process; their phases run one after another."""

    def _load(self, name: str, checkpoint: Checkpoint | None) -> Agent:
        return load_agent(self.tokenizers[name], checkpoint, config=self._config, initial=self._initial[name])

    def _save(self, name: str, folder: Path) -> dict[str, Any]:
        agent = self._agents[name]
        assert isinstance(agent, Agent)
        return save_agent(agent, folder)
