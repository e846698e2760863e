"""DAPO's dynamic sampling: problems whose rewards are all equal are sampled again."""

from collections.abc import Sequence
from dataclasses import dataclass

from hacpo_core.config.fields import setting
from hacpo_core.methods.base import State
from hacpo_core.methods.plan import PlanTask, SampleSpec
from hacpo_core.methods.plans.every_problem import EveryProblem


@dataclass(frozen=True)
class DynamicSampling(EveryProblem):
    """Each later round samples another group of responses for every problem whose rewards are all equal so far.

    Equality is decided over the responses of all agents that the learner trains on, so that partners that share
    rollouts resample the same problems. DAPO draws new problems instead; here a step keeps its problems, because
    partners must answer the same ones.

    Source: DAPO (2503.14476), section 3.2; the joint decision is ours, see docs/decisions.md#dynamic-sampling.
    """

    max_rounds: int = setting(3, "most rounds of sampling per step, the first one included", at_least=1, at_most=100)

    @property
    def num_rounds(self) -> int:
        """The largest number of rounds."""
        return self.max_rounds

    def plan(self, task: PlanTask, state: State) -> tuple[Sequence[SampleSpec], State]:
        """All problems in the first round, then those whose rewards are all equal so far."""
        if task.round == 0:
            return super().plan(task, state)
        rewards: dict[str, set[float]] = {}
        for agent in task.sources:
            for problem_id, reward in task.verified[agent].ordinary_rewards():
                rewards.setdefault(problem_id, set()).add(reward)
        size = self.samples_per_problem(task.num_samples)
        samples = range(task.round * size, (task.round + 1) * size)
        equal = [problem for problem in task.problems if len(rewards.get(problem.id, ())) < 2]
        return [SampleSpec(problem, i, task.limits) for problem in equal for i in samples], state
