"""Ranks of agents with `placement.num_ranks: auto`, by what a step costs each of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from hacpo_core.config import ExperimentConfig
from hacpo_core.config.counts import num_sources, sharing_agents

EQUAL_RATES_SIZE = 4e9
"""parameters of a model for which a GPU's sampling and training rates are equal; assumed: sampling was not measured"""


def with_ranks(config: ExperimentConfig, parameters: Mapping[str, int]) -> ExperimentConfig:
    """The configuration with the ranks of `placement.num_ranks: auto` assigned to agents.

    All agents wait for the slowest, so each further rank goes to the agent whose step takes longest. A single agent
    gets half of `placement.total_ranks`, so that two such experiments fill a machine.

    Args:
        config: a valid configuration.
        parameters: number of parameters of each agent's model; if one is unknown, all agents count equally.
    """
    sharers, agents, total = sharing_agents(config), config.pair.agents, config.placement.total_ranks
    if not sharers:
        return config
    assert total is not None, "validate() requires total_ranks for auto"
    is_known = all(k in parameters for k in sharers)
    cost = {k: step_cost(config, parameters[k]) if is_known else 1.0 for k in sharers}
    ranks = dict.fromkeys(sharers, 1)
    for _ in range(total - sum(agent.num_ranks or 0 for agent in agents.values()) - len(sharers)):
        ranks[max(sharers, key=lambda k: cost[k] / ranks[k])] += 1
    if len(agents) == 1:
        ranks = {k: max(1, total // 2) for k in sharers}
    placed = {k: replace(agent, num_ranks=ranks.get(k, agent.num_ranks)) for k, agent in agents.items()}
    return replace(config, pair=replace(config.pair, agents=placed))


def step_cost(config: ExperimentConfig, parameters: int) -> float:
    """Device time of an agent's step, as a multiple of the time to sample it with `EQUAL_RATES_SIZE` parameters, N0.

        cost(N) = sqrt(N / N0) + tokens trained on / tokens sampled * N / N0

    It scales with the model's size as the rates of `flows.grids.estimate` do.
    """
    relative_size = parameters / EQUAL_RATES_SIZE
    trained_per_sampled = num_sources(config) * int(config.method.build.num_iterations)
    return math.sqrt(relative_size) + trained_per_sampled * relative_size
