"""What samplers offer, and what travels to and from samplers and learners (`hacpo_core.engines.learner`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hacpo_core.records import FinishReason


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One response to sample: the prompt and the seed that alone decides its randomness."""

    prompt_ids: tuple[int, ...]
    seed: int


@dataclass(frozen=True, slots=True)
class SampledResponse:
    """Sampled ids (the EOS included when `finish_reason` is "stop") and their log-probabilities in nats."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class SamplingLimits:
    """temperature > 0 and top_p in (0, 1]; `is_greedy` takes the likeliest token and ignores both."""

    temperature: float
    top_p: float
    max_tokens: int
    is_greedy: bool = False


class Sampler(Protocol):
    """Draws responses from an agent's current policy."""

    name: str

    def sample(self, requests: Sequence[SampleRequest], limits: SamplingLimits) -> list[SampledResponse]:
        """One response per request, in order; a response depends on its own request alone, not on its neighbours."""

    def synchronise(self, version: int, check: Callable[[], None]) -> None:
        """Take over the learner's weights, known as `version`, unless they are held already; then `check` them."""

    def rest(self) -> None:
        """Give device memory back until `synchronise` is called again."""

    def close(self) -> None:
        """End whatever was started for sampling."""


@dataclass(frozen=True, slots=True)
class RowOutcome:
    """What an update saw of one row: `ratio` before the row's update, and whether a bound took its gradient away.

    `update` is m. `stopped_share` is 0 or 1 on the sequence level, a share of tokens on the token level.
    """

    source: int
    problem: int
    index: int
    is_own: bool
    update: int
    advantage: float
    cross_weight: float
    ratio: float
    floor: float
    ceiling: float
    stopped_share: float
    kl: float
    entropy: float
    num_tokens: int


@dataclass(frozen=True, slots=True)
class MinibatchOutcome:
    """One update: objective values, gradient norm before clipping, learning rate, rows and tokens.

    `num_skipped` counts rows whose gradient is zero because they carry no advantage. `gradient_cosine` is between the
    gradients of J_homo and J_hete, None where it was not measured.
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
    """All updates of one learner in one step."""

    minibatches: tuple[MinibatchOutcome, ...]
    rows: tuple[RowOutcome, ...]


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """A response whose tokens' log-probabilities are wanted."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
