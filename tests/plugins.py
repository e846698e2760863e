"""What a user would write outside of the package: one class for each part that needs it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hacpo_core.config.fields import setting
from hacpo_core.methods.base import State
from hacpo_core.methods.build import Builder, History
from hacpo_core.methods.builders.shuffled import Shuffled
from hacpo_core.methods.estimate import Estimate, Estimator, ScoredStep
from hacpo_core.methods.estimators.capability import CapabilityEstimator
from hacpo_core.methods.objective import LossRows, Surrogate
from hacpo_core.methods.objectives.sequence_clip import SequenceClip
from hacpo_core.methods.plan import PlanTask, SampleSpec, SamplingPlan
from hacpo_core.methods.plans.every_problem import EveryProblem
from hacpo_core.records import Problem, RowKey
from hacpo_core.responses import Responses


def rewards(responses: Responses) -> Any:
    """Raw rewards, 0 where unscored."""
    return np.nan_to_num(responses.raw_reward_R)


def brevity(problems: Sequence[Problem], responses: Sequence[str]) -> list[float | None]:
    """A reward of one's own: 1 for no characters, less for each; nothing is said of problems that hold a 5."""
    return [
        None if "5" in problem.messages[-1].content else 1 / (1 + len(text))
        for problem, text in zip(problems, responses, strict=True)
    ]


def by_turns(problems: Sequence[Problem], responses: Sequence[str]) -> list[float]:
    """0 and 1 in turn, whatever the responses are."""
    return [float(i % 2) for i in range(len(responses))]


def arrays(problems: Sequence[Problem], responses: Sequence[str]) -> list[Any]:
    """Numbers as torch and numpy have them."""
    return [torch.full((), 0.5), np.float32(0.5)]


@dataclass(frozen=True)
class RunningMean(Estimator):
    """Rewards less each agent's running mean over all steps; REINFORCE with a baseline that remembers."""

    share: float = setting(0.5, "share of the newest step in the mean", above=0, at_most=1)

    def estimate(self, scored: ScoredStep, state: State) -> tuple[Estimate, State]:
        advantages, means = {}, {}
        for agent, responses in scored.responses.items():
            before = state.get(agent, {"mean": np.zeros(1), "steps": 0})
            reward_R = rewards(responses)
            mean = (1 - self.share) * before["mean"] + self.share * reward_R.mean(keepdims=True)
            means[agent] = {"mean": mean, "steps": before["steps"] + 1}
            advantages[agent] = reward_R - mean
        figures = {agent: {"running/mean": float(value["mean"][0])} for agent, value in means.items()}
        return Estimate(dict.fromkeys(scored.responses, advantages), figures=figures), means


class Weighted(Estimator):
    """Rewards as they are, with a weight."""

    weight = 1.0

    def estimate(self, scored: ScoredStep, state: State) -> tuple[Estimate, State]:
        advantages = {agent: rewards(responses) + 0.5 for agent, responses in scored.responses.items()}
        weights = {agent: np.full(len(column), type(self).weight) for agent, column in advantages.items()}
        return Estimate(dict.fromkeys(scored.agents, advantages), dict.fromkeys(scored.agents, weights)), state


@dataclass(frozen=True)
class TwoTags(SamplingPlan):
    """G ordinary responses to each problem, and a short one; how often each was short is remembered."""

    short_tokens: int = setting(8, "limit of the short response", at_least=1, at_most=1e6)

    def samples_per_problem(self, num_samples: int) -> int:
        return num_samples + 1

    def plan(self, task: PlanTask, state: State) -> tuple[Sequence[SampleSpec], State]:
        short = replace(task.limits, max_tokens=self.short_tokens)
        ordinary = range(task.num_samples)
        specs = [SampleSpec(problem, i, task.limits) for problem in task.problems for i in ordinary]
        specs += [SampleSpec(problem, task.num_samples, short, tag="short") for problem in task.problems]
        counts = {p.id: state.get("counts", {}).get(p.id, 0) + 1 for p in task.problems}
        return specs, {"counts": {**state.get("counts", {}), **counts}}


@dataclass(frozen=True)
class WithOld(Shuffled):
    """The step's rows, and with each mini-batch one own row of the step before that was not used twice yet."""

    def build(self, history: History, state: State) -> tuple[Sequence[Sequence[RowKey]], State]:
        batches, _ = super().build(history, {})
        used = set(map(tuple, state.get("used", [])))
        before = history.responses(history.step - 1, history.learner).row_keys() if history.step > 1 else ()
        free = [key for key in before if (key.problem_id, key.sample) not in used]
        added = [[*batch, *free[n : n + 1]] for n, batch in enumerate(batches)]
        taken = [(key.problem_id, key.sample) for key in free[: len(batches)]]
        return added, {"used": [*state.get("used", []), *taken]}


