"""Checks of what a seam returns: shapes, finite values, known and unique keys.

A value of another type is an error of reading it, which `errors_of` reports like an error of the class itself.

Shapes: R response of one agent, N token of one agent's responses.
"""

from __future__ import annotations

import itertools
import math
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hacpo_core.errors import HacpoError, MethodError
from hacpo_core.methods.base import (
    Builder,
    Estimate,
    Estimator,
    History,
    Objective,
    PlanTask,
    SampleSpec,
    SamplingPlan,
    ScoredStep,
    State,
)
from hacpo_core.records import Problem, RowKey
from hacpo_core.responses import SEARCHED

TORCH_OUT_OF_MEMORY = "OutOfMemoryError"
"""name of torch's error, which is not imported here"""


@contextmanager
def errors_of(owner: str) -> Iterator[None]:
    """Errors of a seam's method, and of reading what it returned, become a MethodError in one line.

    Raises:
        MethodError: the block raised an error.
        MemoryError, torch.OutOfMemoryError: the machine's memory was short, which a retry may survive.
    """
    try:
        yield
    except (HacpoError, MemoryError):
        raise
    except Exception as error:
        if type(error).__name__ == TORCH_OUT_OF_MEMORY:
            raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename}, line {last.lineno}"
        raise MethodError(f"{owner}: {type(error).__name__}: {error} ({where}); fix the class") from error


def checked_specs(plan: SamplingPlan, task: PlanTask, state: State) -> tuple[list[SampleSpec], State]:
    """A plan's specs and its next state.

    Raises:
        MethodError: it raised an error, or returned invalid specs.
    """
    owner = f"method.plan ({plan.name}), step {task.step}, {task.agent}"
    if task.round:
        owner += f", round {task.round + 1}"
    with errors_of(owner):
        plan_specs, next_state = plan.plan(task, state)
        specs = list(plan_specs)
        if not specs and task.round == 0:
            raise MethodError(f"{owner}: returned no sample specs, expected at least one in the first round")
        earlier = task.verified.get(task.agent)
        keys = {(key.problem_id, key.sample) for key in earlier.row_keys()} if earlier is not None else set()
        for spec in specs:
            _check_spec(spec, task, owner)
            key = spec.problem.id, spec.sample
            if key in keys:
                raise MethodError(
                    f"{owner}: asks for sample {spec.sample} of {spec.problem.id!r} twice; give each one its own number"
                )
            keys.add(key)
    return specs, next_state


def _check_spec(spec: SampleSpec, task: PlanTask, owner: str) -> None:
    problem_id, limits, search = spec.problem.id, spec.limits, spec.search
    if problem_id not in {problem.id for problem in task.problems}:
        raise MethodError(f"{owner}: asks for problem {problem_id!r}, expected a problem of the step; leave it out")
    if type(spec.sample) is not int or spec.sample < 0:
        raise MethodError(f"{owner}: got sample {spec.sample!r} for {problem_id!r}, expected a whole number >= 0")
    if replace(limits, max_tokens=task.limits.max_tokens) != task.limits:
        raise MethodError(
            f"{owner}: got {limits} for {problem_id!r}, expected the temperature, top_p, top_k and min_p of rollout, "
            "with which the trained policy samples; change max_tokens alone: replace(task.limits, max_tokens=...)"
        )
    if not 1 <= limits.max_tokens <= task.limits.max_tokens:
        raise MethodError(
            f"{owner}: asks for {limits.max_tokens} tokens, expected 1 to the {task.limits.max_tokens} of "
            "rollout.max_response_tokens; raise that"
        )
    if (search is not None) != (spec.tag == SEARCHED):
        raise MethodError(
            f"{owner}: got tag {spec.tag!r} and search {search} for {problem_id!r}; use the tag {SEARCHED!r} for "
            "searched responses and for no others"
        )
    if search is not None and (
        min(search.num_beams, search.num_candidates, search.step_tokens) < 1 or not search.step_end
    ):
        raise MethodError(
            f"{owner}: got {search} for {problem_id!r}, expected counts >= 1 and a step_end that is not empty"
        )


