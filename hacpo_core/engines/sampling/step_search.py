"""Beam search for responses, step by step, with any sampler.

    beams ─next steps sampled for each─▶ candidates ─keep the best by mean log-probability─▶ beams ─▶ ...
                                                              └─reasoning ends─▶ greedy answer ─▶ response

A step is sampled as an ordinary continuation of prompt and beam, and cut where the step ends. All searches advance
together, so that a round takes one call of the sampler.

Source: SAGE-RL (2602.08354), whose steps end at a blank line. Differences: docs/decisions.md#searched-responses.

Shapes: R response.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hacpo_core.data.tokens.retokenize import strip_eos
from hacpo_core.data.tokens.steps import StepReader
from hacpo_core.engines.sampling.base import Sampled, Sampler, SampleRequest
from hacpo_core.errors import EngineError
from hacpo_core.records import SamplingLimits, StepSearch
from hacpo_core.seeds import derive_seed


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """One search.

    Attributes:
        prompt_ids: of the problem.
        seed: of all its random draws.
        num_responses: number of responses to find.
        limits: of each response.
        search: its settings.
        reader: finds steps in the agent's tokens.
    """

    prompt_ids: tuple[int, ...]
    seed: int
    num_responses: int
    limits: SamplingLimits
    search: StepSearch
    reader: StepReader


@dataclass(frozen=True, slots=True)
class Beam:
    """An unfinished response.

    `end` is why no further step follows: the end of the reasoning, EOS or the token limit. `logprob` is the sum over
    its tokens, in nats.
    """

    token_ids: tuple[int, ...] = ()
    text: str = ""
    logprob: float = 0.0
    end: Literal["closed", "eos", "limit"] | None = None

    @property
    def mean_logprob(self) -> float:
        """Mean log-probability per token (nats), by which beams are ranked."""
        return self.logprob / len(self.token_ids)


@dataclass(frozen=True, slots=True)
class _BeamRequest:
    """A request, with the limits and stop ids that the sampler takes per call."""

    request: SampleRequest
    limits: SamplingLimits
    stop_ids: frozenset[int] = frozenset()


class _Search:
    """The state of one search."""

    def __init__(self, request: SearchRequest, eos_ids: Collection[int]) -> None:
        self.request, self._eos_ids = request, eos_ids
        self.num_sampled = 0
        self._open_beams = [Beam()]
        self._ended_beams: list[Beam] = []
        self._round = 0

    @property
    def chosen_beams(self) -> list[Beam]:
        """The beams that ended first; of those that ended in the same round, the best."""
        return self._ended_beams[: self.request.num_responses]

    @property
    def is_done(self) -> bool:
        """Whether enough beams have ended."""
        return len(self.chosen_beams) == self.request.num_responses

    def candidates(self) -> list[_BeamRequest]:
        """The round's requests, beam by beam."""
        request, search = self.request, self.request.search
        limits = replace(request.limits, max_tokens=min(search.step_tokens, request.limits.max_tokens))
        return [
            _BeamRequest(
                SampleRequest(
                    request.prompt_ids + beam.token_ids,
                    derive_seed(request.seed, "step", self._round, place, candidate),
                    max_tokens=self._room(beam),
                ),
                limits,
                request.reader.stop_ids,
            )
            for place, beam in enumerate(self._open_beams)
            for candidate in range(search.num_candidates)
        ]

    def advance(self, sampled: Sequence[tuple[NDArray[np.int32], NDArray[np.float32]]]) -> None:
        """Keep the best of the round's candidates. If all of these have ended, start again from an empty beam.

        Equal candidates count once. A beam that has already ended counts again only if there is no other candidate.
        """
        search = self.request.search
        candidates: dict[tuple[int, ...], Beam] = {}
        for number, (token_ids, logprobs) in enumerate(sampled):
            self.num_sampled += len(token_ids)
            beam = self._extended(self._open_beams[number // search.num_candidates], token_ids, logprobs)
            candidates.setdefault(beam.token_ids, beam)
        ended_ids = {beam.token_ids for beam in self._ended_beams}
        new_beams = [beam for token_ids, beam in candidates.items() if token_ids not in ended_ids]
        best_beams = sorted(new_beams or candidates.values(), key=lambda beam: beam.mean_logprob, reverse=True)[
            : search.num_beams
        ]
        self._ended_beams += [beam for beam in best_beams if beam.end]
        self._open_beams = [beam for beam in best_beams if not beam.end] or [Beam()]
        self._round += 1

    def answers(self) -> list[_BeamRequest]:
        """Requests for the answers of beams whose reasoning has ended and that have tokens left."""
        limits = replace(self.request.limits, is_greedy=True)
        return [
            _BeamRequest(
                SampleRequest(self.request.prompt_ids + beam.token_ids, 0, max_tokens=self._room(beam)), limits
            )
            for beam in self.chosen_beams
            if self._takes_answer(beam)
        ]

    def responses(self, answers: Iterator[tuple[NDArray[np.int32], bool]]) -> list[tuple[list[int], list[float], bool]]:
        """(token ids, log-probabilities, whether it was cut) of each response; consumes its `answers`."""
        responses = []
        for beam in self.chosen_beams:
            answer, is_cut = next(answers) if self._takes_answer(beam) else (np.empty(0, np.int32), beam.end != "eos")
            self.num_sampled += len(answer)
            token_ids = [*beam.token_ids, *answer.tolist()]
            responses.append((token_ids, [math.nan] * len(token_ids), is_cut))
        return responses

    def _takes_answer(self, beam: Beam) -> bool:
        return beam.end == "closed" and self._room(beam) > 0

    def _room(self, beam: Beam) -> int:
        return self.request.limits.max_tokens - len(beam.token_ids)

    def _extended(self, beam: Beam, token_ids: NDArray[np.int32], logprobs: NDArray[np.float32]) -> Beam:
        content = strip_eos(token_ids, self._eos_ids)
        step = self.request.reader.read(beam.token_ids, beam.text, content.tolist())
        length = step.num_tokens if step.end else len(token_ids)
        logprob = beam.logprob + float(logprobs[:length].sum(dtype=np.float64))
        if not math.isfinite(logprob):
            raise EngineError(
                f"log-probabilities of a search: got {logprob} as the sum of a beam, expected a finite one; training "
                "diverged, or the sampler reports none with the plan's limits: use those of the rollout section"
            )
        beam_ids = beam.token_ids + tuple(token_ids[:length].tolist())
        end: Literal["closed", "eos", "limit"] | None = None
        if step.end == "reasoning":
            end = "closed"
        elif step.end is None and len(content) < len(token_ids):
            end = "eos"
        elif len(beam_ids) >= self.request.limits.max_tokens:
            end = "limit"
        return Beam(beam_ids, beam.text + step.text, logprob, end)


def search_all(requests: Sequence[SearchRequest], sampler: Sampler, *, eos_ids: Collection[int]) -> Sampled:
    """The responses of all searches, one search after another. Each search is independent of the others.

    Log-probabilities are nan, because responses selected by a search are not samples of the policy. All tokens that a
    search sampled are counted for its first response.
    """
    searches = [_Search(request, eos_ids) for request in requests]
    while active := [search for search in searches if not search.is_done]:
        candidates = [search.candidates() for search in active]
        sampled = _sample(sampler, [candidate for search_candidates in candidates for candidate in search_candidates])
        rows = zip(sampled.token_ids, sampled.logprobs, strict=True)
        for search, search_candidates in zip(active, candidates, strict=True):
            search.advance(list(islice(rows, len(search_candidates))))
    answers = _sample(sampler, [answer for search in searches for answer in search.answers()])
    answer = iter(zip(answers.token_ids, answers.is_cut_R.tolist(), strict=True))
    responses = Sampled.of([response for search in searches for response in search.responses(answer)])
    counts = [count for search in searches for count in (search.num_sampled, *[0] * (len(search.chosen_beams) - 1))]
    return replace(responses, num_sampled_R=np.array(counts, dtype=np.int64))


def _sample(sampler: Sampler, requests: Sequence[_BeamRequest]) -> Sampled:
    """Sample all requests, with one call of the sampler for each combination of limits and stop ids."""
    calls: dict[tuple[SamplingLimits, frozenset[int]], list[int]] = {}
    for row, request in enumerate(requests):
        calls.setdefault((request.limits, request.stop_ids), []).append(row)
    if not calls:
        return Sampled.of([])
    parts = [
        sampler.sample([requests[row].request for row in rows], limits, stop_ids=stop_ids)
        for (limits, stop_ids), rows in calls.items()
    ]
    return Sampled.merged(parts, list(calls.values()))
