"""The four seams of a method, each replaceable: plan, estimate, build, objective.

    plan       which responses an agent samples, and how          once per agent and step
    estimate   advantage and weight of each row for each learner  once per step, all agents together
    build      which rows make up which mini-batch                once per learner and step
    objective  what an update maximises                           once per micro-batch

An implementation is a frozen dataclass whose fields are its parameters (`hacpo_core.config.fields.setting`). The field
`method.<seam>.name` selects it, by its name in `registry.py` or as `package.module:Class`. What it remembers between
steps is its *state*: a mapping of JSON values and numpy arrays. It receives the state that the previous step committed
({} in the first step) and returns the next state with its result. Both are committed together, so that a retry, a
replay and a resume start from the same state.

Shapes: R response of one agent, F reward function, B row of a mini-batch or micro-batch, T token, N token of one
agent's responses.
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

if TYPE_CHECKING:  # torch is slow to import, and plans and the dashboard do not need it
    from torch import Tensor

    from hacpo_core.config import ExperimentConfig

State = Mapping[str, Any]


@dataclass(frozen=True)
class Seam(ABC):  # noqa: B024  each seam has an abstract method of its own
    """What all implementations have in common."""

    name: str = setting("", "name of a shipped implementation, or package.module:Class")

    @property
    def reads_partners(self) -> bool:
        """Whether it reads other agents' responses even without shared rollouts; a grid then trains them jointly."""
        return True

    @property
    def needs_shared_rollouts(self) -> bool:
        """Whether it has no effect of its own unless learners train on other agents' rows."""
        return False


def why_no_partners(_: Any, config: ExperimentConfig) -> str | None:
    """Why a field about other agents' rows cannot take effect, or None if it can."""
    if not config.method.shares_rollouts:
        return f"method {config.method.name} shares no rollouts"
    return "one agent has no partner to share with" if len(config.pair.agents) == 1 else None


# --- plan ---


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
class SamplingPlan(Seam):
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


# --- estimate ---


@dataclass(frozen=True, slots=True)
class ScoredStep:
    """All agents' verified responses of a step.

    Attributes:
        step: 1-based.
        problem_ids: of the step's problems, in order.
        responses: by agent, with verdicts.
        seed: the experiment's.
        max_response_tokens: `rollout.max_response_tokens`.
        shaped_R: shaped rewards from `Estimator.shape`, by agent.
        reward_weights: of the reward functions, in the order of `Verdicts.parts_RF`; empty: equal weights.
    """

    step: int
    problem_ids: tuple[str, ...]
    responses: Mapping[str, Responses]
    seed: int
    max_response_tokens: int = 0
    shaped_R: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    reward_weights: tuple[float, ...] = ()

    @property
    def agents(self) -> tuple[str, ...]:
        """Names, in order."""
        return tuple(self.responses)

    def raw_reward_R(self, agent: str) -> NDArray[np.float64]:
        """Verified rewards, the basis of capabilities, means and standard deviations; nan where unscored."""
        verdicts = self.responses[agent].verdicts
        assert verdicts is not None, "a scored step is verified"
        return verdicts.raw_reward_R

    def reward_R(self, agent: str) -> NDArray[np.float64]:
        """Rewards that advantages are computed from: the shaped ones if the agent has any, else the raw ones."""
        return self.shaped_R[agent] if agent in self.shaped_R else self.raw_reward_R(agent)


