"""Evaluation of one agent on one benchmark: sampled, verified and committed shard by shard, then summarised.

    problems ─cut─▶ answer.<benchmark>.<first>-<end>.<agent>  ...  one phase per shard; with an engine of its own, a
                        │                                          sampler answers all shards of all benchmarks at once
                        └─▶ evaluate.<benchmark>.<agent>            reads rewards, commits the metrics

An interrupted evaluation resumes after the last committed shard. A response depends on (seed, step, agent, problem,
sample) and the weights, not on its shard.

Shapes: P problem, K sample, R response.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain

import numpy as np
import pyarrow

from hacpo_core.config import BenchmarkConfig, ExperimentConfig, as_dict, digest_of
from hacpo_core.config.problems import REASONING_END
from hacpo_core.config.samplers import sampler_of
from hacpo_core.data.benchmarks import Benchmark
from hacpo_core.errors import ConfigError
from hacpo_core.evaluation.metrics import estimates
from hacpo_core.evaluation.results import EvaluationResult, is_done, read_result, result_phase, shard_kind
from hacpo_core.experiment import Experiment
from hacpo_core.methods.plan import SampleSpec
from hacpo_core.phases.agent_at import agent_at
from hacpo_core.phases.runner import Handle, Phase, Runner
from hacpo_core.phases.verify import check_scored
from hacpo_core.records import AnswerStyle, PhaseCost, SamplingLimits
from hacpo_core.responses import Responses

SHARD_PROBLEMS = 256
"""problems whose responses are committed together"""


class Answers:
    """Responses of an agent, after `step`, to the benchmarks of an evaluation.

    A sampler with an engine of its own answers everything that is not committed yet in one call, which waits once for
    the longest response. Another one answers shard by shard. Benchmarks that share ids of problems are answered apart.
    """

    def __init__(self, experiment: Experiment, step: int, agent: str, benchmarks: Sequence[Benchmark]) -> None:
        self._experiment, self._step, self._agent, self._benchmarks = experiment, step, agent, benchmarks
        self._parts: dict[tuple[str, range], tuple[Responses, PhaseCost]] = {}

    def take(self, benchmark: Benchmark, shard: range) -> tuple[Responses, PhaseCost]:
        """The responses to a shard, problem by problem, and its share of the cost; asked for once."""
        if (benchmark.name, shard) not in self._parts:
            self._sample([(benchmark, shard), *self._others(benchmark, shard)])
        return self._parts.pop((benchmark.name, shard))

    def _others(self, first: Benchmark, taken: range) -> Iterator[tuple[Benchmark, range]]:
        """Further shards that can be answered in the same call."""
        config, store, ids = self._experiment.config, self._experiment.ledger.store, _ids(first)
        if sampler_of(config.engine).shares_weights:
            return
        for benchmark in (first, *(other for other in self._benchmarks if other.name != first.name)):
            if benchmark is not first:
                if not ids.isdisjoint(_ids(benchmark)):
                    continue
                ids |= _ids(benchmark)
            digest = question_digest(config, benchmark)
            for shard in _shards(len(benchmark.problems), SHARD_PROBLEMS):
                phase = f"{shard_kind(benchmark.name, shard)}.{self._agent}"
                is_first = benchmark is first and shard == taken
                is_here = is_first or (benchmark.name, shard) in self._parts
                if not is_here and not is_done(store, self._step, phase, digest):
                    yield benchmark, shard

    def _sample(self, shards: Sequence[tuple[Benchmark, range]]) -> None:
        specs_of = [shard_specs(self._experiment.config, benchmark, shard) for benchmark, shard in shards]
        with agent_at(self._experiment, self._agent, self._step) as (placed, watch):
            responses = placed.sample(list(chain.from_iterable(specs_of)), step=self._step, purpose="evaluate")
        cost, first = watch.cost(), 0
        for (benchmark, shard), specs in zip(shards, specs_of, strict=True):
            part = responses.take(range(first, first + len(specs)))
            share = part.num_tokens / responses.num_tokens
            part_cost = PhaseCost(share * cost.seconds, share * cost.gpu_seconds, part.num_tokens)
            self._parts[benchmark.name, shard] = part, part_cost
            first += len(specs)


def _ids(benchmark: Benchmark) -> set[str]:
    return {problem.id for problem in benchmark.problems}


def shard_specs(config: ExperimentConfig, benchmark: Benchmark, shard: range) -> list[SampleSpec]:
    """The responses that a shard needs, problem by problem."""
    limits, num_samples = sampling_limits(config, benchmark.config), benchmark.config.num_samples
    problems = benchmark.problems[shard.start : shard.stop]
    return [SampleSpec(problem, sample, limits) for problem in problems for sample in range(num_samples)]


def start_evaluation(
    experiment: Experiment,
    step: int,
    agent: str,
    benchmark: Benchmark,
    runner: Runner,
    *,
    answers: Answers | None = None,
    after: Sequence[Handle] = (),
) -> Handle | None:
    """Start the phases of an evaluation of an agent after `step`, one shard after another.

    Args:
        experiment, step, agent, benchmark: the evaluation.
        runner: runs the phases.
        answers: shared by the benchmarks of the agent's evaluation; None: this is the only one.
        after: phases that come first.

    Returns:
        the last phase; None if the metrics are already committed.
    """
    if experiment.ledger.store.is_intact(step, result_phase(benchmark.name, agent)):
        return None
    shards = _shards(len(benchmark.problems), SHARD_PROBLEMS)
    answers = answers or Answers(experiment, step, agent, [benchmark])
    for n, shard in enumerate(shards):
        handle = runner.start(
            Phase(shard_kind(benchmark.name, shard), step, agent),
            partial(evaluate_shard, experiment, step, agent, benchmark, shard, answers, before=shards[:n]),
            after=after,
        )
        after = [handle]
    return runner.start(
        Phase(f"evaluate.{benchmark.name}", step, agent),
        lambda: sum_up(experiment, step, agent, benchmark, shards),
        after=after,
    )


def finish_evaluation(
    experiment: Experiment, step: int, agent: str, benchmark: Benchmark, last: Handle | None
) -> EvaluationResult:
    """Wait for an evaluation's last phase and read its result.

    Raises:
        ConfigError: the result under this name is for other problems or settings; it is never replaced.
    """
    if last is not None:
        last.result()
    result = read_result(experiment.ledger.store, step, result_phase(benchmark.name, agent))
    if result.digest != question_digest(experiment.config, benchmark):
        raise other_question_error(step, benchmark.name)
    return result


def other_question_error(step: int, benchmark: str) -> ConfigError:
    """The error if a benchmark's name was already used for other problems or settings."""
    return ConfigError(
        f"benchmark {benchmark}: after step {step} it was evaluated with other problems or settings; "
        "restore them, or give the new declaration another name"
    )


