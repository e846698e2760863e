"""Counts derived from a configuration: responses, updates, processes, GPUs, evaluations."""

from collections.abc import Mapping

from hacpo_core.config import AUTO, ExperimentConfig
from hacpo_core.config.samplers import sampler_of


def num_samples(config: ExperimentConfig) -> int:
    """Responses per problem and agent, according to the method's plan."""
    return int(config.method.plan.samples_per_problem(config.rollout.num_samples))


def num_sources(config: ExperimentConfig) -> int:
    """Agents whose responses a learner trains on."""
    return len(config.pair.agents) if config.method.shares_rollouts else 1


def benchmarks_after(config: ExperimentConfig, step: int) -> list[str]:
    """Benchmarks to evaluate after a step, possibly with duplicates; all of them at step 0, before training."""
    evaluate = config.evaluate
    is_during = step == 0 or (evaluate.every > 0 and step % evaluate.every == 0)
    return [*(evaluate.during if is_during else []), *(evaluate.final if step in (0, config.train.num_steps) else [])]


def has_reference(config: ExperimentConfig) -> bool:
    """Whether each agent keeps its initial model beside the trained one."""
    return bool(config.method.objective.kl_coef > 0)


def keeps_optimizer(config: ExperimentConfig) -> bool:
    """Whether a complete run keeps its optimizer's states; adapters lie in the same file."""
    return config.checkpoint.keep_optimizer or config.engine.lora.rank > 0


def scores_own(config: ExperimentConfig) -> bool:
    """Whether the learner scores its own rows before the first update: the sampler's values are not its own."""
    return config.old_logprobs == "learner" and not sampler_of(config.engine).samples_as_learner(config.engine)


def num_minibatches(config: ExperimentConfig) -> int:
    """Planned updates of one learner per step: those of the first round of sampling, if no row is left out.

    With `method.build.num_iterations`, each mini-batch counts as often as it is trained on.
    """
    sources, build = num_sources(config), config.method.build
    num_rows = sources * config.train.problems * num_samples(config)
    samples = config.rollout.num_samples
    once = int(build.num_updates(num_rows=num_rows, num_samples=samples, num_sources=sources))
    return once * int(build.num_iterations)


def total_updates(config: ExperimentConfig) -> int:
    """Planned updates of one learner over the whole training."""
    return config.train.num_steps * num_minibatches(config)


def planned_updates(config: ExperimentConfig, step: int) -> range:
    """Planned updates of a step, numbered over the whole training."""
    num_per_step = num_minibatches(config)
    return range((step - 1) * num_per_step, step * num_per_step)


def num_ranks(config: ExperimentConfig, agent: str) -> int:
    """Ranks (processes) of an agent."""
    configured_ranks = config.pair.agents[agent].num_ranks
    ranks = config.placement.num_ranks if configured_ranks is None else configured_ranks
    assert isinstance(ranks, int), "planning replaces auto by a number, see flows.planning.plans.with_ranks"
    return ranks


def checkpointing(config: ExperimentConfig, agent: str) -> bool | int | str:
    """`engine.gradient_checkpointing` of an agent."""
    configured_layers = config.pair.agents[agent].recomputed_layers
    return config.engine.gradient_checkpointing if configured_layers is None else configured_layers


def recomputed_layers(checkpointing: bool | int | str, num_layers: int) -> int:
    """Number of a model's decoder layers whose activations are recomputed, by `engine.gradient_checkpointing`."""
    if checkpointing is True or checkpointing == AUTO:
        return num_layers
    return min(int(checkpointing), num_layers)


def sharing_agents(config: ExperimentConfig) -> list[str]:
    """Agents whose number of ranks is determined by `placement.num_ranks: auto`."""
    if config.placement.num_ranks != AUTO:
        return []
    return [name for name, agent in config.pair.agents.items() if agent.num_ranks is None]


def shared_out(weights: Mapping[str, float], total: int) -> dict[str, int]:
    """Integers in proportion to weights, by the largest-remainder method.

        quota[k] = total w[k] / sum_j w[j]

    Each count starts at its quota rounded down. Then the counts furthest below their quota are raised until the sum is
    `total`.

    Args:
        weights: w, each > 0.
        total: sum of the counts.
    """
    quota = {k: total * weight / sum(weights.values()) for k, weight in weights.items()}
    counts = {k: int(share) for k, share in quota.items()}
    while sum(counts.values()) < total:
        counts[max(quota, key=lambda k: quota[k] - counts[k])] += 1
    return counts


def train_set_counts(config: ExperimentConfig) -> dict[str, int]:
    """Problems per step from each training set, in proportion to the sets' shares."""
    shares = {name: config.data.sets[name].share for name in config.data.train}
    return shared_out(shares, config.train.problems)


def num_gpus(config: ExperimentConfig) -> int:
    """GPUs per process of an agent."""
    if config.engine.device == "cpu":
        return 0
    return sampler_of(config.engine).gpus_per_process(config.engine)


def num_processes(config: ExperimentConfig) -> int:
    """Places for processes with models: one if agents take turns in this process, else the ranks of all agents.

    With `placement.colocated`, agents share these places, as many as the agent with most ranks needs.
    """
    if config.placement.kind == "local":
        return 1
    ranks = [num_ranks(config, agent) for agent in config.pair.agents]
    return max(ranks) if config.placement.colocated else sum(ranks)


def occupied_gpus(config: ExperimentConfig) -> int:
    """GPUs that an experiment occupies for its whole duration, whether or not all its agents are active."""
    return num_processes(config) * num_gpus(config)


def longest_sequence(config: ExperimentConfig) -> int:
    """Largest number of tokens of a prompt and its response together, in training and evaluation."""
    limits = [benchmark.max_response_tokens or 0 for benchmark in config.evaluate.benchmarks.values()]
    return config.rollout.max_prompt_tokens + max(config.rollout.max_response_tokens, *limits, 0)