def checked_shape(estimator: Estimator, scored: ScoredStep) -> ScoredStep:
    """The step with the estimator's shaped rewards.

    Raises:
        MethodError: it raised an error, or returned invalid rewards.
    """
    owner = f"method.estimate ({estimator.name}), step {scored.step}: shape"
    with errors_of(owner):
        shaped_R = dict(estimator.shape(scored))
        for agent, reward_R in shaped_R.items():
            if agent not in scored.responses:
                raise MethodError(f"{owner}: got agent {agent!r}, expected one of {', '.join(scored.responses)}")
            raw_R = scored.raw_reward_R(agent)
            _check_column(reward_R, len(raw_R), f"{owner}: rewards of {agent}", is_scored_R=~np.isnan(raw_R))
    return replace(scored, shaped_R=shaped_R)


def checked_teachers(estimator: Estimator, scored: ScoredStep, state: State) -> Mapping[str, str]:
    """The teacher of each learner that has one.

    Raises:
        MethodError: it raised an error, or named anything but another agent.
    """
    owner = f"method.estimate ({estimator.name}), step {scored.step}: teachers"
    with errors_of(owner):
        teachers = dict(estimator.teachers(scored, state))
        for learner, teacher in teachers.items():
            if learner not in scored.agents or teacher not in scored.agents or learner == teacher:
                agents = ", ".join(scored.agents)
                raise MethodError(f"{owner}: got {teacher!r} for {learner!r}, expected another agent of {agents}")
    return teachers


def checked_teacher_problems(
    estimator: Estimator, scored: ScoredStep, learner: str, teacher: str, problems: Sequence[Problem]
) -> list[Problem]:
    """The problem behind which the teacher scores each of the learner's responses.

    Raises:
        MethodError: it raised an error, or returned anything but one problem per response, with the response's id.
    """
    owner = f"method.estimate ({estimator.name}), step {scored.step}: teacher_problems of {learner}"
    with errors_of(owner):
        teacher_problems = list(estimator.teacher_problems(scored, learner, teacher, problems))
        if len(teacher_problems) != len(problems):
            raise MethodError(
                f"{owner}: returned {len(teacher_problems)} problems, expected {len(problems)}, one for each response "
                "in its order"
            )
        for problem, other in zip(problems, teacher_problems, strict=True):
            if other.id != problem.id:
                raise MethodError(
                    f"{owner}: got problem {other.id!r} for a response to {problem.id!r}; keep the id and change "
                    "messages alone: replace(problem, messages=...)"
                )
            if not [(message.role, message.content) for message in other.messages]:
                raise MethodError(f"{owner}: got no messages of {problem.id!r}, expected at least one")
            if other.messages != problem.messages and estimator.max_teacher_prompt_tokens is None:
                raise MethodError(
                    f"{owner}: got other messages of {problem.id!r} with max_teacher_prompt_tokens=None, expected a "
                    "number of tokens, which plans count with; define that property"
                )
    return teacher_problems


def checked_token_advantage(estimator: Estimator, difference_N: NDArray[np.float64]) -> NDArray[np.float64]:
    """Terms added to the advantages of the tokens.

    Raises:
        MethodError: it raised an error, or returned anything but one finite number per token.
    """
    owner = f"method.estimate ({estimator.name}): token_advantage"
    with errors_of(owner):
        added_N = estimator.token_advantage(difference_N)
        _check_column(added_N, len(difference_N), owner)
    return added_N


