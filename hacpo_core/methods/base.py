"""The seams at which a method is written: plan, estimate, build, objective.

    plan       which responses an agent samples, and how          once per agent and step
    estimate   advantage and weight of each row for each learner  once per step, all agents together
    build      which rows make up which mini-batch                once per learner and step
    objective  what an update maximises                           once per micro-batch

An implementation is a frozen dataclass whose fields are its parameters (`hacpo_core.config.fields.setting`), named
under `method.<seam>.name` by its name in `registry.py` or as `package.module:Class`. What it remembers between steps is
a *state*: a mapping of JSON values and numpy arrays. It is handed in as the step before committed it ({} at first),
handed out with the result and committed with it, so that a retry, a replay and a resume start from the same state.

Shapes: R response of one agent, B row of a mini-batch or micro-batch, T token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hacpo_core import algo
from hacpo_core.config.fields import setting, when
from hacpo_core.records import Problem, RowKey, SamplingLimits, StepSearch
from hacpo_core.responses import ORDINARY, Responses

if TYPE_CHECKING:  # torch, which plans and pages do without
    from torch import Tensor

    from hacpo_core.config import ExperimentConfig

State = Mapping[str, Any]


@dataclass(frozen=True)
class Seam(ABC):  # noqa: B024  each seam has an abstract method of its own
    """What all implementations have."""

    name: str = setting("", "name of a shipped one, or package.module:Class")

    @property
    def reads_partners(self) -> bool:
        """Whether it reads other agents' responses even where rollouts are not shared; a grid then trains jointly."""
        return True


def without_others(_: Any, config: ExperimentConfig) -> str | None:
    """Why a field that is about other agents' rows cannot take effect, or None."""
    if not config.method.shares_rollouts:
        return f"method {config.method.name} shares no rollouts"
    return "one agent has no partner to share with" if len(config.pair.agents) == 1 else None


# --- plan ---


@dataclass(frozen=True, slots=True)
class SampleSpec:
    """One response to sample: the `sample`-th of this agent to this problem in this step, within limits of its own.

    Responses with another tag than `ORDINARY` are left out of capability and of the statistics of groups. With `search`
    it is not sampled but searched for, together with the plan's others of the same problem, limits and search; its tag
    is `SEARCHED`, and its ratio is taken against the policy's own log-probabilities.
    """

    problem: Problem
    sample: int
    limits: SamplingLimits
    tag: str = ORDINARY
    search: StepSearch | None = None


@dataclass(frozen=True, slots=True)
class PlanTask:
    """What a plan works from.

    Attributes:
        step: 1-based.
        agent: who samples.
        problems: of the step.
        num_samples: `rollout.num_samples`.
        limits: as configured; the most that a spec may have.
        seed: of the experiment.
        round: of sampling in this step, from 0.
        verified: all agents' verified responses of the step's earlier rounds, by agent; empty in the first round.
        sources: agents whose rows this one trains on, itself first.
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
class SamplingPlan(Seam):
    """Which responses an agent samples in a step, and how."""

    @property
    def num_rounds(self) -> int:
        """How often a step asks the plan; in later rounds it sees what all agents' earlier ones were judged to be."""
        return 1

    @property
    def changes_prompts(self) -> bool:
        """Whether it may ask a problem in other words; then its responses are for the agent alone that was asked so."""
        return False

    def samples_per_problem(self, num_samples: int) -> int:
        """Responses to a problem, where `rollout.num_samples` asks for `num_samples`: for sums that are made ahead."""
        return num_samples

    def problem_with(self, *, num_samples: int) -> str | None:
        """What is wrong with the fields for `rollout.num_samples`: "field: got ..., expected ..."; None if nothing."""
        return None

    @abstractmethod
    def plan(self, task: PlanTask, state: State) -> tuple[Sequence[SampleSpec], State]:
        """The responses to sample, in any order; (problem, sample) must be different in all rounds of the step.

        The first round samples something; a later one may return nothing.
        """


# --- estimate ---


@dataclass(frozen=True, slots=True)
class ScoredStep:
    """All agents' verified responses of a step.

    Attributes:
        step: 1-based.
        problem_ids: of the step's problems, in order.
        responses: by agent, with verdicts.
        seed: of the experiment.
        max_response_tokens: `rollout.max_response_tokens`.
        shaped_R: what `Estimator.shape` made of the rewards, by agent.
    """

    step: int
    problem_ids: tuple[str, ...]
    responses: Mapping[str, Responses]
    seed: int
    max_response_tokens: int = 0
    shaped_R: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    @property
    def agents(self) -> tuple[str, ...]:
        """Names, in order."""
        return tuple(self.responses)

    def raw_reward_R(self, agent: str) -> NDArray[np.float64]:
        """Verified rewards, which capability, means and standard deviations read; nan where unscored."""
        verdicts = self.responses[agent].verdicts
        assert verdicts is not None, "a scored step is verified"
        return verdicts.raw_reward_R

    def reward_R(self, agent: str) -> NDArray[np.float64]:
        """Rewards that advantages are made from: shaped ones where there are any, else the raw ones."""
        return self.shaped_R[agent] if agent in self.shaped_R else self.raw_reward_R(agent)


