"""Checks of what a seam returns, because a user's class may return anything."""

from __future__ import annotations

import itertools
import math
import numbers
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hacpo_core.errors import HacpoError, MethodError
from hacpo_core.methods.base import (
    Builder,
    Carried,
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
from hacpo_core.records import Message, Problem, RowKey, SamplingLimits, StepSearch
from hacpo_core.responses import SEARCHED

TORCH_OUT_OF_MEMORY = "OutOfMemoryError"
"""name of torch's error, which is not imported here"""
_T = TypeVar("_T")


def checked_specs(plan: SamplingPlan, task: PlanTask, state: State) -> tuple[list[SampleSpec], State]:
    """A plan's specs and its next state.

    Raises:
        MethodError: it raised an error, or returned invalid specs.
    """
    owner = f"method.plan ({plan.name}), step {task.step}, {task.agent}"
    if task.round:
        owner += f", round {task.round + 1}"
    planned, after = _pair(owner, lambda: plan.plan(task, state))
    specs = _sequence(planned, SampleSpec, owner, "sample specs")
    if not specs and task.round == 0:
        raise MethodError(f"{owner}: returned no sample specs, expected at least one in the first round; return some")
    known = {problem.id for problem in task.problems}
    earlier = task.verified.get(task.agent)
    seen = {(key.problem_id, key.sample) for key in earlier.row_keys()} if earlier is not None else set()
    for spec in specs:
        if not isinstance(spec.problem, Problem):
            raise MethodError(f"{owner}: a spec's problem is {type(spec.problem).__name__}, expected a Problem")
        key = spec.problem.id, spec.sample
        if type(spec.sample) is not int or spec.sample < 0 or not isinstance(spec.tag, str):
            raise MethodError(
                f"{owner}: got sample {spec.sample!r} and tag {spec.tag!r} for {spec.problem.id!r}, expected an int "
                ">= 0 and a str"
            )
        if spec.problem.id not in known:
            raise MethodError(
                f"{owner}: asks for problem {spec.problem.id!r}, expected a problem of the step; leave it out"
            )
        if key in seen:
            raise MethodError(
                f"{owner}: asks for sample {spec.sample} of {spec.problem.id!r} twice; give each one its own number"
            )
        seen.add(key)
        limits = spec.limits
        if not isinstance(limits, SamplingLimits) or type(limits.max_tokens) is not int or limits.max_tokens < 1:
            raise MethodError(
                f"{owner}: got {limits} for {spec.problem.id!r}, expected SamplingLimits with max_tokens >= 1"
            )
        if replace(limits, max_tokens=task.limits.max_tokens) != task.limits:
            raise MethodError(
                f"{owner}: got {limits} for {spec.problem.id!r}, expected the temperature, top_p, top_k and min_p of "
                "rollout, with which the trained policy samples; change max_tokens alone: replace(task.limits, "
                "max_tokens=...)"
            )
        if limits.max_tokens > task.limits.max_tokens:
            raise MethodError(
                f"{owner}: asks for {limits.max_tokens} tokens, expected at most the {task.limits.max_tokens} of "
                "rollout.max_response_tokens; raise that"
            )
        _check_search(spec, owner)
    return specs, after


def _check_search(spec: SampleSpec, owner: str) -> None:
    search = spec.search
    if (search is not None) != (spec.tag == SEARCHED):
        raise MethodError(
            f"{owner}: got tag {spec.tag!r} and search {search} for {spec.problem.id!r}; use the tag {SEARCHED!r} for "
            "searched responses and for no others"
        )
    if search is None:
        return
    is_valid = isinstance(search, StepSearch) and isinstance(search.closing_mark, str)
    if is_valid:
        counts = (search.num_beams, search.num_candidates, search.step_tokens)
        is_valid = all(type(count) is int and count >= 1 for count in counts)
    if not is_valid or not (isinstance(search.step_end, str) and search.step_end):
        raise MethodError(
            f"{owner}: got {search} for {spec.problem.id!r}, expected a StepSearch with counts >= 1 and a "
            "non-empty step_end"
        )


def checked_shape(estimator: Estimator, scored: ScoredStep) -> ScoredStep:
    """The step with the estimator's shaped rewards.

    Raises:
        MethodError: it raised an error, or returned invalid rewards.
    """
    owner = f"method.estimate ({estimator.name}), step {scored.step}: shape"
    shaped_R = called(owner, lambda: estimator.shape(scored))
    if not isinstance(shaped_R, Mapping):
        raise MethodError(f"{owner}: returned {type(shaped_R).__name__}, expected rewards by agent")
    for agent, reward_R in shaped_R.items():
        if agent not in scored.responses:
            raise MethodError(f"{owner}: got agent {agent!r}, expected one of {', '.join(scored.responses)}")
        raw_R = scored.raw_reward_R(agent)
        _check_column(reward_R, len(raw_R), f"{owner}: rewards of {agent}", is_scored_R=~np.isnan(raw_R))
    return replace(scored, shaped_R=dict(shaped_R))


def checked_teachers(estimator: Estimator, scored: ScoredStep, state: State) -> Mapping[str, str]:
    """The teacher of each learner that has one.

    Raises:
        MethodError: it raised an error, or named anything but another agent.
    """
    owner = f"method.estimate ({estimator.name}), step {scored.step}: teachers"
    teachers = called(owner, lambda: estimator.teachers(scored, state))
    if not isinstance(teachers, Mapping):
        raise MethodError(f"{owner}: returned {type(teachers).__name__}, expected agents by learner")
    for learner, teacher in teachers.items():
        if learner not in scored.agents or teacher not in scored.agents or learner == teacher:
            known = ", ".join(scored.agents)
            raise MethodError(f"{owner}: got {teacher!r} for {learner!r}, expected another agent of {known}")
    return teachers


def checked_teacher_problems(
    estimator: Estimator, scored: ScoredStep, learner: str, teacher: str, problems: Sequence[Problem]
) -> list[Problem]:
    """The problem behind which the teacher scores each of the learner's responses.

    Raises:
        MethodError: it raised an error, or returned anything but one problem per response, with the response's id.
    """
    owner = f"method.estimate ({estimator.name}), step {scored.step}: teacher_problems of {learner}"
    returned = called(owner, lambda: estimator.teacher_problems(scored, learner, teacher, problems))
    reworded = _sequence(returned, Problem, owner, "problems")
    if len(reworded) != len(problems):
        raise MethodError(
            f"{owner}: returned {len(reworded)} problems, expected {len(problems)}, one for each response in its order"
        )
    for own, other in zip(problems, reworded, strict=True):
        if other.id != own.id:
            raise MethodError(
                f"{owner}: got problem {other.id!r} for a response to {own.id!r}; keep the id and change messages "
                "alone: replace(problem, messages=...)"
            )
        messages = other.messages
        if not (isinstance(messages, tuple) and messages and all(isinstance(each, Message) for each in messages)):
            raise MethodError(f"{owner}: got messages {messages!r} of {own.id!r}, expected a tuple of Messages")
        if messages != own.messages and estimator.max_teacher_prompt_tokens is None:
            raise MethodError(
                f"{owner}: got other messages of {own.id!r} with max_teacher_prompt_tokens=None, expected a number of "
                "tokens, which plans count with; define that property"
            )
    return reworded


def checked_token_advantage(estimator: Estimator, difference_N: NDArray[np.float64]) -> NDArray[np.float64]:
    """Terms added to the advantages of the tokens.

    Raises:
        MethodError: it raised an error, or returned anything but one finite number per token.
    """
    owner = f"method.estimate ({estimator.name}): token_advantage"
    added_N: NDArray[np.float64] = called(owner, lambda: estimator.token_advantage(difference_N))
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
    estimate, after = _pair(owner, lambda: estimator.estimate(scored, state))
    if not isinstance(estimate, Estimate):
        raise MethodError(f"{owner}: returned {type(estimate).__name__}, expected an Estimate")
    carried_of = estimate.carried
    if not isinstance(carried_of, Mapping) or not all(isinstance(each, Mapping) for each in carried_of.values()):
        raise MethodError(
            f"{owner}: carried is not a mapping of mappings; return {{learner: {{source: Carried(...)}}}}"
        )
    for learner, of_sources in sources.items():
        for source in of_sources:
            carried = estimate.carried.get(learner, {}).get(source)
            if not isinstance(carried, Carried):
                raise MethodError(
                    f"{owner}: carried[{learner!r}][{source!r}] is {type(carried).__name__}, expected a Carried; "
                    "add the advantages of that agent's responses for that learner"
                )
    for learner, given in estimate.carried.items():
        for source, carried in given.items():
            if learner not in scored.responses or source not in scored.responses:
                known = ", ".join(scored.responses)
                raise MethodError(f"{owner}: got carried[{learner!r}][{source!r}], expected agents of {known}")
            num_rows = len(scored.responses[source])
            for name in ("advantage_R", "weight_R"):
                _check_column(getattr(carried, name), num_rows, f"{owner}: {name} of {source} for {learner}")
                getattr(carried, name).setflags(write=False)
    return replace(
        estimate,
        figures=_checked_figures(estimate.figures, scored.agents, owner),
        run_figures=_numbers(estimate.run_figures, owner, "run_figures"),
    ), after


def _checked_figures(figures: object, agents: Sequence[str], owner: str) -> dict[str, dict[str, float]]:
    if not isinstance(figures, Mapping) or not set(figures) <= set(agents):
        got = sorted(map(str, figures)) if isinstance(figures, Mapping) else type(figures).__name__
        raise MethodError(
            f"{owner}: figures: got {got}, expected {{agent: {{name: number}}}}; use run_figures for the whole step"
        )
    return {agent: _numbers(of_agent, owner, f"figures of {agent}") for agent, of_agent in figures.items()}


def _numbers(values: object, owner: str, what: str) -> dict[str, float]:
    """Figures as finite Python floats."""
    if not isinstance(values, Mapping):
        raise MethodError(f"{owner}: {what} are {type(values).__name__}, expected a mapping of names to numbers")
    for name, value in values.items():
        if not isinstance(name, str) or not isinstance(value, numbers.Real) or not math.isfinite(value):
            raise MethodError(f"{owner}: {what}: {name!r} is {value!r}, expected a finite number")
    return {str(name): float(value) for name, value in values.items()}


def _check_column(column: object, num_rows: int, what: str, *, is_scored_R: NDArray[np.bool_] | None = None) -> None:
    expected = f"expected a float array of shape ({num_rows},), one number per response"
    if not isinstance(column, np.ndarray):
        raise MethodError(f"{what} is {type(column).__name__}, {expected}")
    if column.dtype.kind != "f" or column.shape != (num_rows,):
        raise MethodError(f"{what} is {column.dtype} of shape {column.shape}, {expected}")
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
    batches, after = _pair(owner, lambda: builder.build(history, state))
    minibatches = [
        _sequence(batch, RowKey, owner, "row keys") for batch in _sequence(batches, object, owner, "mini-batches")
    ]
    if not minibatches or not all(minibatches):
        got = "an empty mini-batch" if minibatches else "no mini-batches"
        raise MethodError(f"{owner}: returned {got}, expected mini-batches with rows; leave empty ones out")
    for batch in minibatches:
        if len(set(batch)) < len(batch):
            twice = next(key for number, key in enumerate(batch) if key in batch[:number])
            raise MethodError(f"{owner}: a mini-batch contains {twice} twice; take it once, or in two mini-batches")
    taken = list(itertools.chain.from_iterable(minibatches))
    known: set[RowKey] = set()
    for step, agent in {(key.step, key.agent): None for key in taken}:
        if agent not in history.sources:
            key, allowed = next(key for key in taken if key.agent == agent), ", ".join(history.sources)
            raise MethodError(
                f"{owner}: took {key}, expected rows of {allowed}; other agents' rows need method.shares_rollouts=true"
            )
        if not 1 <= step <= history.step:
            key = next(key for key in taken if key.step == step)
            raise MethodError(f"{owner}: took {key}, expected steps from 1 to {history.step}")
        known.update(history.responses(step, agent).row_keys())
    for key in taken:
        if key not in known:
            raise MethodError(f"{owner}: took {key}, expected a response of that step; see `history.responses`")
    return minibatches, after


def checked_log_centers(
    objective: Objective, first: Mapping[str, NDArray[np.float64]], state: State
) -> tuple[dict[str, float], State]:
    """An objective's log-ratios to subtract, by agent, and its next state.

    Raises:
        MethodError: it raised an error, or returned anything but one finite number for each agent in `first`.
    """
    owner = f"method.objective ({objective.name}): log_centers"
    centers, after = _pair(owner, lambda: objective.log_centers(first, state))
    found = _numbers(centers, owner, "centers")
    if set(found) != set(first):
        raise MethodError(f"{owner}: got centers of {sorted(found)}, expected of {sorted(first)}; return one for each")
    return found, after


def _pair(owner: str, call: Callable[[], Any]) -> tuple[Any, Any]:
    """The pair that a seam's method returned."""
    returned = called(owner, call)
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise MethodError(f"{owner}: returned {type(returned).__name__}, expected a tuple of its result and its state")
    return returned


def called(owner: str, call: Callable[[], Any]) -> Any:
    """What a seam's method returned.

    Raises:
        MethodError: it raised an error.
        MemoryError, torch.OutOfMemoryError: the machine's memory was short, which a retry may survive.
    """
    try:
        return call()
    except (HacpoError, MemoryError):
        raise
    except Exception as error:
        if type(error).__name__ == TORCH_OUT_OF_MEMORY:
            raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename}, line {last.lineno}"
        raise MethodError(f"{owner}: {type(error).__name__}: {error} ({where}); fix the class") from error


def _sequence(value: object, kind: type[_T], owner: str, what: str) -> list[_T]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise MethodError(f"{owner}: returned {type(value).__name__}, expected a list of {what}")
    for each in value:
        if not isinstance(each, kind):
            raise MethodError(
                f"{owner}: got {each!r} of type {type(each).__name__} in a list, expected {what} only; leave it out"
            )
    return list(value)