@dataclass(frozen=True, slots=True, eq=False)
class Carried:
    """Advantages of one agent's responses for one learner, and weights that multiply them."""

    advantage_R: NDArray[np.float64]
    weight_R: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """Result of an estimator.

    Attributes:
        carried: advantages and weights by learner and source; 0 for unscored responses. A learner needs an entry for
            itself and one for each agent whose rows its builder takes.
        figures: metrics to log, by agent and name.
        run_figures: metrics to log for the step as a whole.
    """

    carried: Mapping[str, Mapping[str, Carried]]
    figures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    run_figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Estimator(Seam):
    """Advantage and weight of each row for each learner."""

    def shape(self, scored: ScoredStep) -> Mapping[str, NDArray[np.float64]]:
        """Rewards that advantages are computed from, by agent, such as raw rewards minus a penalty; nan where unscored.

        Agents that are left out keep their raw rewards. Both kinds are stored and passed to `estimate`.
        """
        return {}

    def why_unfit(self, *, num_samples: int) -> str | None:
        """Why the fields do not fit `rollout.num_samples`, as "field: got ..., expected ..."; None if they fit.

        Args:
            num_samples: responses of an agent to a problem, according to the plan.
        """
        return None

    @property
    def has_teachers(self) -> bool:
        """Whether `teachers` may name any. If so, a step has a teach phase per agent."""
        return False

    def teachers(self, scored: ScoredStep, state: State) -> Mapping[str, str]:
        """For each learner, the agent that scores the tokens of its responses; learners without one are left out.

        Args:
            scored: the step, before rewards are shaped.
            state: the same as for `estimate`.
        """
        return {}

    @property
    def max_teacher_prompt_tokens(self) -> int | None:
        """Longest prompt of `teacher_problems` that differs from the problem's own, in the teacher's tokens.

        Longer ones are replaced by the problem's own. A response of up to `rollout.max_response_tokens` follows, so
        plans and the models' positions count with both. None: teachers score behind the problems as they are.
        """
        return None

    def teacher_problems(
        self, scored: ScoredStep, learner: str, teacher: str, problems: Sequence[Problem]
    ) -> Sequence[Problem]:
        """The problems as a teacher reads them before it scores a learner's responses; any messages, the same ids.

        Args:
            scored: the step, before rewards are shaped.
            learner: whose responses are scored.
            teacher: the agent that scores them.
            problems: the problem of each of these responses, in their order.
        """
        return problems

    @property
    def extrapolation(self) -> float:
        """Factor lambda of the teacher's difference from the learner's initial model; 1: that model is not asked."""
        return 1.0

    def token_advantage(self, difference_N: NDArray[np.float64]) -> NDArray[np.float64]:
        """Term added to the advantage of each token.

        Args:
            difference_N: log-probability under the teacher minus that under the learner's old policy, nats, plus
                (`extrapolation` - 1) times the teacher's minus that under the learner's initial model. If the
                tokenizers differ, it is per span of text that consists of whole tokens of both
                (`hacpo_core.data.tokens.alignment`). nan where the teacher did not score the token.
        """
        return np.nan_to_num(difference_N)

    @abstractmethod
    def estimate(self, scored: ScoredStep, state: State) -> tuple[Estimate, State]:
        """Advantages and weights from the verified responses of all agents, and the next state."""


# --- build ---


@dataclass(frozen=True, slots=True)
class History:
    """The rows that a learner can train on.

    Attributes:
        step: the current one.
        problem_ids: of the current step, in order.
        sources: agents whose rows the learner may take, itself first.
        num_samples: `rollout.num_samples`.
        seed: the experiment's.
        responses: returns an agent's verified responses of the current or an earlier step.
        estimate: returns the estimate of the current or an earlier step.
        trained_rows: returns what the learner's updates of an earlier step measured.
    """

    step: int
    problem_ids: tuple[str, ...]
    sources: tuple[str, ...]
    num_samples: int
    seed: int
    responses: Callable[[int, str], Responses]
    estimate: Callable[[int], Estimate]
    trained_rows: Callable[[int], TrainedRows]

    @property
    def learner(self) -> str:
        """The agent whose mini-batches are built."""
        return self.sources[0]


@dataclass(frozen=True)
class Builder(Seam):
    """Which rows a learner trains on, and in which order.

    The caller removes and counts unscored rows, and those that the objective masks (`mask_truncated`). It trains
    `num_iterations` times on what is left.

    Source of iterations: GRPO (2402.03300), mu; TRL's `num_iterations`, verl's `ppo_epochs`.
    """

    num_iterations: int = setting(
        1,
        "times that a step's mini-batches are trained on, always in the same order, with the old log-probabilities of "
        "before the first update; m of stepwise bounds counts on",
        at_least=1,
        at_most=1000,
    )

    @property
    def takes_old_rows(self) -> bool:
        """Whether it may take rows of earlier steps. If so, the learner scores its samples, for later ratios."""
        return True

    @property
    def drops_by_reward(self) -> bool:
        """Whether it may leave out rows because of their rewards."""
        return False

    @property
    def mixes_sources(self) -> bool:
        """Whether a mini-batch may contain both own rows and other agents' rows."""
        return True

    @abstractmethod
    def num_updates(self, *, num_rows: int, num_samples: int, num_sources: int) -> int:
        """Mini-batches per step (each once), for the learning rate schedule and for sizing a run in advance.

        Args:
            num_rows: responses of all sources in a step, according to the plan's `samples_per_problem`.
            num_samples: `rollout.num_samples`.
            num_sources: agents whose rows a learner may take.
        """

    def why_unfit(
        self, *, num_problems: int, num_samples: int, samples_per_problem: int, num_sources: int
    ) -> str | None:
        """Why the fields do not fit steps of this size, as "field: got ..., expected ..."; None if they fit.

        Args:
            num_problems: per step.
            num_samples: `rollout.num_samples`.
            samples_per_problem: responses of one agent to a problem, according to the plan.
            num_sources: agents whose rows a learner may take.
        """
        return None

    @abstractmethod
    def build(self, history: History, state: State) -> tuple[Sequence[Sequence[RowKey]], State]:
        """Rows of each mini-batch, in order. A row of an earlier step keeps the advantage of that step."""