@dataclass(frozen=True, slots=True, eq=False)
class Carried:
    """What one agent's responses carry for one learner: an advantage, and a weight that multiplies it."""

    advantage_R: NDArray[np.float64]
    weight_R: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """Outcome of the estimate.

    Attributes:
        carried: by learner and source. Unscored responses carry 0. A learner needs an entry of itself, and one of each
            agent whose rows its builder takes.
        figures: what is logged, by agent and name.
        run_figures: what is logged of the step as a whole.
    """

    carried: Mapping[str, Mapping[str, Carried]]
    figures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    run_figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Estimator(Seam):
    """Advantage and weight of each row for each learner."""

    def shape(self, scored: ScoredStep) -> Mapping[str, NDArray[np.float64]]:
        """Rewards that advantages are made from, by agent, such as raw ones less a penalty; nan where unscored.

        Agents that are left out keep their raw rewards. Both are stored, and `estimate` is given both.
        """
        return {}

    @property
    def has_teachers(self) -> bool:
        """Whether `teachers` may name any; then a step has phases that ask them."""
        return False

    def teachers(self, scored: ScoredStep, state: State) -> Mapping[str, str]:
        """By learner, the agent that scores its responses token by token; learners without a teacher are left out.

        Args:
            scored: the step, before rewards are shaped.
            state: as `estimate` is given it.
        """
        return {}

    def token_advantage(self, difference_N: NDArray[np.float64]) -> NDArray[np.float64]:
        """What is added to the advantages of single tokens.

        Args:
            difference_N: log-probability under the teacher less that under the learner's old policy, nats; where their
                tokenizers differ, per span of text that is whole tokens of both (`hacpo_core.data.tokens.alignment`);
                nan where the teacher was not asked.
        """
        return np.nan_to_num(difference_N)

    @abstractmethod
    def estimate(self, scored: ScoredStep, state: State) -> tuple[Estimate, State]:
        """From the verified responses of all agents."""


# --- build ---


@dataclass(frozen=True, slots=True)
class History:
    """The rows that a learner can train on.

    Attributes:
        step: the current one.
        problem_ids: of its problems, in order.
        sources: agents whose rows the learner may take, itself first.
        num_samples: `rollout.num_samples`.
        seed: of the experiment.
        responses: an agent's verified responses of a step, this one or an earlier one.
        estimate: what was estimated in that step.
        outcomes: what the learner's updates of an earlier step saw of their rows, as columns: the key (step, agent,
            problem_id, sample), entropy, stopped_share, ratio and more, see `hacpo_core.store.ledger.row_table`.
    """

    step: int
    problem_ids: tuple[str, ...]
    sources: tuple[str, ...]
    num_samples: int
    seed: int
    responses: Callable[[int, str], Responses]
    estimate: Callable[[int], Estimate]
    outcomes: Callable[[int], Mapping[str, NDArray[Any]]]

    @property
    def learner(self) -> str:
        """Whose mini-batches are built."""
        return self.sources[0]


@dataclass(frozen=True)
class Builder(Seam):
    """Which rows a learner trains on, and in which order. Unscored rows are left out and counted by the caller."""

    @property
    def takes_old_rows(self) -> bool:
        """Whether it may take rows of earlier steps; then the learner scores what it samples, to compare with later."""
        return True

    @property
    def drops_by_reward(self) -> bool:
        """Whether rewards alone may decide that rows are left out."""
        return False

    @property
    def mixes_sources(self) -> bool:
        """Whether a mini-batch may hold own and other agents' rows."""
        return True

    @abstractmethod
    def num_updates(self, *, num_rows: int, num_samples: int, num_sources: int) -> int:
        """Mini-batches of a step, for the learning rate's schedule and for sums that are made ahead.

        Args:
            num_rows: responses of all sources in a step, as the plan announces them.
            num_samples: `rollout.num_samples`.
            num_sources: agents whose rows a learner may take.
        """

    def problem_with(
        self, *, num_problems: int, num_samples: int, samples_per_problem: int, num_sources: int
    ) -> str | None:
        """What is wrong with the fields for steps of that size: "field: got ..., expected ..."; None where nothing is.

        Args:
            num_problems: of a step.
            num_samples: `rollout.num_samples`.
            samples_per_problem: responses of one agent to a problem, as the plan announces them.
            num_sources: agents whose rows a learner may take.
        """
        return None

    @abstractmethod
    def build(self, history: History, state: State) -> tuple[Sequence[Sequence[RowKey]], State]:
        """Rows of each mini-batch, in order; a row of an earlier step carries the advantage of that step."""


# --- objective ---


class RowKind(IntEnum):
    """How a row came to its learner."""

    OWN = 0
    """sampled by the learner in this step"""
    OLD = 1
    """sampled by the learner in an earlier step"""
    FOREIGN = 2
    """sampled by another agent"""


