"""How the specs of a call reach a sampler."""

from collections.abc import Sequence
from typing import Any

import pytest

from hacpo_core.engines.sampling.base import Sampled, SampleRequest
from hacpo_core.methods.plan import SampleSpec
from hacpo_core.placement.sampling import sample_specs
from hacpo_core.records import Gold, Message, Problem, SamplingLimits


@pytest.mark.parametrize(("mixes_limits", "num_calls"), [(False, 3), (True, 1)])
def test_sampler_that_mixes_limits_gets_one_call(mixes_limits: bool, num_calls: int) -> None:
    limits = [SamplingLimits(1.0, 1.0, 3), SamplingLimits(1.0, 1.0, 5), SamplingLimits(1.0, 1.0, 5, is_greedy=True)]
    calls: list[list[SamplingLimits]] = []

    class Echo:
        """Each response is as long as its limit."""

        name = "echo"

        def sample(self, requests: Sequence[SampleRequest], limits: SamplingLimits, **_: Any) -> Sampled:
            calls.append([request.limits or limits for request in requests])
            lengths = [request.token_limit(limits) for request in requests]
            return Sampled.of([([1] * length, [-1.0] * length, True) for length in lengths])

    sampler: Any = Echo()
    sampler.mixes_limits = mixes_limits
    problem = Problem(id="p", messages=(Message("user", "1+1"),), gold=Gold("2"), place="here")
    specs = [SampleSpec(problem, row, each) for row, each in enumerate(limits)]
    requests = [SampleRequest((1, 2), row, limits=spec.limits) for row, spec in enumerate(specs)]
    sampled = sample_specs(specs, requests, sampler, reader_of=lambda _: pytest.fail("no search"), eos_ids=())
    assert sampled.token_ids.lengths.tolist() == [3, 5, 5]
    assert len(calls) == num_calls
    assert [each for call in calls for each in call] == limits
