"""The default plan: the same number of responses to every problem."""

from collections.abc import Sequence
from dataclasses import dataclass

from hacpo_core.config.fields import setting
from hacpo_core.methods.base import State
from hacpo_core.methods.plan import PlanTask, SampleSpec, SamplingPlan


@dataclass(frozen=True)
class EveryProblem(SamplingPlan):
    """G responses to each problem, or a multiple of it.

    Source: HACPO, Algorithm 1, line 10; GSPO x 2 samples twice as many.
    """

    factor: int = setting(1, "responses to a problem as a multiple of rollout.num_samples", at_least=1, at_most=1e4)

    reads_partners = False

    def samples_per_problem(self, num_samples: int) -> int:
        """`num_samples` times `factor`."""
        return num_samples * self.factor

    def why_too_few_ordinary(self, field: str, number: int, num_samples: int) -> str | None:
        """Error text if `number` tagged responses would leave no ordinary response in a group, else None."""
        size = self.samples_per_problem(num_samples)
        if number < size:
            return None
        return (
            f"{field}: got {number} of {size} responses to a problem, expected fewer, since means and standard "
            "deviations are computed from the others; lower it"
        )

    def plan(self, task: PlanTask, state: State) -> tuple[Sequence[SampleSpec], State]:
        """The same number of specs for every problem, problem by problem."""
        samples = range(self.samples_per_problem(task.num_samples))
        return [SampleSpec(problem, i, task.limits) for problem in task.problems for i in samples], state
