"""How many of what a configuration comes to: responses, updates, processes, GPUs, evaluations."""

from __future__ import annotations

from collections.abc import Mapping

from hacpo_core.config import AUTO, ExperimentConfig


def num_samples(config: ExperimentConfig) -> int:
    """Responses per problem and agent, as the method's plan announces them."""
    return int(config.method.plan.samples_per_problem(config.rollout.num_samples))


def num_sources(config: ExperimentConfig) -> int:
    """Agents whose responses a learner trains on."""
    return len(config.pair.agents) if config.method.shares_rollouts else 1


def benchmarks_after(config: ExperimentConfig, step: int) -> list[str]:
    """Benchmarks that the agents are evaluated on after a step; one may come twice. Before training (0) it is all."""
    chosen = config.evaluate
    is_during = step == 0 or (chosen.every > 0 and step % chosen.every == 0)
    return [*(chosen.during if is_during else []), *(chosen.final if step in (0, config.train.num_steps) else [])]


def measures_cosine(config: ExperimentConfig) -> bool:
    """Whether some updates take the cosine of two gradients, of own and of others' responses."""
    return config.diagnostics.every > 0 and num_sources(config) > 1 and bool(config.method.build.mixes_sources)


def num_minibatches(config: ExperimentConfig) -> int:
    """Updates of one learner in one step, as the method's builder announces them."""
    sources = num_sources(config)
    num_rows = sources * config.train.problems * num_samples(config)
    samples = config.rollout.num_samples
    return int(config.method.build.num_updates(num_rows=num_rows, num_samples=samples, num_sources=sources))


def total_updates(config: ExperimentConfig) -> int:
    """Updates of one learner in a whole training."""
    return config.train.num_steps * num_minibatches(config)


def num_ranks(config: ExperimentConfig, agent: str) -> int:
    """Processes that an agent is spread over."""
    own = config.pair.agents[agent].num_ranks
    ranks = config.placement.num_ranks if own is None else own
    assert isinstance(ranks, int), "a plan replaces auto by numbers, see flows.planning.plans.with_ranks"
    return ranks


def sharing_agents(config: ExperimentConfig) -> list[str]:
    """Agents whose number of ranks `placement.num_ranks: auto` leaves open."""
    if config.placement.num_ranks != AUTO:
        return []
    return [name for name, agent in config.pair.agents.items() if agent.num_ranks is None]


def shared_out(weights: Mapping[str, float], total: int, *, least: int) -> dict[str, int]:
    """Whole numbers in proportion to weights, by largest remainder.

        quota[k] = total w[k] / sum_j w[j]

    Each has its quota rounded down, and at least `least`; what is left goes to those that are furthest below their
    quota, what is too much comes from those furthest above.

    Args:
        weights: w, each > 0.
        total: what is shared out, at least `least` for each.
        least: of each.
    """
    quota = {k: total * weight / sum(weights.values()) for k, weight in weights.items()}
    counts = {k: max(least, int(share)) for k, share in quota.items()}
    while sum(counts.values()) < total:
        counts[max(quota, key=lambda k: quota[k] - counts[k])] += 1
    while sum(counts.values()) > total:
        counts[max((k for k in quota if counts[k] > least), key=lambda k: counts[k] - quota[k])] -= 1
    return counts


def train_set_counts(config: ExperimentConfig) -> dict[str, int]:
    """Problems of a step that come from each training set, in proportion to their shares."""
    shares = {name: config.data.sets[name].share for name in config.data.train}
    return shared_out(shares, config.train.problems, least=0)


def num_gpus(config: ExperimentConfig) -> int:
    """GPUs of one process of an agent."""
    if config.engine.device == "cpu":
        return 0
    return config.engine.vllm.tensor_parallel_size if config.engine.sampler == "vllm" else 1


def num_processes(config: ExperimentConfig) -> int:
    """Processes that hold models at a time: one where agents take turns in it, else the ranks of all agents.

    With `placement.colocated` agents take turns on the same ones, as many as the largest agent has.
    """
    if config.placement.kind == "local":
        return 1
    ranks = [num_ranks(config, agent) for agent in config.pair.agents]
    return max(ranks) if config.placement.colocated else sum(ranks)


def occupied_gpus(config: ExperimentConfig) -> int:
    """GPUs that an experiment holds from its start to its end, whichever of its agents works."""
    return num_processes(config) * num_gpus(config)


def longest_sequence(config: ExperimentConfig) -> int:
    """Most tokens of a prompt and its response, in training or in an evaluation."""
    limits = [b.max_response_tokens or config.evaluate.max_response_tokens for b in config.evaluate.benchmarks.values()]
    return config.rollout.max_prompt_tokens + max(config.rollout.max_response_tokens, *limits, 0)
