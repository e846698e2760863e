"""The first part of a method: which responses an agent samples in a step, and how."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hacpo_core.methods.base import MethodPart, State
from hacpo_core.records import Problem, SamplingLimits, StepSearch
from hacpo_core.responses import ORDINARY, Responses


@dataclass(frozen=True, slots=True)
class SampleSpec:
    """One response to sample: number `sample` of this agent for this problem in this step, with limits of its own.

    Responses whose tag is not `ORDINARY` do not count in capabilities and group statistics. With `search`, the response
    is searched for instead of sampled, together with the plan's other specs of the same problem, limits and search. Its
    tag is `SEARCHED`, and its importance ratio uses the learner's own log-probabilities as the old ones.
    """

    problem: Problem
    sample: int
    limits: SamplingLimits
    tag: str = ORDINARY
    search: StepSearch | None = None


@dataclass(frozen=True, slots=True)
class PlanTask:
    """Input of a plan.

    Attributes:
        step: 1-based.
        agent: the one that samples.
        problems: the step's.
        num_samples: `rollout.num_samples`.
        limits: as configured; a spec may have a smaller `max_tokens`.
        seed: the experiment's.
        round: of sampling in this step, from 0.
        verified: all agents' verified responses of the step's earlier rounds, by agent; empty in the first round.
        sources: agents whose rows this agent trains on, itself first.
    """

    step: int
    agent: str
    problems: Sequence[Problem]
    num_samples: int
    limits: SamplingLimits
    seed: int
    round: int = 0
    verified: Mapping[str, Responses] = field(default_factory=dict)
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class SamplingPlan(MethodPart):
    """Which responses an agent samples in a step, and how."""

    @property
    def num_rounds(self) -> int:
        """How often a step calls the plan. Later rounds see all agents' verified responses of the earlier ones."""
        return 1

    @property
    def changes_prompts(self) -> bool:
        """Whether it may reword prompts. If so, no other agent trains on its responses."""
        return False

    def samples_per_problem(self, num_samples: int) -> int:
        """Responses to a problem if `rollout.num_samples` is `num_samples`; used to size a run in advance."""
        return num_samples

    def why_unfit(self, *, num_samples: int) -> str | None:
        """Why the fields do not fit `rollout.num_samples`, as "field: got ..., expected ..."; None if they fit."""
        return None

    @abstractmethod
    def plan(self, task: PlanTask, state: State) -> tuple[Sequence[SampleSpec], State]:
        """The responses to sample, in any order.

        Each (problem, sample) must be unique over all rounds of the step. Only later rounds may return nothing.
        """