# --- objective ---


class RowKind(IntEnum):
    """Origin of a row."""

    OWN = 0
    """sampled by the learner in this step"""
    OLD = 1
    """sampled by the learner in an earlier step"""
    FOREIGN = 2
    """sampled by another agent"""


@dataclass(frozen=True, slots=True, eq=False)
class LossRows:
    """One micro-batch, with everything that an objective needs except the current log-probabilities.

    Attributes:
        mask_BT: True on the tokens of the responses.
        kind_B: a `RowKind`.
        source_B: index of the agent that sampled the row.
        advantage_B: from the estimate.
        weight_B: from the estimate; 1 for own rows, unless the estimator says otherwise.
        old_mean_logprob_B: mean log-probability (nats per token) under the policy that sampled the row, over the tokens
            of that policy.
        old_logprob_BT: log-probability of each token (nats) under that policy, on own and old rows; 0 on foreign rows,
            whose tokens do not align.
        teacher_advantage_BT: added to the advantage of each token, see `Estimator.token_advantage`; None: nothing.
        correction_BT: weight of each token, see `Objective.correction`; 1 on foreign rows, None without a correction.
        log_center_B: what `Objective.log_centers` gave for the row's source, nats per token; 0 on own rows, None if the
            objective gives nothing.
        trains_BT: True on the tokens whose terms count, see `Objective.top_entropy_share`; None: all of them.
    """

    mask_BT: Tensor
    kind_B: Tensor
    source_B: Tensor
    advantage_B: Tensor
    weight_B: Tensor
    old_mean_logprob_B: Tensor
    old_logprob_BT: Tensor
    teacher_advantage_BT: Tensor | None = None
    correction_BT: Tensor | None = None
    log_center_B: Tensor | None = None
    trains_BT: Tensor | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for a wrong shape, which would otherwise be broadcast silently."""
        for name in (column.name for column in fields(self) if getattr(self, column.name) is not None):
            value, dims = getattr(self, name), 2 if name.endswith("_BT") else 1
            if value.shape != self.mask_BT.shape[:dims]:
                raise ValueError(f"{name}: got {tuple(value.shape)}, expected {tuple(self.mask_BT.shape[:dims])}")

    @property
    def weighted_advantage_B(self) -> Tensor:
        """Advantage times weight."""
        return self.advantage_B * self.weight_B

    @property
    def advantage_BT(self) -> Tensor:
        """Advantage times weight for each token, plus the teacher's term."""
        advantage_BT = self.weighted_advantage_B[:, None].expand_as(self.old_logprob_BT)
        return advantage_BT if self.teacher_advantage_BT is None else advantage_BT + self.teacher_advantage_BT

    @property
    def is_foreign_B(self) -> Tensor:
        """Rows of other agents."""
        return self.kind_B == RowKind.FOREIGN


ROW_KEYS = ("step", "agent", "problem_id", "sample", "kind", "update", "advantage", "weight", "num_tokens")
ROW_FIGURES = (
    *("ratio", "floor", "ceiling", "below_share", "above_share", "stopped_share"),
    *("kl", "correction", "entropy"),
)
"""what is stored of every row that was passed through the model, beside an objective's own figures"""


@dataclass(frozen=True, slots=True, eq=False)
class TrainedRows:
    """What a learner's updates of one step measured: a value for each row that was passed through the model. B row.

    Attributes:
        key_B: of each row; with several iterations, a row occurs as often as it was trained on.
        kind_B, advantage_B, weight_B: as in its mini-batch.
        update_B: index m of the update.
        num_tokens_B: length of the response.
        figures: by name; `ROW_FIGURES`, which `RowOutcomes` explains, and the objective's own `Surrogate.figures`.
    """

    key_B: tuple[RowKey, ...]
    kind_B: NDArray[np.int64]
    update_B: NDArray[np.int64]
    advantage_B: NDArray[np.float64]
    weight_B: NDArray[np.float64]
    num_tokens_B: NDArray[np.int64]
    figures: Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True, slots=True, eq=False)
