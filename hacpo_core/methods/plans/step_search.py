"""SAGE-RL's sampling: some responses of each group come from a beam search over reasoning steps."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hacpo_core.config.fields import setting
from hacpo_core.methods.base import State
from hacpo_core.methods.plan import PlanTask, SampleSpec
from hacpo_core.methods.plans.every_problem import EveryProblem
from hacpo_core.records import StepSearch
from hacpo_core.responses import SEARCHED


@dataclass(frozen=True)
class PartlySearched(EveryProblem):
    """The usual number of responses; some come from a beam search for a high mean log-probability under the policy.

    In each round, several next steps are sampled for every beam, and the beams with the highest mean log-probability
    per token are kept. When a beam's reasoning ends, its answer is decoded greedily. Such rows have the tag `search`.
    They get an advantage but do not count in group statistics.

    Source: SAGE-RL (2602.08354); marks, limits and restarts are ours, see docs/decisions.md#searched-responses.
    """

    num_searched: int = setting(2, "searched responses in each group", at_least=1, at_most=1e4)
    num_beams: int = setting(2, "beams kept after each round", at_least=1, at_most=1e4)
    num_candidates: int = setting(
        4, "next steps sampled for each beam in a round; the paper: twice `num_beams`", at_least=1, at_most=1e4
    )
    step_tokens: int = setting(256, "longest step; longer ones are cut", unit="tokens", at_least=1, at_most=1e6)
    step_end: str = setting("\n\n", "text that ends a step; the paper: a blank line")
    closing_mark: str = setting(
        "</think>",
        "text that ends the reasoning, if the agent's chat template contains it; otherwise, or if empty, the first "
        "complete \\boxed{} ends it",
    )

    def why_unfit(self, *, num_samples: int) -> str | None:
        """At least one response per group must be sampled, and `step_end` must not be empty."""
        if not self.step_end:
            return "step_end: got '', expected the text that ends a step; set it"
        return self.why_too_few_ordinary("num_searched", self.num_searched, num_samples)

    def plan(self, task: PlanTask, state: State) -> tuple[Sequence[SampleSpec], State]:
        """The last `num_searched` responses of each problem are searched for."""
        search = StepSearch(
            num_beams=self.num_beams,
            num_candidates=self.num_candidates,
            step_tokens=self.step_tokens,
            step_end=self.step_end,
            closing_mark=self.closing_mark,
        )
        first = self.samples_per_problem(task.num_samples) - self.num_searched
        specs, next_state = super().plan(task, state)
        tagged_specs = [spec if spec.sample < first else replace(spec, tag=SEARCHED, search=search) for spec in specs]
        return tagged_specs, next_state
