"""Phase rollout.<agent>: an agent samples what its plan asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hacpo_core.errors import EngineError
from hacpo_core.experiment import Experiment
from hacpo_core.methods import state
from hacpo_core.methods.base import PlanTask, SampleSpec
from hacpo_core.methods.checks import checked_specs
from hacpo_core.phases.update import with_agent
from hacpo_core.placement.base import PlacedAgent
from hacpo_core.records import Problem, SamplingLimits
from hacpo_core.responses import Responses
from hacpo_core.store.ledger import SampledBatch

NUM_PROBED = 8
"""responses of a step that the learner scores to compare it with the sampler, where it does not score all"""
SAME_LOGPROB = 1e-5
"""nats; a sampler all of whose probed tokens are as near to the learner works with its weights and numerics"""


def rollout(x: Experiment, step: int, agent: str, problems: Sequence[Problem]) -> None:
    """An agent samples its responses of a step.

    Raises:
        EngineError: log-probabilities are no numbers.
        MethodError: the plan returned no plan.
    """
    phase = f"rollout.{agent}"
    if x.ledger.has(step, phase):
        return
    specs, planned_state = _plan(x, step, agent, problems)

    def sample(placed: PlacedAgent) -> SampledBatch:
        shares = len(x.names) > 1 and x.method.shares_rollouts  # others compare their ratios with these values
        with x.stopwatch(agent) as watch:
            responses = placed.sample(specs, step=step, purpose="rollout")
            probes: dict[int, NDArray[np.float32]] = {}
            if not (x.config.old_logprobs == "learner" and shares):
                places = sorted({len(responses) * i // NUM_PROBED for i in range(NUM_PROBED)})
                probes = dict(zip(places, placed.score(responses.take(places)), strict=True))
            reuses = x.config.old_logprobs == "checked" and _agree(responses, probes)
            recomputes_own = not (reuses or x.config.old_logprobs == "sampler")
            if recomputes_own and shares:
                responses, probes = replace(responses, old_logprobs=placed.score(responses)), {}
        cost = watch.cost(responses.num_tokens)
        return SampledBatch(responses, cost, probes, recomputes_own=recomputes_own, state=planned_state)

    batch = with_agent(x, agent, step - 1, sample)
    if not np.isfinite(batch.responses.behaviour_logprobs.value_N).all():
        raise EngineError(
            f"step {step}, {agent}: some log-probabilities are no numbers, so its weights are spoilt; start again "
            "with a lower optimizer.learning_rate or optimizer.max_grad_norm"
        )
    x.ledger.save_rollouts(step, agent, batch)


def _plan(
    x: Experiment, step: int, agent: str, problems: Sequence[Problem]
) -> tuple[Sequence[SampleSpec], dict[str, object]]:
    """What the agent's plan asks for, and the state behind it, encoded."""
    rollout, plan = x.config.rollout, x.method.plan
    limits = SamplingLimits(rollout.temperature, rollout.top_p, rollout.max_response_tokens)
    task = PlanTask(step, agent, problems, rollout.num_samples, limits, x.config.seed)
    specs, after = checked_specs(plan, task, x.state_before(step, f"rollout.{agent}"))
    return specs, state.encode(after, owner=f"method.plan ({plan.name})")


def _agree(responses: Responses, probes: Mapping[int, NDArray[np.float32]]) -> bool:
    """Whether the sampler's log-probabilities are those that the learner gives the probed responses."""
    return all(np.all(np.abs(responses.logprobs[row] - learned) <= SAME_LOGPROB) for row, learned in probes.items())