@dataclass(frozen=True, slots=True, eq=False)
class LossRows:
    """One micro-batch, with everything that an objective needs besides the current log-probabilities.

    Attributes:
        mask_BT: True on the tokens of the responses.
        kind_B: a `RowKind`.
        source_B: index of the agent that sampled the row.
        advantage_B: from the estimate.
        weight_B: from the estimate; 1 for own rows, unless the estimator says otherwise.
        old_mean_logprob_B: mean log-probability (nats per token) under the policy that sampled the row, on its tokens.
        old_logprob_BT: the same for each token, on own and old rows; 0 on foreign ones, whose tokens do not align.
        token_advantage_BT: what is added to the advantage of each token, see `Estimator.teachers`; None: nothing.
        correction_BT: weight of each token, see `Objective.correction`; 1 on foreign rows, None without a correction.
    """

    mask_BT: Tensor
    kind_B: Tensor
    source_B: Tensor
    advantage_B: Tensor
    weight_B: Tensor
    old_mean_logprob_B: Tensor
    old_logprob_BT: Tensor
    token_advantage_BT: Tensor | None = None
    correction_BT: Tensor | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for a tensor of another shape, which would be broadcast."""
        for name in (each.name for each in fields(self) if getattr(self, each.name) is not None):
            value, dims = getattr(self, name), 2 if name.endswith("_BT") else 1
            if value.shape != self.mask_BT.shape[:dims]:
                raise ValueError(f"{name}: got {tuple(value.shape)}, expected {tuple(self.mask_BT.shape[:dims])}")

    @property
    def weighted_advantage_B(self) -> Tensor:
        """Advantage times weight."""
        return self.advantage_B * self.weight_B

    @property
    def token_advantages_BT(self) -> Tensor:
        """The same for each token, with what a teacher adds."""
        advantage_BT = self.weighted_advantage_B[:, None].expand_as(self.old_logprob_BT)
        return advantage_BT if self.token_advantage_BT is None else advantage_BT + self.token_advantage_BT

    @property
    def is_foreign_B(self) -> Tensor:
        """Rows of other agents."""
        return self.kind_B == RowKind.FOREIGN


@dataclass(frozen=True, slots=True, eq=False)
class Surrogate:
    """What an objective says of each row.

    Attributes:
        value_B: to be maximised, with gradient; for a token-level objective the sum over the row's tokens.
        ratio_B: sequence ratio.
        stopped_share_B: share of the row whose gradient a bound took away, in [0, 1].
        floor_B, ceiling_B: bounds of the ratio.
    """

    value_B: Tensor
    ratio_B: Tensor
    stopped_share_B: Tensor
    floor_B: Tensor
    ceiling_B: Tensor


@dataclass(frozen=True)
class Objective(Seam):
    """What an update maximises.

    J = sum over rows of row_weight * (correction * value - kl_coef * KL to the reference),   KL not on foreign rows
    """

    kl_coef: float = setting(
        0.0,
        "weight of the KL to the frozen initial model, own rows; at 0 no reference is loaded",
        at_least=0,
        at_most=1e6,
    )
    aggregation: str = setting(
        "sum_of_means",
        "how rows of several sources are summed up",
        choices={"sum_of_means": "each source's mean (Eq. 53)", "mean_of_rows": "all rows' mean (official code)"},
        inert=without_others,
    )

    correction: str = setting(
        "none",
        "what is done about the difference between sampler and learner, own rows",
        choices={
            "none": "nothing",
            "truncate": "weight pi_learner / pi_sampler, at most correction_limit",
            "mask": "the same weight, 0 above correction_limit",
        },
        added_later=True,
    )
    correction_level: str = setting(
        "sequence",
        "what the weight is of",
        choices={"sequence": "a response, the product over its tokens", "token": "each token"},
        inert=when("method.objective.correction", "none"),
    )
    correction_limit: float = setting(
        3.0, "C, largest weight", above=0, at_most=1e6, inert=when("method.objective.correction", "none")
    )

    @property
    def weighs_tokens(self) -> bool:
        """Whether it reads what is said of single tokens: `token_advantage_BT`, and `correction_BT` of tokens."""
        return False

    @property
    def is_token_level(self) -> bool:
        """Whether `value_B` sums up tokens; such objectives take own rows alone, since others' tokens do not align."""
        return False

    @property
    def needs_token_ratios(self) -> bool:
        """Whether it compares single tokens with the policy that sampled them, which foreign rows do not have."""
        return self.is_token_level

    def row_weights(self, source_B: Tensor, num_tokens_B: Tensor, *, num_sources: int, max_tokens: int) -> Tensor:
        """Weight of each row of a whole mini-batch (float64), see `hacpo_core.algo.objectives.row_weights`."""
        return algo.objectives.row_weights(
            source_B,
            num_tokens_B,
            num_sources=num_sources,
            aggregation=self.aggregation,  # type: ignore[arg-type]
            max_tokens=max_tokens,
        )

    @abstractmethod
    def surrogate(self, rows: LossRows, logprob_BT: Tensor, *, update: int) -> Surrogate:
        """Value and bounds of each row of a micro-batch.

        Args:
            rows: the micro-batch.
            logprob_BT: log-probabilities (nats) under the learner's current policy, with gradient.
            update: m, updates that the learner has made in this step.
        """
