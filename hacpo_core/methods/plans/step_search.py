"""SAGE-RL's sampling: some responses of each group are found by a search over steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hacpo_core.config.fields import setting
from hacpo_core.methods.base import PlanTask, SampleSpec, State
from hacpo_core.methods.plans.every_problem import EveryProblem
from hacpo_core.records import StepSearch
from hacpo_core.responses import SEARCHED


@dataclass(frozen=True)
class PartlySearched(EveryProblem):
    """The usual number of responses; some are found by a search for a high mean log-probability of the policy.

    In each round every beam is continued by sampled steps, and the beams of the highest mean log-probability per token
    stay. A beam that closes its reasoning is complete, and its answer is decoded greedily. Such rows carry the tag
    `search`: they get an advantage and count in no statistic.

    Source: SAGE-RL (2602.08354); marks, limits and restarts: ours, see docs/decisions.md#searched-responses.
    """

    num_searched: int = setting(2, "responses of each group that a search finds", at_least=1, at_most=1e4)
    num_beams: int = setting(2, "beams that stay after each round", at_least=1, at_most=1e4)
    num_candidates: int = setting(
        4, "steps sampled behind each beam in a round; the paper: twice `num_beams`", at_least=1, at_most=1e4
    )
    step_tokens: int = setting(
        256, "most tokens of a step; one without an end until then ends there", unit="tokens", at_least=1, at_most=1e6
    )
    step_end: str = setting("\n\n", "text that ends a step; the paper: a blank line")
    closing_mark: str = setting(
        "</think>",
        "text that ends the reasoning of agents whose chat template has it; with others, and where it is empty, the "
        "first complete box does",
    )

    def problem_with(self, *, num_samples: int) -> str | None:
        """Something has to be sampled in the ordinary way, and a step has to end."""
        if not self.step_end:
            return "step_end: got '', expected the text that ends a step; set it"
        return self.too_few_ordinary("num_searched", self.num_searched, num_samples)

    def plan(self, task: PlanTask, state: State) -> tuple[Sequence[SampleSpec], State]:
        """The last ones of each problem are searched for."""
        search = StepSearch(
            num_beams=self.num_beams,
            num_candidates=self.num_candidates,
            step_tokens=self.step_tokens,
            step_end=self.step_end,
            closing_mark=self.closing_mark,
        )
        first = self.samples_per_problem(task.num_samples) - self.num_searched
        specs, after = super().plan(task, state)
        return [spec if spec.sample < first else replace(spec, tag=SEARCHED, search=search) for spec in specs], after
