"""Whether the prompts of benchmarks fit the agents, checked before anything is sampled."""

import logging
import math
from collections.abc import Iterable
from pathlib import Path

from hacpo_core.config import ExperimentConfig
from hacpo_core.config.counts import longest_sequence
from hacpo_core.config.samplers import sampler_of
from hacpo_core.data.benchmarks import Benchmark
from hacpo_core.engines.models.loading import length_limits
from hacpo_core.errors import DataError
from hacpo_core.placement.agent_tokenizer import AgentTokenizer

_log = logging.getLogger(__name__)


def check_prompts(
    benchmarks: Iterable[Benchmark], agent: AgentTokenizer, config: ExperimentConfig, *, folder: Path
) -> None:
    """Check that the agent's sampler can take every prompt and a response up to the limit.

    A response that may reach beyond the model's positions only gives a warning, if the model can compute it.

    Args:
        benchmarks: with their problems.
        agent: its tokenizer; it caches the prompts.
        config: the experiment's.
        folder: of the agent's initial model.

    Raises:
        DataError: some prompts are too long; the message counts them and names the longest.
    """
    limits = length_limits(folder)
    whole, remedy = limits.hard, "use a model with more positions"
    sampler = sampler_of(config.engine)
    of_sampler = longest_sequence(config)  # which a sampler with a copy of the weights is started for
    if not sampler.shares_weights and (whole is None or of_sampler < whole):
        whole, remedy = of_sampler, f"let {sampler.title} take more than {of_sampler} tokens"
    for benchmark in benchmarks:
        response = benchmark.config.max_response_tokens or config.rollout.max_response_tokens
        limit_field = f"evaluate.benchmarks.{benchmark.name}.max_response_tokens"
        agent.render(benchmark.problems)
        lengths = {problem.id: len(agent.prompt_ids(problem)) for problem in benchmark.problems}
        place, positions = f"benchmark {benchmark.name}, agent {agent.name}", limits.positions
        rooms = [whole - response] if whole is not None else []
        rooms += [positions - 1] if positions is not None else []
        room = min(rooms, default=math.inf)
        longest = max(lengths.values(), default=0)
        if longest > room:
            raise DataError(
                f"{place}: {_count_text(lengths, room, response)}; leave these problems out, lower {limit_field}, "
                f"or {remedy}"
            )
        if positions is not None and longest > positions - response:
            text = _count_text(lengths, positions - response, response)
            _log.warning("%s: %s, and the model has %d positions; lower %s", place, text, positions, limit_field)


def _count_text(lengths: dict[str, int], room: float, response: int) -> str:
    longest = max(lengths, key=lambda name: lengths[name])
    longest_text = f"the longest prompt, {longest!r}, has {lengths[longest]} tokens"
    if room < 1:
        return f"no prompt leaves room for a response of {response} tokens; {longest_text}"
    number = sum(length > room for length in lengths.values())
    return (
        f"{number} of {len(lengths)} prompts have more than {room} tokens, and a response may have {response}; "
        f"{longest_text}"
    )
