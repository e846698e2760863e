"""Checks of what a part of a method returns, where it is called: shapes, finite values, known keys.

Each function raises a MethodError if the class raised an error or returned anything else than its base class says.

Shapes: R response of one agent, N token of one agent's responses, B row of a mini-batch or micro-batch, T token.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hacpo_core.errors import HacpoError, MethodError, is_out_of_memory
from hacpo_core.methods.base import State
from hacpo_core.methods.build import Builder, History
from hacpo_core.methods.estimate import Estimate, Estimator, ScoredStep
from hacpo_core.methods.objective import LossRows, Objective, Surrogate
from hacpo_core.methods.plan import PlanTask, SampleSpec, SamplingPlan
from hacpo_core.records import RowKey

if TYPE_CHECKING:  # torch is slow to import, and plans and the dashboard do not need it
    from torch import Tensor


@contextmanager
def errors_of(owner: str) -> Iterator[None]:
    """Errors of a part's method, and of reading what it returned, become a MethodError in one line.

    Raises:
        MethodError: the block raised an error.
        MemoryError, torch.OutOfMemoryError: the machine's memory was short, which a retry may survive.
    """
    try:
        yield
    except HacpoError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename}, line {last.lineno}"
        if last.filename == __file__:
            where = "what it returned is of another type than its base class says"
        raise MethodError(f"{owner}: {type(error).__name__}: {error} ({where}); fix the class") from error


def checked_specs(plan: SamplingPlan, task: PlanTask, state: State) -> tuple[list[SampleSpec], State]:
    """A plan's specs and its next state."""
    owner = f"method.plan ({plan.name}), step {task.step}, {task.agent}"
    with errors_of(owner):
        plan_specs, next_state = plan.plan(task, state)
        specs = list(plan_specs)
        if not specs and task.round == 0:
            raise MethodError(f"{owner}: returned no sample specs, expected at least one in the first round")
        problem_ids = {problem.id for problem in task.problems}
        earlier = task.verified.get(task.agent)
        keys = {(key.problem_id, key.sample) for key in earlier.row_keys()} if earlier is not None else set()
        for spec in specs:
            key = spec.problem.id, spec.sample
            if spec.problem.id not in problem_ids or key in keys:
                raise MethodError(f"{owner}: got sample {key}, expected problems of the step, each sample once")
            limit = task.limits.max_tokens
            if replace(spec.limits, max_tokens=limit) != task.limits or not 1 <= spec.limits.max_tokens <= limit:
                raise MethodError(
                    f"{owner}: got {spec.limits}, expected those of rollout with 1 to {limit} tokens; use "
                    "replace(task.limits, max_tokens=...)"
                )
            keys.add(key)
    return specs, next_state


def checked_shape(estimator: Estimator, scored: ScoredStep) -> ScoredStep:
    """The step with the estimator's shaped rewards."""
    owner = f"method.estimate ({estimator.name}), step {scored.step}: shape"
    with errors_of(owner):
        shaped_R = dict(estimator.shape(scored))
        for agent, reward_R in shaped_R.items():
            is_scored_R = ~np.isnan(scored.raw_reward_R(agent))
            _check_column(reward_R, len(is_scored_R), f"{owner}: rewards of {agent}", is_scored_R=is_scored_R)
    return replace(scored, shaped_R=shaped_R)


def checked_teachers(estimator: Estimator, scored: ScoredStep, state: State) -> Mapping[str, str]:
    """The teacher of each learner that has one."""
    owner = f"method.estimate ({estimator.name}), step {scored.step}: teachers"
    with errors_of(owner):
        teachers = dict(estimator.teachers(scored, state))
        for learner, teacher in teachers.items():
            if learner not in scored.agents or teacher not in scored.agents or learner == teacher:
                agents = ", ".join(scored.agents)
                raise MethodError(f"{owner}: got {teacher!r} for {learner!r}, expected another agent of {agents}")
    return teachers


def checked_token_advantage(estimator: Estimator, difference_N: NDArray[np.float64]) -> NDArray[np.float64]:
    """Terms added to the advantages of the tokens."""
    owner = f"method.estimate ({estimator.name}): token_advantage"
    with errors_of(owner):
        added_N = estimator.token_advantage(difference_N)
        _check_column(added_N, len(difference_N), owner)
    return added_N


