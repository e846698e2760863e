"""Phase rollout.<agent> (rollout-<n>.<agent> in later rounds): an agent samples the responses that its plan lists.

Shapes: N token of one agent's responses.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hacpo_core.columns import Ragged
from hacpo_core.config.counts import scores_own
from hacpo_core.errors import EngineError
from hacpo_core.experiment import Experiment
from hacpo_core.methods import state
from hacpo_core.methods.checks import checked_specs
from hacpo_core.methods.plan import PlanTask, SampleSpec
from hacpo_core.phases.agent_at import agent_at
from hacpo_core.placement.base import PlacedAgent
from hacpo_core.records import PhaseCost, Problem
from hacpo_core.responses import Responses
from hacpo_core.store.ledger import Committed
from hacpo_core.store.steps import phase_name

_log = logging.getLogger(__name__)


def rollout(
    experiment: Experiment, step: int, agent: str, problems: Sequence[Problem], *, round_index: int = 0
) -> None:
    """Sample and commit an agent's responses of a step, or of one round of it.

    Raises:
        EngineError: log-probabilities are nan or infinite.
        MethodError: the plan failed or returned invalid specs.
    """
    if experiment.ledger.has(step, phase_name("rollout", agent, round_index)):
        return
    specs, planned_state = _plan(experiment, step, agent, problems, round_index)
    responses, cost = Responses.none(step, agent), PhaseCost(0.0)
    if specs:
        with agent_at(experiment, agent, step - 1) as (placed, watch):
            responses = placed.sample(specs, step=step, purpose="rollout")
            rows = _scored_rows(experiment, specs)
            if rows:
                responses = _scored(placed, responses, rows)
        cost = watch.cost()
    if not np.isfinite(responses.logprobs.value_N).all():
        raise EngineError(
            f"step {step}, {agent}: got nan or infinite log-probabilities, expected finite ones; training diverged: "
            "start a new experiment with a lower optimizer.learning_rate or optimizer.max_grad_norm"
        )
    rollouts = Committed(responses, replace(cost, num_tokens=responses.num_tokens), planned_state)
    experiment.ledger.save_rollouts(step, agent, rollouts, round_index)


def _scored_rows(experiment: Experiment, specs: Sequence[SampleSpec]) -> list[int]:
    """Rows that get the learner's log-probabilities here, since its later ratios cannot be computed from the sampler's.

    They are searched rows, and all of them if later steps train on them, unless the sampler's are the learner's own.
    The update itself scores the other own rows. Partners' ratios are means over a response, with bounds far wider than
    the difference between sampler and learner.
    """
    takes_old_rows = experiment.method.build.takes_old_rows and scores_own(experiment.config)
    return [row for row, spec in enumerate(specs) if takes_old_rows or spec.search is not None]


def _plan(
    experiment: Experiment, step: int, agent: str, problems: Sequence[Problem], round_index: int
) -> tuple[Sequence[SampleSpec], dict[str, object]]:
    """The specs of the agent's plan, and the plan's next state, encoded."""
    rollout, plan, ledger = experiment.config.rollout, experiment.method.plan, experiment.ledger
    task = PlanTask(
        step=step,
        agent=agent,
        problems=problems,
        num_samples=rollout.num_samples,
        limits=rollout.limits,
        seed=experiment.config.seed,
        round=round_index,
        verified={name: ledger.verdicts(step, name, rounds=round_index).value for name in experiment.agents}
        if round_index
        else {},
        sources=experiment.sources(agent),
    )
    if round_index:
        plan_state = state.decode(ledger.sampled_round(step, agent, round_index - 1).state)
    else:
        plan_state = experiment.state_before(step, f"rollout.{agent}")
    specs, next_state = checked_specs(plan, task, plan_state)
    if plan.changes_prompts:
        specs = _short_enough(experiment, step, agent, specs)
    return specs, state.encode(next_state, owner=f"method.plan ({plan.name})")


def _scored(placed: PlacedAgent, responses: Responses, rows: Sequence[int]) -> Responses:
    """The responses, with the learner's log-probabilities in these rows instead of the sampler's."""
    logprobs = list(responses.logprobs)
    for row, row_logprobs in zip(rows, placed.score(responses.take(rows)), strict=True):
        logprobs[row] = row_logprobs
    return replace(responses, logprobs=Ragged.of(logprobs, np.float32))


def _short_enough(experiment: Experiment, step: int, agent: str, specs: Sequence[SampleSpec]) -> list[SampleSpec]:
    """Specs whose prompts fit `rollout.max_prompt_tokens`; a warning counts the others."""
    tokens, max_tokens = experiment.placement.tokenizers[agent], experiment.config.rollout.max_prompt_tokens
    tokens.render([spec.problem for spec in specs])
    fitting_specs = [spec for spec in specs if len(tokens.prompt_ids(spec.problem)) <= max_tokens]
    if len(fitting_specs) < len(specs):
        message = "step %d, %s: %d of %d responses are left out because their prompts exceed the %d tokens of %s; "
        message += "raise it, or let the plan add less text"
        _log.warning(
            message, step, agent, len(specs) - len(fitting_specs), len(specs), max_tokens, "rollout.max_prompt_tokens"
        )
    return fitting_specs