def _shards(num_problems: int, size: int) -> list[range]:
    return [range(first, min(first + size, num_problems)) for first in range(0, num_problems, size)]


def question_digest(config: ExperimentConfig, benchmark: Benchmark) -> str:
    """Digest of problems, reference answers, sampling settings, limits and verification."""
    problems = [
        [problem.id, [asdict(message) for message in problem.messages], asdict(problem.gold)]
        for problem in benchmark.problems
    ]
    verifier = config.verifier
    verification = [*(verifier.equality, _style(config, benchmark)), *(verifier.answer_after_reasoning, REASONING_END)]
    limits = asdict(sampling_limits(config, benchmark.config))
    return digest_of([problems, limits, benchmark.config.num_samples, verification])


def sampling_limits(config: ExperimentConfig, benchmark: BenchmarkConfig) -> SamplingLimits:
    """Temperature and limits with which a benchmark is sampled."""
    is_greedy = benchmark.temperature == 0
    return SamplingLimits(
        temperature=1.0 if is_greedy else benchmark.temperature,
        top_p=1.0 if is_greedy else benchmark.top_p,
        max_tokens=benchmark.max_response_tokens or config.rollout.max_response_tokens,
        is_greedy=is_greedy,
    )


def _style(config: ExperimentConfig, benchmark: Benchmark) -> AnswerStyle:
    return benchmark.config.style or config.verifier.style


