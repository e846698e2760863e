"""What an engine must offer: a sampler that answers prompts, a learner that scores and updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor
from transformers import PreTrainedModel

from hacpo_core.algo.methods import Method
from hacpo_core.batches import Minibatch
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


class Learner(Protocol):
    """Owns an agent's weights."""

    num_updates: int
    policy: PreTrainedModel
    """the current whole weights, after `refresh_policy`: for samplers and for saving"""

    def refresh_policy(self) -> None:
        """Bring `policy` up to the current weights; on all ranks."""

    def logprobs(self, requests: Sequence[ScoreRequest]) -> list[tuple[float, ...]]:
        """Log-probabilities (nats) of the response tokens under the current weights, in order."""

    def logprobs_of_each(self, requests: Sequence[ScoreRequest]) -> list[tuple[float, ...]]:
        """As `logprobs`, but every rank asks for its own; the same where there is one rank."""

    def update(
        self,
        minibatches: Sequence[Minibatch],
        method: Method,
        *,
        num_agents: int,
        max_response_tokens: int,
        measures_cosine: bool,
    ) -> UpdateOutcome:
        """One optimizer update per mini-batch, in order."""

    def offload(self, *, weights: bool = False) -> None:
        """Leave the device to others: optimizer state and masters, on request all weights, go to host memory."""

    def onload(self, *, optimizer: bool = True) -> None:
        """Bring the weights back, and the optimizer's part unless told otherwise; `update` does so by itself."""

    def digest(self) -> str:
        """SHA-256 (hex) of all weights, bit for bit."""

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """State of the optimizer (and fp32 master weights, where there are any) by name."""

    def load_optimizer_tensors(self, tensors: Mapping[str, Tensor], *, num_updates: int) -> None:
        """Inverse of `optimizer_tensors`; the schedule continues at `num_updates`."""

    def close(self) -> None:
        """Give back what the learner holds outside its own memory."""
