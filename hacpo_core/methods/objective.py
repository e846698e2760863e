"""The fourth part of a method: what an update maximises.

Shapes: R response of one agent, B row of a mini-batch or micro-batch, T token.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hacpo_core import algo
from hacpo_core.config.fields import setting, when
from hacpo_core.methods.base import MethodPart, State, why_no_partners

if TYPE_CHECKING:  # torch is slow to import, and plans and the dashboard do not need it
    from torch import Tensor


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
class Objective(MethodPart):
    """What an update maximises.

    J = sum over rows of row_weight * (correction * value - kl_coef * KL to the reference) + entropy_coef * H,
    no KL on foreign rows, H the mean entropy (nats) over the tokens of the mini-batch's own rows. Here and in the
    fields below, own rows include old ones.

    With `kl_aggregation: own_tokens`, the KL term is kl_coef * the mean over the tokens of the mini-batch's own rows.
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
        "weight of the mean entropy over the tokens of own rows, which is added to the objective",
        at_least=0,
        at_most=1e6,
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
        """Whether it uses per-token inputs: `teacher_advantage_BT`, and `correction_BT` at token level."""
        return False

    @property
    def is_token_level(self) -> bool:
        """Whether `value_B` is a sum over tokens. Such objectives take own rows only: others' tokens do not align."""
        return False

    @property
    def needs_token_ratios(self) -> bool:
        """Whether it needs an importance ratio for each token, which foreign rows do not have."""
        return self.is_token_level

    def log_centers(
        self, first_log_ratios: Callable[[], Mapping[str, NDArray[np.float64]]], state: State
    ) -> tuple[Mapping[str, float], State]:
        """What is subtracted from the log-ratio of each other agent's rows in this step, and the next state.

        Args:
            first_log_ratios: returns, by agent, the log-ratios (nats per token) of its rows before the learner's first
                update of the step; agents without rows are left out. All rows of the step's mini-batches count, each
                once. The learner scores them when it is called.
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