def evaluate_shard(
    experiment: Experiment,
    step: int,
    agent: str,
    benchmark: Benchmark,
    shard: range,
    answers: Answers,
    *,
    before: Sequence[range],
) -> None:
    """Sample, verify and commit the responses to the problems of one shard.

    Args:
        experiment, step, agent, benchmark: the evaluation.
        shard: positions of the problems.
        answers: of the agent's evaluation.
        before: the earlier shards, which are committed.

    Raises:
        VerificationError: too many responses to the benchmark are unscored, see `check_scored`; a resume answers this
            shard again.
    """
    phase, digest = f"{shard_kind(benchmark.name, shard)}.{agent}", question_digest(experiment.config, benchmark)
    if is_done(experiment.ledger.store, step, phase, digest):
        return
    specs, num_samples = shard_specs(experiment.config, benchmark, shard), benchmark.config.num_samples
    responses, cost = answers.take(benchmark, shard)
    golds, style = [spec.problem.gold for spec in specs], _style(experiment.config, benchmark)
    verdicts = experiment.verifier.verify(responses.text, golds, style=style)
    earlier_phases = [f"{shard_kind(benchmark.name, earlier_shard)}.{agent}" for earlier_shard in before]
    store = experiment.ledger.store
    num_before = sum(store.read_value(step, name, f"{name}.json")["num_unscored"] for name in earlier_phases)
    num_unscored = check_scored(
        verdicts,
        f"step {step}, {agent} on {benchmark.name}",
        max_fraction=experiment.config.verifier.max_unscored_fraction,
        num_before=num_before,
        num_responses=len(benchmark.problems) * num_samples,
    )
    table = {
        "problem_id": responses.problem_id,
        "sample": responses.sample_R,
        "question": [spec.problem.messages[-1].content for spec in specs],
        "answer": [spec.problem.answer for spec in specs],
        "text": responses.text,
        "num_tokens": responses.token_ids.lengths,
        "finish_reason": responses.finish_reason,
        "status": [verdict.status for verdict in verdicts],
        "reward": pyarrow.array([verdict.reward for verdict in verdicts], pyarrow.float64()),
        "extracted": pyarrow.array([verdict.extracted for verdict in verdicts], pyarrow.string()),
        "reason": [verdict.reason for verdict in verdicts],
    }
    value = {"digest": digest, "cost": asdict(cost), "num_unscored": num_unscored}
    store.commit(step, phase, {f"{phase}.parquet": table, f"{phase}.json": value})


def sum_up(experiment: Experiment, step: int, agent: str, benchmark: Benchmark, shards: Sequence[range]) -> None:
    """Commit the metrics of an evaluation whose shards are all committed."""
    import pandas as pd

    store, num_samples = experiment.ledger.store, benchmark.config.num_samples
    phases = [f"{shard_kind(benchmark.name, shard)}.{agent}" for shard in shards]
    columns = ["problem_id", "sample", "reward", "finish_reason"]
    frame = pd.concat([store.read_table(step, phase, f"{phase}.parquet", columns=columns) for phase in phases])
    costs = [PhaseCost(**store.read_value(step, phase, f"{phase}.json")["cost"]) for phase in phases]
    by_key = frame.pivot(index="problem_id", columns="sample", values="reward")
    reward_PK = by_key.loc[[problem.id for problem in benchmark.problems]].to_numpy(dtype=np.float64)
    result = EvaluationResult(
        benchmark=benchmark.name,
        agent=agent,
        step=step,
        digest=question_digest(experiment.config, benchmark),
        declaration=as_dict(benchmark.config),
        estimates=tuple(estimates(reward_PK, seed=experiment.config.seed)),
        headline=f"{benchmark.config.metric}@{num_samples}",
        num_problems=len(benchmark.problems),
        num_samples=num_samples,
        cut_share=float((frame["finish_reason"] == "length").mean()),
        unscored_share=float(np.isnan(reward_PK).mean()),
        shards=tuple((shard.start, shard.stop) for shard in shards),
        cost=PhaseCost.total(costs),
    )
    phase = result_phase(benchmark.name, agent)
    store.commit(step, phase, {f"{phase}.json": asdict(result)})
