"""What a pair and a method would meet in training, measured on a sample of its problems with nothing trained.

    problems ─▶ every agent samples G responses ─▶ verdicts ─▶ estimate, as in step 1
                     │                                            │
                     └─▶ its learner scores them                  └─▶ each learner scores every other agent's rows
                         (sampler against learner)                    ─▶ objective.surrogate: ratios, bounds, stopped

Everything runs with the engines of the configuration, in a folder that is removed afterwards.

Shapes: P problem, G response in a group, R response, B row, N token of all responses.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flows.planning.memory import ModelShape, folder_shape
from flows.planning.plans import Plan
from flows.probe.rows import QUANTILES, STEP, PairProbe, pair_probe, rows_of
from flows.runs.opening import open_experiment
from hacpo_core.evaluation.metrics import MetricEstimate, average_at_k, mean_with_interval
from hacpo_core.experiment import Experiment
from hacpo_core.files import write_errors
from hacpo_core.methods.checks import checked_estimate, checked_shape
from hacpo_core.methods.estimate import Estimate, ScoredStep
from hacpo_core.methods.plan import SampleSpec
from hacpo_core.phases.agent_at import agent_at
from hacpo_core.records import Problem
from hacpo_core.responses import Responses
from hacpo_core.seeds import generator
from hacpo_core.stopwatch import Stopwatch


@dataclass(frozen=True, slots=True)
class AgentProbe:
    """An agent before training. Shares are of its responses, or of its groups: the responses to one problem.

    Attributes:
        prompt: the first problem's, as rendered with the chat template, control tokens included.
        response: the first one to it.
        num_problems: measured.
        accuracy: share of right responses, mean over problems, with its 95 % interval.
        signal_share, all_wrong_share, all_right_share: groups with different rewards, with rewards of 0 only, and with
            rewards of 1 only.
        lengths: tokens at QUANTILES; `mean_length`: their mean.
        ended_share, cut_share: responses that end with an end token, and that are cut at the limit.
        unscored_share: responses without a verdict.
        formless_share: scored responses in which no answer in the asked form was found; None if the reward function
            does not say.
        sampler_difference: mean |sampler - learner| log-probability of a token, nats.
        sampled_per_s, scored_per_s: tokens per second of sampling, and of the learner's forward pass.
        verified_per_s: responses per second.
        trained_tokens: response tokens that the learner trains on, of all sources, per response of its own; those of
            all rows if none has an advantage.
        shape: of the model.
    """

    prompt: str
    response: str
    num_problems: int
    accuracy: MetricEstimate
    signal_share: float
    all_wrong_share: float
    all_right_share: float
    lengths: tuple[float, ...]
    mean_length: float
    ended_share: float
    cut_share: float
    unscored_share: float
    formless_share: float | None
    sampler_difference: float
    sampled_per_s: float
    scored_per_s: float
    verified_per_s: float
    trained_tokens: float
    shape: ModelShape


@dataclass(frozen=True, slots=True)
class Probe:
    """All that was measured."""

    agents: Mapping[str, AgentProbe]
    pairs: tuple[PairProbe, ...]


def _tell_warm_up(tell: Callable[[str], None], agent: str, step: int, num_steps: int, loss: float) -> None:
    if step % max(1, num_steps // 10) == 0:
        tell(f"warm-up of {agent}: step {step} of {num_steps}, loss {loss:.3f}")


@dataclass(frozen=True, slots=True)
class _Sampled:
    """An agent's verified responses, the learner's scores of them, and rates."""

    responses: Responses
    difference_N: NDArray[np.float64]
    sampled_per_s: float
    scored_per_s: float
    verified_per_s: float


def probe(plan: Plan, *, num_problems: int, tell: Callable[[str], None] = lambda text: None) -> Probe:
    """Sample and score responses to some of the training problems, and measure what training would meet.

    Args:
        plan: of the experiment that would be trained; its folder is not touched.
        num_problems: chosen by the seed; all if there are fewer.
        tell: called with a line before each part.

    Raises:
        HacpoError: a model, an engine or a file cannot be used.
    """
    probes_dir = Path(plan.config.runtime.runs_dir) / "probes"  # a folder that all machines of a cluster share
    with write_errors(probes_dir):
        probes_dir.mkdir(parents=True, exist_ok=True)
    warm_ups = {name: partial(_tell_warm_up, tell, name) for name in plan.config.pair.agents}
    with (
        tempfile.TemporaryDirectory(prefix=".", dir=probes_dir) as folder,
        open_experiment(replace(plan, root=Path(folder) / plan.id), progress=warm_ups) as (experiment, _),
    ):
        return _measure(experiment, num_problems, tell)


def _measure(experiment: Experiment, num_problems: int, tell: Callable[[str], None]) -> Probe:
    config = experiment.config
    train_problems = [problem for problems in experiment.train_sets.values() for problem in problems]
    order = generator(config.seed, "probe").permutation(len(train_problems))[:num_problems]
    problems = [train_problems[index] for index in order.tolist()]
    measurements = {}
    for agent in experiment.agents:
        measurements[agent] = _sample(experiment, agent, problems, tell)
    responses = {agent: measurement.responses for agent, measurement in measurements.items()}
    estimate = _estimate(experiment, problems, responses)
    agents, pairs = {}, []
    for learner in experiment.agents:
        num_tokens = num_trained = 0
        for source in experiment.sources(learner):
            minibatch, counts = rows_of(experiment, learner, (source,), responses, estimate)
            is_trained_B = np.ones(len(minibatch), bool)
            if config.engine.skip_zero_advantage:
                is_trained_B = minibatch.advantage_B * minibatch.weight_B != 0
            lengths_B = minibatch.tokens.responses.lengths
            num_tokens += int(lengths_B.sum())
            num_trained += int(lengths_B[is_trained_B].sum())
            if source != learner:
                tell(f"{learner} scores {source}'s responses")
                both, _ = rows_of(experiment, learner, (learner, source), responses, estimate)
                pairs.append(pair_probe(experiment, learner, source, minibatch, counts, both, responses[source]))
        measurement = measurements[learner]
        agents[learner] = _agent(
            experiment, measurement, problems, (num_trained or num_tokens) / len(measurement.responses)
        )
    return Probe(agents, tuple(pairs))


def _sample(experiment: Experiment, agent: str, problems: Sequence[Problem], tell: Callable[[str], None]) -> _Sampled:
    rollout = experiment.config.rollout
    specs = [
        SampleSpec(problem, sample, rollout.limits) for problem in problems for sample in range(rollout.num_samples)
    ]

    tell(f"{agent}: first calls, in which its sampler checks itself and its engine compiles and allocates")
    with agent_at(experiment, agent, 0) as (placed, _):
        placed.score(placed.sample(specs[: rollout.num_samples], step=STEP, purpose="rollout"))
    tell(f"{agent}: {len(problems)} problems x {rollout.num_samples} responses")
    with agent_at(experiment, agent, 0) as (placed, sampling):
        responses = placed.sample(specs, step=STEP, purpose="rollout")
    with agent_at(experiment, agent, 0) as (placed, scoring):
        learner_logprobs = placed.score(responses).value_N.astype(np.float64)
    with Stopwatch() as verifying:
        by_id = {problem.id: problem for problem in problems}
        response_problems = [by_id[name] for name in responses.problem_id]
        verdicts = experiment.rewards.judge(response_problems, responses.text, list(responses.row_keys()))
    num_tokens = len(responses.token_ids.value_N)
    return _Sampled(
        responses=replace(responses, verdicts=tuple(verdicts)),
        difference_N=np.abs(responses.logprobs.value_N - learner_logprobs),
        sampled_per_s=num_tokens / sampling.cost().seconds,
        scored_per_s=num_tokens / scoring.cost().seconds,
        verified_per_s=len(responses) / verifying.cost().seconds,
    )


def _estimate(experiment: Experiment, problems: Sequence[Problem], responses: Mapping[str, Responses]) -> Estimate:
    """Advantages and weights, as the first step would compute them from these responses."""
    scored = ScoredStep(
        step=STEP,
        problem_ids=tuple(problem.id for problem in problems),
        responses=responses,
        seed=experiment.config.seed,
        max_response_tokens=experiment.config.rollout.max_response_tokens,
    )
    estimator = experiment.method.estimate
    sources = {agent: experiment.sources(agent) for agent in experiment.agents}
    return checked_estimate(estimator, checked_shape(estimator, scored), sources, {})[0]


def _agent(experiment: Experiment, sampled: _Sampled, problems: Sequence[Problem], trained_tokens: float) -> AgentProbe:
    responses, config = sampled.responses, experiment.config
    tokens = experiment.placement.tokenizers[responses.agent]
    reward_PG = responses.raw_reward_R.reshape(len(problems), -1)
    lengths = responses.token_ids.lengths
    is_cut = np.array([reason == "length" for reason in responses.finish_reason])
    signal_share, all_wrong_share, all_right_share = group_shares(reward_PG)
    has_form = all(":" not in name for name in config.reward.functions)
    formless = [verdict.extracted is None for verdict in responses.verdicts or () if verdict.reward is not None]
    prompt = str(tokens.tokenizer.decode(list(tokens.prompt_ids(problems[0]))))
    return AgentProbe(
        prompt=prompt,
        response=responses.text[0],
        num_problems=len(problems),
        accuracy=mean_with_interval(f"avg@{reward_PG.shape[1]}", average_at_k(reward_PG), seed=config.seed),
        signal_share=signal_share,
        all_wrong_share=all_wrong_share,
        all_right_share=all_right_share,
        lengths=tuple(float(value) for value in np.quantile(lengths, QUANTILES)),
        mean_length=float(lengths.mean()),
        ended_share=float(1 - is_cut.mean()),
        cut_share=float(is_cut.mean()),
        unscored_share=float((~responses.is_scored_R).mean()),
        formless_share=float(np.mean(formless)) if has_form and formless else None,
        sampler_difference=float(sampled.difference_N.mean()),
        sampled_per_s=sampled.sampled_per_s,
        scored_per_s=sampled.scored_per_s,
        verified_per_s=sampled.verified_per_s,
        trained_tokens=trained_tokens,
        shape=folder_shape(experiment.placement.folder(responses.agent)),
    )


def group_shares(reward_PG: NDArray[np.float64]) -> list[float]:
    """Shares of groups with different rewards, with rewards of 0 only, and of 1 only; nan is unscored."""
    scored_groups = [reward_G[~np.isnan(reward_G)] for reward_G in reward_PG]
    kinds = [(g.min() < g.max(), g.max() == 0, g.min() == 1) for g in scored_groups if len(g)]
    return [float(share) for share in np.mean(kinds, axis=0)] if kinds else [0.0, 0.0, 0.0]