def checked_estimate(
    estimator: Estimator, scored: ScoredStep, sources: Mapping[str, Sequence[str]], state: State
) -> tuple[Estimate, State]:
    """An estimate and the estimator's next state; `sources` has, by learner, agents whose rows it may train on."""
    owner = f"method.estimate ({estimator.name}), step {scored.step}"
    with errors_of(owner):
        estimate, next_state = estimator.estimate(scored, state)
        for learner, of_sources in sources.items():
            missing = set(of_sources) - set(estimate.advantages.get(learner, {}))
            if missing:
                raise MethodError(f"{owner}: advantages[{learner!r}] lacks {', '.join(sorted(missing))}; add them")
        for learner, by_source in estimate.advantages.items():
            for source, advantage_R in by_source.items():
                for name, column_R in (("advantages", advantage_R), ("weights", estimate.weight_R(learner, source))):
                    what = f"{owner}: {name} of {source} for {learner}"
                    _check_column(column_R, len(scored.responses[source]), what)
                    column_R.setflags(write=False)
        figures = {
            agent: _numbers(values, f"{owner}: figures of {agent}") for agent, values in estimate.figures.items()
        }
        run_figures = _numbers(estimate.run_figures, f"{owner}: run_figures")
    return replace(estimate, figures=figures, run_figures=run_figures), next_state


def checked_batches(builder: Builder, history: History, state: State) -> tuple[list[list[RowKey]], State]:
    """A learner's mini-batches and the builder's next state."""
    owner = f"method.build ({builder.name}), step {history.step}, {history.learner}"
    with errors_of(owner):
        batches, next_state = builder.build(history, state)
        minibatches = [list(batch) for batch in batches]
        if not minibatches or not all(minibatches):
            raise MethodError(f"{owner}: returned an empty mini-batch or none, expected mini-batches with rows")
        sources = {(key.step, key.agent) for batch in minibatches for key in batch}
        stored_keys = {
            key
            for step, agent in sources
            if agent in history.sources and 1 <= step <= history.step
            for key in history.responses(step, agent).row_keys()
        }
        for batch in minibatches:
            wrong = next((key for key in batch if key not in stored_keys or batch.count(key) > 1), None)
            if wrong is not None:
                raise MethodError(
                    f"{owner}: took {wrong}, expected each row once in a mini-batch, of {', '.join(history.sources)} "
                    f"and of steps up to {history.step}; see `history.responses`"
                )
    return minibatches, next_state


def checked_log_centers(
    objective: Objective, first_log_ratios: Callable[[], Mapping[str, NDArray[np.float64]]], state: State
) -> tuple[dict[str, float], State]:
    """An objective's log-ratios to subtract, by agent, and its next state."""
    owner = f"method.objective ({objective.name}): log_centers"
    with errors_of(owner):
        centers, next_state = objective.log_centers(first_log_ratios, state)
        return _numbers(centers, owner), next_state


def check_surrogate(surrogate: Surrogate, rows: LossRows, logprob_BT: Tensor, owner: str) -> None:
    """Raise a MethodError unless each column has one number per row, and values and ratios are finite."""
    for name, value_B in {"value": surrogate.value_B, **surrogate.columns}.items():
        if value_B.shape != rows.kind_B.shape:
            raise MethodError(f"{owner}: {name}: got {tuple(value_B.shape)}, expected {tuple(rows.kind_B.shape)}")
    if logprob_BT.requires_grad and not surrogate.value_B.requires_grad:
        raise MethodError(f"{owner}: value has no gradient; compute it from logprob_BT without detach()")
    if not bool((surrogate.value_B.isfinite() & surrogate.ratio_B.isfinite()).all()):
        inputs = (logprob_BT[rows.mask_BT], rows.advantage_B, rows.weight_B)
        if all(bool(tensor.isfinite().all()) for tensor in inputs):  # otherwise training diverged
            raise MethodError(f"{owner}: got nan or infinity in value or ratio, expected finite values; clip the ratio")


def checked_row_weights(objective: Objective, source_B: Tensor, num_tokens_B: Tensor, *, max_tokens: int) -> Tensor:
    """An objective's weights of a mini-batch's rows."""
    owner = f"method.objective ({objective.name}): row_weights"
    with errors_of(owner):
        weight_B = objective.row_weights(source_B, num_tokens_B, max_tokens=max_tokens)
        if weight_B.shape != source_B.shape or not bool(weight_B.isfinite().all()):
            raise MethodError(f"{owner}: got {weight_B}, expected a finite number for each of {len(source_B)} rows")
    return weight_B


def _numbers(values: Mapping[str, float], owner: str) -> dict[str, float]:
    """Figures as finite Python floats."""
    figures = {str(name): float(value) for name, value in values.items()}
    for name, value in figures.items():
        if not math.isfinite(value):
            raise MethodError(f"{owner}: {name!r} is {value!r}, expected a finite number")
    return figures


def _check_column(
    column: NDArray[Any], num_rows: int, what: str, *, is_scored_R: NDArray[np.bool_] | None = None
) -> None:
    """Raise a MethodError unless there is a float per row: finite, or finite exactly where the row is scored."""
    if column.dtype.kind != "f" or column.shape != (num_rows,):
        raise MethodError(f"{what} is {column.dtype} of shape {column.shape}, expected {num_rows} floats")
    is_finite_R = np.isfinite(column)
    if not (is_finite_R.all() if is_scored_R is None else np.array_equal(is_finite_R, is_scored_R)):
        raise MethodError(f"{what}: got nan or infinity; expected numbers, 0 (in rewards nan) for unscored responses")
