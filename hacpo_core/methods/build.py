"""The third part of a method: which rows make up which mini-batch.

Shapes: B row of a mini-batch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hacpo_core.columns import join_rows, take_rows
from hacpo_core.config.fields import setting
from hacpo_core.methods.base import MethodPart, State
from hacpo_core.methods.estimate import Estimate
from hacpo_core.records import RowKey
from hacpo_core.responses import Responses

ROW_KEYS = ("step", "agent", "problem_id", "sample", "kind", "update", "advantage", "weight", "num_tokens")
ROW_FIGURES = (
    *("value", "ratio", "floor", "ceiling", "below_share", "above_share", "stopped_share"),
    *("kl", "correction", "entropy", "sampler_difference", "sampler_bias"),
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
        figures: by name, one number per row, before the row's update: `value`, its part of the objective; `ratio`, the
            sequence importance ratio; `floor` and `ceiling`, its bounds or those of each token's ratio; `below_share`,
            `above_share` and `stopped_share`, the shares of the row beyond them and without gradient: 0 or 1, or a
            share of tokens; `kl` and `correction`, see `objective_values`; `entropy`, the mean entropy of the learner's
            next-token distribution, nats; `sampler_difference`, the mean over tokens of |old log-probability -
            the sampler's|, nats, and `sampler_bias`, the same with its sign, 0 on foreign rows; and the objective's own
            `Surrogate.figures`.
    """

    key_B: tuple[RowKey, ...]
    kind_B: NDArray[np.int64]
    update_B: NDArray[np.int64]
    advantage_B: NDArray[np.float64]
    weight_B: NDArray[np.float64]
    num_tokens_B: NDArray[np.int64]
    figures: Mapping[str, NDArray[np.float64]]

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.key_B)

    @classmethod
    def none(cls) -> TrainedRows:
        """No rows."""
        whole, real = np.empty(0, np.int64), np.empty(0)
        return cls((), whole, whole, real, real, whole, dict.fromkeys(ROW_FIGURES, real))

    @classmethod
    def joined(cls, parts: Sequence[TrainedRows]) -> TrainedRows:
        """The rows of all parts, concatenated."""
        filled = [part for part in parts if len(part)] or [cls.none()]
        figures = {name: np.concatenate([part.figures[name] for part in filled]) for name in filled[0].figures}
        return replace(join_rows(filled), figures=figures)

    def take(self, rows: Sequence[int]) -> TrainedRows:
        """Some rows, in that order."""
        figures = {name: value_B[np.asarray(rows, np.int64)] for name, value_B in self.figures.items()}
        return replace(take_rows(self, rows), figures=figures)


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
class Builder(MethodPart):
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