class Surrogate:
    """Value and clipping of each row.

    Attributes:
        value_B: to be maximised, with gradient; for a token-level objective the sum over the row's tokens.
        ratio_B: sequence importance ratio.
        stopped_share_B: share of the row whose gradient clipping set to 0, in [0, 1].
        floor_B, ceiling_B: bounds of the ratio, or of each token's ratio.
        below_share_B, above_share_B: share of the row's tokens whose ratio is beyond a bound; None: the bounds are of
            `ratio_B`.
        figures: further figures of the rows, by name. They are stored with each row, and their means over the learner's
            rows are the metrics `objective/<name>`.
    """

    value_B: Tensor
    ratio_B: Tensor
    stopped_share_B: Tensor
    floor_B: Tensor
    ceiling_B: Tensor
    below_share_B: Tensor | None = None
    above_share_B: Tensor | None = None
    figures: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def below_B(self) -> Tensor:
        """Share of the row that is below its lower bound: 0 or 1, or a share of tokens."""
        return self.ratio_B < self.floor_B if self.below_share_B is None else self.below_share_B

    @property
    def above_B(self) -> Tensor:
        """Share of the row that is above its upper bound."""
        return self.ratio_B > self.ceiling_B if self.above_share_B is None else self.above_share_B

    @property
    def columns(self) -> Mapping[str, Tensor]:
        """All that is stored of each row, by the names of the stored columns; each has shape B."""
        return {
            "ratio": self.ratio_B,
            "floor": self.floor_B,
            "ceiling": self.ceiling_B,
            "below_share": self.below_B,
            "above_share": self.above_B,
            "stopped_share": self.stopped_share_B,
            **self.figures,
        }


