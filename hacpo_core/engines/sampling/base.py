"""The interface of samplers, and their inputs and results.

Shapes: R response.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hacpo_core.columns import Ragged
from hacpo_core.records import SamplingLimits, max_figures


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One response to sample: its prompt and the seed of its random draws.

    `max_tokens` is its own limit, in addition to that of the call. `limits` are its own, in place of those of the call,
    for samplers that mix limits.
    """

    prompt_ids: tuple[int, ...]
    seed: int
    max_tokens: int | None = None
    limits: SamplingLimits | None = None

    def token_limit(self, limits: SamplingLimits) -> int:
        """The smaller of both limits."""
        limits = self.limits or limits
        return limits.max_tokens if self.max_tokens is None else min(self.max_tokens, limits.max_tokens)


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """Sampled responses, in the order of the requests. R response.

    Attributes:
        token_ids: int32, including the final EOS of finished responses.
        logprobs: float32, nats, of these tokens under the policy.
        is_cut_R: whether the response was cut at the limit.
        num_sampled_R: int64, tokens that were sampled for the response; None if it contains all of them.
        figures: what the sampler measured, by metric.
    """

    token_ids: Ragged
    logprobs: Ragged
    is_cut_R: NDArray[np.bool_]
    num_sampled_R: NDArray[np.int64] | None = None
    figures: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, responses: Sequence[tuple[Any, Any, bool]]) -> Sampled:
        """From (token ids, log-probabilities, whether it was cut) of each response."""
        token_ids, logprobs, is_cut = zip(*responses, strict=True) if responses else ((), (), ())
        return cls(Ragged.of(token_ids, np.int32), Ragged.of(logprobs, np.float32), np.array(is_cut, dtype=bool))

    @classmethod
    def merged(cls, parts: Sequence[Sampled], rows: Sequence[Sequence[int]]) -> Sampled:
        """Merge the results of at least one call; `rows` are the positions of each part's responses in the result."""
        places = np.concatenate([np.asarray(positions, np.int64) for positions in rows])
        if len(parts) == 1 and (np.diff(places) > 0).all():
            return parts[0]
        order = np.argsort(places)
        counts = [part.token_ids.lengths if part.num_sampled_R is None else part.num_sampled_R for part in parts]
        return cls(
            Ragged.joined([part.token_ids for part in parts]).take(order),
            Ragged.joined([part.logprobs for part in parts]).take(order),
            np.concatenate([part.is_cut_R for part in parts])[order],
            None if all(part.num_sampled_R is None for part in parts) else np.concatenate(counts)[order],
            max_figures([part.figures for part in parts]),
        )


class Sampler(Protocol):
    """Draws responses from an agent's current policy."""

    name: str
    mixes_limits: bool
    """whether the requests of one call may have limits of their own"""

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