def checked_estimate(
    estimator: Estimator, scored: ScoredStep, sources: Mapping[str, Sequence[str]], state: State
) -> tuple[Estimate, State]:
    """An estimate and the estimator's next state.

    Args:
        estimator: the method's.
        scored: its input.
        sources: by learner, the agents whose rows it may train on.
        state: of the previous step.

    Raises:
        MethodError: it raised an error, or its estimate is invalid or lacks a learner or source.
    """
    owner = f"method.estimate ({estimator.name}), step {scored.step}"
    with errors_of(owner):
        estimate, next_state = estimator.estimate(scored, state)
        for learner, of_sources in sources.items():
            missing = set(of_sources) - set(estimate.carried.get(learner, {}))
            if missing:
                raise MethodError(
                    f"{owner}: carried[{learner!r}] lacks {', '.join(sorted(missing))}; add the advantages of that "
                    "agent's responses for that learner"
                )
        for learner, by_source in estimate.carried.items():
            for source, carried in by_source.items():
                if learner not in scored.responses or source not in scored.responses:
                    agents = ", ".join(scored.responses)
                    raise MethodError(f"{owner}: got carried[{learner!r}][{source!r}], expected agents of {agents}")
                num_rows = len(scored.responses[source])
                for name in ("advantage_R", "weight_R"):
                    _check_column(getattr(carried, name), num_rows, f"{owner}: {name} of {source} for {learner}")
                    getattr(carried, name).setflags(write=False)
        if not set(estimate.figures) <= set(scored.agents):
            raise MethodError(
                f"{owner}: figures: got {sorted(map(str, estimate.figures))}, expected {{agent: {{name: number}}}}; "
                "use run_figures for the whole step"
            )
        figures = {
            agent: _numbers(values, f"{owner}: figures of {agent}") for agent, values in estimate.figures.items()
        }
        run_figures = _numbers(estimate.run_figures, f"{owner}: run_figures")
    return replace(estimate, figures=figures, run_figures=run_figures), next_state


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
    if column.dtype.kind != "f" or column.shape != (num_rows,):
        raise MethodError(
            f"{what} is {column.dtype} of shape {column.shape}, expected a float array of shape ({num_rows},), one "
            "number per response"
        )
    if is_scored_R is None:
        if not np.isfinite(column).all():
            raise MethodError(f"{what}: got nan or infinity, expected finite numbers; give unscored responses 0")
    elif not np.array_equal(np.isfinite(column), is_scored_R):
        raise MethodError(f"{what}: expected a finite number for each scored response and nan for the others")


def checked_batches(builder: Builder, history: History, state: State) -> tuple[list[list[RowKey]], State]:
    """A learner's mini-batches and the builder's next state.

    Raises:
        MethodError: it raised an error, or returned invalid mini-batches or rows that the learner may not take.
    """
    owner = f"method.build ({builder.name}), step {history.step}, {history.learner}"
    with errors_of(owner):
        batches, next_state = builder.build(history, state)
        minibatches = [list(batch) for batch in batches]
        if not minibatches or not all(minibatches):
            got = "an empty mini-batch" if minibatches else "no mini-batches"
            raise MethodError(f"{owner}: returned {got}, expected mini-batches with rows; leave empty ones out")
        for batch in minibatches:
            if len(set(batch)) < len(batch):
                twice = next(key for number, key in enumerate(batch) if key in batch[:number])
                raise MethodError(f"{owner}: a mini-batch contains {twice} twice; take it once, or in two mini-batches")
        row_keys = list(itertools.chain.from_iterable(minibatches))
        stored_keys: set[RowKey] = set()
        for step, agent in {(key.step, key.agent): None for key in row_keys}:
            key = next(key for key in row_keys if (key.step, key.agent) == (step, agent))
            if agent not in history.sources:
                raise MethodError(
                    f"{owner}: took {key}, expected rows of {', '.join(history.sources)}; other agents' rows need "
                    "method.shares_rollouts=true"
                )
            if not 1 <= step <= history.step:
                raise MethodError(f"{owner}: took {key}, expected steps from 1 to {history.step}")
            stored_keys.update(history.responses(step, agent).row_keys())
        for key in row_keys:
            if key not in stored_keys:
                raise MethodError(f"{owner}: took {key}, expected a response of that step; see `history.responses`")
    return minibatches, next_state


def checked_log_centers(
    objective: Objective, first: Mapping[str, NDArray[np.float64]], state: State
) -> tuple[dict[str, float], State]:
    """An objective's log-ratios to subtract, by agent, and its next state.

    Raises:
        MethodError: it raised an error, or returned anything but one finite number for each agent in `first`.
    """
    owner = f"method.objective ({objective.name}): log_centers"
    with errors_of(owner):
        centers_by_agent, next_state = objective.log_centers(first, state)
        centers = _numbers(centers_by_agent, f"{owner}: centers")
        if set(centers) != set(first):
            raise MethodError(
                f"{owner}: got centers of {sorted(centers)}, expected of {sorted(first)}; return one for each"
            )
    return centers, next_state
