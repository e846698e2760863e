"""An agent with the weights of a step, whatever happened to it before: restored, and brought there by replays.

Shapes: N token of one agent's responses.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from hacpo_core.columns import Ragged
from hacpo_core.config.replays import MAX_REPLAYED_STEPS, NEAR_SHARE, expected_distance
from hacpo_core.data.batches import Minibatch, RowReader, learner_minibatches
from hacpo_core.engines.learning.replay import UpdateTrace, compare
from hacpo_core.errors import ReplayError
from hacpo_core.experiment import Experiment
from hacpo_core.methods import state
from hacpo_core.methods.build import History
from hacpo_core.methods.checks import checked_batches, checked_token_advantage
from hacpo_core.methods.estimate import Estimate
from hacpo_core.placement.base import PlacedAgent
from hacpo_core.placement.checkpoints import latest_checkpoint
from hacpo_core.records import RowKey
from hacpo_core.responses import Responses
from hacpo_core.stopwatch import Stopwatch

_log = logging.getLogger(__name__)


@contextmanager
def agent_at(experiment: Experiment, agent: str, version: int) -> Iterator[tuple[PlacedAgent, Stopwatch]]:
    """An agent with the weights of this version, and a stopwatch of the block, which does not count the way there.

    If necessary, the agent is restored from a checkpoint, and its committed updates are repeated.

    Raises:
        ReplayError: a repeated update gives different weights, and `checkpoint.accept_divergence` is off.
    """

    def replay(placed: PlacedAgent, step: int) -> None:
        rows, _ = chosen_rows(experiment, step, agent)
        minibatches, _ = learner_batches(experiment, step, agent, rows)
        objective_state = experiment.state_before(step, f"objective.{agent}")
        objective = experiment.method.objective
        _, trace = placed.update(minibatches, objective, version=step, objective_state=objective_state)
        _judge_replay(experiment, step, agent, trace)

    with experiment.placement.turn(agent):
        placed = experiment.placement.agent_at(agent, version, replay=replay)
        with experiment.stopwatch(agent) as watch:
            yield placed, watch


def chosen_rows(experiment: Experiment, step: int, agent: str) -> tuple[list[list[RowKey]], dict[str, object]]:
    """The rows of each mini-batch of a learner, and the builder's next state, encoded.

    Raises:
        MethodError: the builder failed or returned invalid mini-batches.
    """
    builder, ledger = experiment.method.build, experiment.ledger
    history = History(
        step=step,
        problem_ids=tuple(problem.id for problem in experiment.problems(step)),
        sources=experiment.sources(agent),
        num_samples=experiment.config.rollout.num_samples,
        seed=experiment.config.seed,
        responses=lambda at, of: ledger.verdicts(at, of).value,
        estimate=lambda at: ledger.estimate(at).value,
        trained_rows=lambda at: ledger.update(at, agent).outcome.rows,
    )
    batches, next_state = checked_batches(builder, history, experiment.state_before(step, f"update.{agent}"))
    return batches, state.encode(next_state, owner=f"method.build ({builder.name})")


def learner_batches(
    experiment: Experiment, step: int, agent: str, batches: Sequence[Sequence[RowKey]]
) -> tuple[list[Minibatch], dict[str, float]]:
    """The mini-batches of a learner's updates of a step, one per update, and metrics of their construction."""
    ledger, estimator = experiment.ledger, experiment.method.estimate

    def taught(at: int) -> Ragged:
        difference = ledger.taught(at, agent).difference
        return Ragged(checked_token_advantage(estimator, difference.value_N), difference.edge)

    reader = row_reader(
        experiment,
        step,
        agent,
        responses=lambda at, of: ledger.verdicts(at, of).value,
        estimate=lambda at: ledger.estimate(at).value,
        teacher_advantages=taught if estimator.has_teachers else None,
    )
    limit = experiment.config.rollout.max_response_tokens
    minibatches, figures = learner_minibatches(reader, batches, experiment.method.objective, max_response_tokens=limit)
    return minibatches * experiment.method.build.num_iterations, figures


def row_reader(
    experiment: Experiment,
    step: int,
    learner: str,
    *,
    responses: Callable[[int, str], Responses],
    estimate: Callable[[int], Estimate],
    teacher_advantages: Callable[[int], Ragged] | None = None,
) -> RowReader:
    """Sources of a learner's rows, with the tokenizers of the experiment's agents."""
    tokens = experiment.placement.tokenizers
    return RowReader(
        learner=learner,
        agents=experiment.agents,
        step=step,
        responses=responses,
        estimate=estimate,
        prompt_ids=lambda problem_id: tokens[learner].prompt_ids(experiment.problem(problem_id)),
        retokenizers={
            source: experiment.retokenizer(tokens[source], tokens[learner])
            for source in experiment.sources(learner)
            if source != learner
        },
        eos_ids={agent: tokens[agent].eos_ids for agent in experiment.agents},
        teacher_advantages=teacher_advantages,
        drops_eos=experiment.config.retokenize.eos == "drop",
    )


def _judge_replay(experiment: Experiment, step: int, agent: str, repeated_trace: UpdateTrace) -> None:
    """Record how close a repeated update is to the original; raise ReplayError if it differs too much."""
    recorded_trace = experiment.ledger.update(step, agent).trace
    replay = compare(recorded_trace, repeated_trace)
    experiment.ledger.add_replay(step, agent, replay)
    message = f"replay of step {step}, {agent}: {replay.kind}, off by {replay.distance:.1e} of the update's norm"
    if replay.kind == "exact":
        _log.info("%s", message)
    elif replay.kind == "near" or experiment.config.checkpoint.accept_divergence:
        _log.warning("%s; training continues from these weights", message)
    else:
        must_equal = recorded_trace.setup == repeated_trace.setup and repeated_trace.setup.is_exact
        expected = "an exact repeat on the same device" if must_equal else f"at most {NEAR_SHARE}"
        cause = "" if must_equal else _drift(experiment, step)
        raise ReplayError(
            f"{message}, expected {expected}; {cause}the rows or the optimizer's settings changed, because a library "
            "was updated (install the old version) or lost rollouts were sampled again (set "
            "checkpoint.accept_divergence=true)"
        )


def _drift(experiment: Experiment, step: int) -> str:
    """That many replayed steps explain the distance by themselves; empty if they are few."""
    checkpoint = latest_checkpoint(experiment.ledger.store.root, at_most=step)
    num_steps = step - (checkpoint.step if checkpoint is not None else 0)
    if num_steps <= MAX_REPLAYED_STEPS:
        return ""
    return (
        f"it is step {num_steps} after the newest checkpoint, where about {expected_distance(num_steps):.2f} is usual "
        f"on a GPU: continue with checkpoint.accept_divergence=true, and from now on with checkpoint.every="
        f"{MAX_REPLAYED_STEPS} at most; or "
    )
