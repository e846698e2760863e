"""The interface of samplers, and the inputs and results of samplers and learners (`hacpo_core.engines.learner`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hacpo_core.columns import Positions, Ragged
from hacpo_core.methods.base import State
from hacpo_core.records import SamplingLimits


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One response to sample: its prompt and the seed of its random draws.

    `max_tokens` is its own limit, in addition to that of the call.
    """

    prompt_ids: tuple[int, ...]
    seed: int
    max_tokens: int | None = None

    def token_limit(self, limits: SamplingLimits) -> int:
        """The smaller of both limits."""
        return limits.max_tokens if self.max_tokens is None else min(self.max_tokens, limits.max_tokens)


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """Sampled responses, in the order of the requests. R response.

    Attributes:
        token_ids: int32, including the final EOS of finished responses.
        logprobs: float32, nats, of these tokens under the policy.
        is_cut_R: whether the response was cut at the limit.
        num_sampled_R: int64, tokens that were sampled for the response; None if it contains all of them.
    """

    token_ids: Ragged
    logprobs: Ragged
    is_cut_R: NDArray[np.bool_]
    num_sampled_R: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, responses: Sequence[tuple[Any, Any, bool]]) -> Sampled:
        """From (token ids, log-probabilities, whether it was cut) of each response."""
        token_ids, logprobs, is_cut = zip(*responses, strict=True) if responses else ((), (), ())
        return cls(Ragged.of(token_ids, np.int32), Ragged.of(logprobs, np.float32), np.array(is_cut, dtype=bool))

    @classmethod
    def merged(cls, parts: Sequence[Sampled], rows: Sequence[Sequence[int]]) -> Sampled:
        """Merge the results of at least one call; `rows` are the positions of each part's responses in the result."""
        places = np.concatenate([np.asarray(each, np.int64) for each in rows])
        if len(parts) == 1 and (np.diff(places) > 0).all():
            return parts[0]
        back = np.argsort(places)
        counts = [part.token_ids.lengths if part.num_sampled_R is None else part.num_sampled_R for part in parts]
        return cls(
            Ragged.joined([part.token_ids for part in parts]).take(back),
            Ragged.joined([part.logprobs for part in parts]).take(back),
            np.concatenate([part.is_cut_R for part in parts])[back],
            None if all(part.num_sampled_R is None for part in parts) else np.concatenate(counts)[back],
        )


class Sampler(Protocol):
    """Draws responses from an agent's current policy."""

    name: str

    def sample(
        self, requests: Sequence[SampleRequest], limits: SamplingLimits, *, stop_ids: Collection[int] = ()
    ) -> Sampled:
        """One response per request, in order. A response depends only on its own request, not on the others.

        Args:
            requests: the responses to sample.
            limits: for all requests.
            stop_ids: tokens that end a response, in addition to the EOS.
        """

    def synchronise(self, version: int, check: Callable[[], None]) -> None:
        """Load the learner's weights unless `version` is already loaded; then call `check`."""

    def rest(self) -> None:
        """Release device memory until the next call of `synchronise`."""

    def close(self) -> None:
        """Stop everything that was started for sampling."""


@dataclass(frozen=True, slots=True, eq=False)
class RowOutcomes:
    """Measurements of an update's rows, as columns, in the order of its passes. B row.

    Attributes:
        row_B: position of the row in its mini-batch.
        update_B: index m of that mini-batch.
        ratio_B: sequence importance ratio before the row's update, as `Surrogate.ratio_B`.
        floor_B, ceiling_B: bounds, of the ratio or of each token's ratio.
        below_B, above_B: share of the row beyond these bounds: 0 or 1, or a share of tokens.
        stopped_share_B: share of the row whose gradient clipping set to 0: 0 or 1, or a share of tokens.
        kl_B: mean KL divergence from the reference, nats.
        correction_B: mean correction weight of its tokens, see `Objective.correction`; 1 without correction.
        entropy_B: mean entropy of the learner's next-token distribution, nats.
    """

    row_B: NDArray[np.int64]
    update_B: NDArray[np.int64]
    ratio_B: NDArray[np.float64]
    floor_B: NDArray[np.float64]
    ceiling_B: NDArray[np.float64]
    below_B: NDArray[np.float64]
    above_B: NDArray[np.float64]
    stopped_share_B: NDArray[np.float64]
    kl_B: NDArray[np.float64]
    correction_B: NDArray[np.float64]
    entropy_B: NDArray[np.float64]

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.row_B)

    @classmethod
    def none(cls) -> RowOutcomes:
        """No rows."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int64), *(np.empty(0) for _ in range(9)))

    @classmethod
    def joined(cls, parts: Sequence[RowOutcomes]) -> RowOutcomes:
        """The rows of all parts (at least one), concatenated."""
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)))

    def take(self, rows: Positions) -> RowOutcomes:
        """Some rows, in that order."""
        return RowOutcomes(*(getattr(self, field.name)[rows] for field in fields(self)))


@dataclass(frozen=True, slots=True)
class MinibatchOutcome:
    """One update: objective values, gradient norm before clipping, learning rate, rows and tokens.

    In `cross_objective`, rows whose gradient clipping set to 0 count as 0. `num_skipped` counts rows left out of the
    passes because their gradient is 0. `gradient_cosine` is the cosine between the gradients of J_homo and J_hete; None
    if it was not measured.
    """

    update: int
    own_objective: float
    cross_objective: float
    grad_norm: float
    learning_rate: float
    num_rows: int
    num_skipped: int
    num_trained_tokens: int
    gradient_cosine: float | None


@dataclass(frozen=True, slots=True)
class UpdateOutcome:
    """All updates of one learner in one step.

    `log_centers` and `objective_state` are what the objective's `log_centers` returned: by agent, and its next state.
    """

    minibatches: tuple[MinibatchOutcome, ...]
    rows: RowOutcomes
    log_centers: Mapping[str, float]
    objective_state: State
