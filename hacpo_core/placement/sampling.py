"""Sampling of an agent's specs: ordinary responses grouped by their limits, then searches.

Shapes: R response.
"""

from collections.abc import Callable, Collection, Sequence

import numpy as np

from hacpo_core.data.tokens.steps import StepReader
from hacpo_core.engines.sampling.base import Sampled, Sampler, SampleRequest
from hacpo_core.engines.sampling.step_search import SearchRequest, search_all
from hacpo_core.errors import EngineError
from hacpo_core.methods.plan import SampleSpec
from hacpo_core.records import SamplingLimits, StepSearch


def sample_specs(
    specs: Sequence[SampleSpec],
    requests: Sequence[SampleRequest],
    sampler: Sampler,
    *,
    reader_of: Callable[[StepSearch], StepReader],
    eos_ids: Collection[int],
) -> Sampled:
    """A response for each spec, in order: one call per distinct limits, or for all if the sampler mixes them, then all
    searches together.

    Args:
        specs: the responses to sample.
        requests: prompt and seed of each; a search uses those of its first spec.
        sampler: the agent's.
        reader_of: returns the reader that finds a search's steps in the agent's tokens.
        eos_ids: all ids that end a response.

    Raises:
        EngineError: what the sampler returned does not fit the requests.
    """
    if not specs:  # a rank without problems
        return Sampled.of([])
    calls: dict[SamplingLimits, list[int]] = {}
    searches: dict[tuple[str, SamplingLimits, StepSearch], list[int]] = {}
    for row, spec in enumerate(specs):
        if spec.search is None:
            calls.setdefault(specs[0].limits if sampler.mixes_limits else spec.limits, []).append(row)
        else:
            searches.setdefault((spec.problem.id, spec.limits, spec.search), []).append(row)
    parts = [_checked(sampler, [requests[row] for row in rows], limits) for limits, rows in calls.items()]
    places = list(calls.values())
    if searches:
        search_requests = [
            SearchRequest(
                requests[rows[0]].prompt_ids, requests[rows[0]].seed, len(rows), limits, search, reader_of(search)
            )
            for (_, limits, search), rows in searches.items()
        ]
        parts.append(search_all(search_requests, sampler, eos_ids=eos_ids))
        places.append([row for rows in searches.values() for row in rows])
    return Sampled.merged(parts, places)


def _checked(sampler: Sampler, requests: Sequence[SampleRequest], limits: SamplingLimits) -> Sampled:
    """What the sampler returns for one call, if there is a response of a fit length to each request."""
    sampled = sampler.sample(requests, limits)
    length_R, num_logprobs_R = sampled.token_ids.lengths, sampled.logprobs.lengths
    if len(length_R) != len(requests):
        problem = f"{len(length_R)} responses to {len(requests)} requests, expected one each"
    elif not np.array_equal(length_R, num_logprobs_R):
        problem = f"{length_R.sum()} tokens with {num_logprobs_R.sum()} log-probabilities, expected one per token"
    elif length_R.min() < 1 or (length_R > [request.token_limit(limits) for request in requests]).any():
        problem = f"responses of {length_R.min()} to {length_R.max()} tokens, expected 1 to {limits.max_tokens}"
    else:
        return sampled
    raise EngineError(f"engine.sampler: {sampler.name} returned {problem}; correct its method sample")