@dataclass(frozen=True)
class Objective(Seam):
    """What an update maximises.

    J = sum over rows of row_weight * (correction * value - kl_coef * KL to the reference) + entropy_coef * H,
    no KL on foreign rows, H the mean entropy (nats) over the tokens of the mini-batch's own rows

    With `kl_aggregation: own_tokens`, the KL term is kl_coef * the mean over the tokens of the mini-batch's own rows.
    With `top_entropy_share` below 1, only terms of own tokens with the highest entropy count, those of H too;
    denominators stay.
    """

    kl_coef: float = setting(
        0.0,
        "weight of the KL divergence from the frozen initial model, on own rows; at 0, no reference model is loaded",
        at_least=0,
        at_most=1e6,
    )
    aggregation: str = setting(
        "sum_of_means",
        "how rows of several sources are aggregated",
        choices={
            "sum_of_means": "sum of the means over each source's rows (Eq. 53)",
            "mean_of_rows": "mean over all rows (official code)",
        },
        inert=why_no_partners,
    )
    kl_aggregation: str = setting(
        "rows",
        "how the KL divergence is averaged over a mini-batch",
        choices={
            "rows": "each own row's mean with the weight of its surrogate",
            "own_tokens": "mean over all tokens of own rows (original code)",
        },
        inert=when("method.objective.kl_coef", 0),
    )

    entropy_coef: float = setting(
        0.0,
        "weight of the mean entropy over the tokens of own rows, which is added to the objective; with entropy_target, "
        "the weight that is adapted first (an agent's first update, before which nothing is measured, has no bonus)",
        at_least=0,
        at_most=1e6,
    )
    entropy_target: float | None = setting(
        None,
        "entropy to hold: the weight rises by entropy_step after an update whose entropy is at most this, falls after "
        "any other, and is 0 while the entropy is above it; null: a constant weight",
        unit="nats",
        at_least=0,
        at_most=100,
    )
    entropy_step: float = setting(
        0.005,
        "change of the entropy bonus's weight after an update",
        at_least=0,
        at_most=1e6,
        inert=when("method.objective.entropy_target", None),
    )
    max_entropy_coef: float = setting(
        1.0,
        "largest weight of the entropy bonus",
        at_least=0,
        at_most=1e6,
        inert=when("method.objective.entropy_target", None),
    )
    top_entropy_share: float = setting(
        1.0,
        "share of a mini-batch's own tokens that train: those with the highest entropy; 1: all. It needs one more "
        "forward pass per update",
        above=0,
        at_most=1,
        inert=lambda objective, _: None if objective.weighs_tokens else f"{objective.name} has no terms per token",
    )

    mask_truncated: str = setting(
        "none",
        "which rows that were cut at a token limit, by the sampler or in the learner's tokens, leave the loss and its "
        "denominators",
        choices={
            "none": "no row",
            "all": "every cut row (TRL's mask_truncated_completions, DAPO's overlong filtering)",
            "positive": "cut rows with a positive advantage, so that nothing rewards an answer without its end",
        },
    )

    correction: str = setting(
        "none",
        "importance weights on own rows that correct for the difference between sampler and learner",
        choices={
            "none": "no correction",
            "truncate": "weight pi_learner / pi_sampler, at most correction_limit",
            "mask": "weight pi_learner / pi_sampler, but 0 above correction_limit",
        },
    )
    correction_level: str = setting(
        "sequence",
        "what a correction weight applies to",
        choices={"sequence": "a whole response: the product over its tokens", "token": "each token"},
        inert=when("method.objective.correction", "none"),
    )
    correction_limit: float = setting(
        3.0, "C, largest correction weight", above=0, at_most=1e6, inert=when("method.objective.correction", "none")
    )

    @property
    def weighs_tokens(self) -> bool:
        """Whether it uses per-token inputs: `teacher_advantage_BT`, `trains_BT`, and `correction_BT` at token level."""
        return False

    @property
    def selects_tokens(self) -> bool:
        """Whether only the tokens with the highest entropy train."""
        return self.weighs_tokens and self.top_entropy_share < 1

    @property
    def has_entropy_bonus(self) -> bool:
        """Whether any update may add the entropy of own rows, so that all of them are passed through the model."""
        return self.entropy_coef > 0 or self.entropy_target is not None

    @property
    def is_token_level(self) -> bool:
        """Whether `value_B` is a sum over tokens. Such objectives take own rows only: others' tokens do not align."""
        return False

    @property
    def needs_token_ratios(self) -> bool:
        """Whether it needs an importance ratio for each token, which foreign rows do not have."""
        return self.is_token_level

    @property
    def reads_first_ratios(self) -> bool:
        """Whether `log_centers` is called. If so, the learner scores the other agents' rows before its first update."""
        return False

    def log_centers(self, first: Mapping[str, NDArray[np.float64]], state: State) -> tuple[Mapping[str, float], State]:
        """What is subtracted from the log-ratio of each other agent's rows in this step, and the next state.

        Args:
            first: by agent, the log-ratios (nats per token) of its rows before the learner's first update of the step;
                agents without rows are left out. All rows of the step's mini-batches count, each once, also those that
                `engine.skip_zero_advantage` leaves out of the passes.
            state: of the previous step, {} in the first.

        Returns:
            log-ratio by agent, nats per token; `surrogate` gets it as `LossRows.log_center_B`.
        """
        return {}, state

    @property
    def own_clip_width(self) -> float | None:
        """Distance from 1 to the nearer bound of own sequence ratios; None if they have no bounds."""
        return None

    def groups(self, source_B: Tensor) -> Tensor:
        """Number of the group that each row's mean is over, according to `aggregation`."""
        return source_B if self.aggregation == "sum_of_means" else source_B.new_zeros(source_B.shape)

    def row_weights(self, source_B: Tensor, num_tokens_B: Tensor, *, max_tokens: int) -> Tensor:
        """Weight of each row of a whole mini-batch.

        Args:
            source_B: index of the agent that sampled the row.
            num_tokens_B: response tokens of the row, >= 1.
            max_tokens: `rollout.max_response_tokens`.

        Returns:
            weight_B, float64.
        """
        return algo.objectives.sequence_weights(self.groups(source_B))

    def masked_rows(self, is_cut_R: NDArray[np.bool_], advantage_R: NDArray[np.float64]) -> NDArray[np.bool_]:
        """True for rows that leave the loss and its denominators, see `mask_truncated`.

        Args:
            is_cut_R: True where the row's text has no end.
            advantage_R: advantage times weight, for this learner.

        Source: DAPO (2503.14476), overlong filtering; TRL (all). Ours: positive.
        """
        if self.mask_truncated == "none":
            return np.zeros(len(is_cut_R), bool)
        return is_cut_R if self.mask_truncated == "all" else is_cut_R & (advantage_R > 0)

    def correction_weights(self, learner_logprob_BT: Tensor, sampler_logprob_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """Weight of each token that corrects for the difference between sampler and learner; 0 outside the mask."""
        of_tokens = self.correction_level == "token"
        ratio = algo.correction.token_corrections if of_tokens else algo.correction.sequence_corrections
        bounded = algo.correction.truncated if self.correction == "truncate" else algo.correction.masked
        return bounded(ratio(learner_logprob_BT, sampler_logprob_BT, mask_BT), self.correction_limit) * mask_BT

    @abstractmethod
    def surrogate(self, rows: LossRows, logprob_BT: Tensor, *, update: int) -> Surrogate:
        """Value and bounds of each row of a micro-batch.

        Args:
            rows: the micro-batch.
            logprob_BT: log-probabilities (nats) under the learner's current policy, with gradient.
            update: m, number of updates that the learner has already made in this step.
        """
