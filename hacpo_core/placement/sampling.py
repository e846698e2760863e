"""Sampling of an agent's specs: ordinary responses grouped by their limits, then searches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from hacpo_core.data.tokens.steps import StepReader
from hacpo_core.engines.sampling.base import Sampled, Sampler, SampleRequest
from hacpo_core.engines.sampling.step_search import SearchRequest, search_all
from hacpo_core.methods.base import SampleSpec
from hacpo_core.records import SamplingLimits, StepSearch


def sample_specs(
    specs: Sequence[SampleSpec],
    requests: Sequence[SampleRequest],
    sampler: Sampler,
    *,
    reader_of: Callable[[StepSearch], StepReader],
    eos_ids: Collection[int],
) -> Sampled:
    """A response for each spec, in order: one call per distinct limits, then all searches together.

    Args:
        specs: the responses to sample.
        requests: prompt and seed of each; a search uses those of its first spec.
        sampler: the agent's.
        reader_of: returns the reader that finds a search's steps in the agent's tokens.
        eos_ids: all ids that end a response.
    """
    if not specs:  # a rank without problems
        return Sampled.of([])
    calls: dict[SamplingLimits, list[int]] = {}
    searches: dict[tuple[str, SamplingLimits, StepSearch], list[int]] = {}
    for row, spec in enumerate(specs):
        if spec.search is None:
            calls.setdefault(spec.limits, []).append(row)
        else:
            searches.setdefault((spec.problem.id, spec.limits, spec.search), []).append(row)
    parts = [sampler.sample([requests[row] for row in rows], limits) for limits, rows in calls.items()]
    places = list(calls.values())
    if searches:
        asked = [
            SearchRequest(
                requests[rows[0]].prompt_ids, requests[rows[0]].seed, len(rows), limits, search, reader_of(search)
            )
            for (_, limits, search), rows in searches.items()
        ]
        parts.append(search_all(asked, sampler, eos_ids=eos_ids))
        places.append([row for rows in searches.values() for row in rows])
    return Sampled.merged(parts, places)