@dataclass(frozen=True)
class HalfForeign(SequenceClip):
    """GSPO on own rows; others' rows count half, and only where they were rewarded."""

    share: float = setting(0.5, "weight of others' rows", at_least=0, at_most=1)

    def surrogate(self, rows: LossRows, logprob_BT: Tensor, *, update: int) -> Surrogate:
        found = super().surrogate(rows, logprob_BT, update=update)
        is_rewarded_B = rows.advantage_B > 0
        foreign_B = self.share * found.value_B * is_rewarded_B
        figures = {"rewarded": is_rewarded_B.to(logprob_BT.dtype)}
        return replace(found, value_B=foreign_B.where(rows.is_foreign_B, found.value_B), figures=figures)


@dataclass(frozen=True)
class Resample(EveryProblem):
    """As often again where all agents' responses to a problem have one reward; how often that was is remembered."""

    max_rounds: int = setting(3, "rounds of sampling", at_least=1, at_most=100)

    @property
    def num_rounds(self) -> int:
        return self.max_rounds

    def plan(self, task: PlanTask, state: State) -> tuple[Sequence[SampleSpec], State]:
        if task.round == 0:
            return super().plan(task, state)
        differ = [problem for problem in task.problems if len(self.rewards_of(task, problem)) > 1]
        alike = [problem for problem in task.problems if problem not in differ]
        first = task.round * task.num_samples
        samples = range(first, first + task.num_samples)
        specs = [SampleSpec(problem, i, task.limits) for problem in alike for i in samples]
        return specs, {"again": state.get("again", 0) + len(alike)}

    @staticmethod
    def rewards_of(task: PlanTask, problem: Problem) -> set[float]:
        return {
            float(reward)
            for responses in task.verified.values()
            for problem_id, reward in zip(responses.problem_id, rewards(responses), strict=True)
            if problem_id == problem.id
        }


@dataclass(frozen=True)
class Brief(CapabilityEstimator):
    """HACPO's advantages of rewards that are less for longer responses."""

    penalty: float = setting(0.01, "taken away for each token", at_least=0, at_most=1)

    def shape(self, scored: ScoredStep) -> Mapping[str, NDArray[np.float64]]:
        return {
            agent: scored.raw_reward_R(agent) - self.penalty * responses.token_ids.lengths
            for agent, responses in scored.responses.items()
        }


class NonsenseShape(CapabilityEstimator):
    """Returns whatever a test puts here."""

    returned: Any = None

    def shape(self, scored: ScoredStep) -> Mapping[str, NDArray[np.float64]]:
        found = type(self).returned
        return found(scored) if callable(found) else found


class Nonsense(Estimator):
    """Returns whatever a test puts here."""

    returned: Any = None

    def estimate(self, scored: ScoredStep, state: State) -> tuple[Estimate, State]:
        found = type(self).returned
        return found(scored) if callable(found) else found


class NonsensePlan(SamplingPlan):
    """Returns whatever a test puts here."""

    returned: Any = None

    def plan(self, task: PlanTask, state: State) -> tuple[Sequence[SampleSpec], State]:
        found = type(self).returned
        return found(task) if callable(found) else found


class NonsenseBuilder(Builder):
    """Returns whatever a test puts here."""

    returned: Any = None

    def num_updates(self, *, num_rows: int, num_samples: int, num_sources: int) -> int:
        return 1

    def build(self, history: History, state: State) -> tuple[Sequence[Sequence[RowKey]], State]:
        found = type(self).returned
        return found(history) if callable(found) else found


class NonsenseObjective(SequenceClip):
    """Returns whatever a test puts here."""

    returned: Any = None
    weights: Any = None

    def surrogate(self, rows: LossRows, logprob_BT: Tensor, *, update: int) -> Surrogate:
        found = type(self).returned
        surrogate = super().surrogate(rows, logprob_BT, update=update)
        return found(surrogate) if callable(found) else found

    def row_weights(self, source_B: Tensor, num_tokens_B: Tensor, *, max_tokens: int) -> Tensor:
        found = type(self).weights
        weight_B = super().row_weights(source_B, num_tokens_B, max_tokens=max_tokens)
        return found(weight_B) if callable(found) else weight_B
