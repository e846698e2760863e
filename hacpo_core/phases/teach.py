"""Phase teach.<agent>: the agent's teacher, if the estimator names one, scores every token of its responses.

Shapes: R response, N token (of one response, or of all, one after another), M token of a response in the teacher's
tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hacpo_core.columns import Ragged
from hacpo_core.data.tokens.alignment import Aligner
from hacpo_core.data.tokens.retokenize import SharedResponses
from hacpo_core.experiment import Experiment
from hacpo_core.methods.base import ScoredStep
from hacpo_core.methods.checks import checked_teacher_problems, checked_teachers
from hacpo_core.phases.advantage import scored_step
from hacpo_core.phases.with_agent import with_agent
from hacpo_core.records import PhaseCost, Problem
from hacpo_core.responses import Responses
from hacpo_core.store.ledger import PLAIN, SHOWN, TOO_LONG, TaughtBatch


def teach(experiment: Experiment, step: int, agent: str, problems: Sequence[Problem]) -> None:
    """Commit, for each token of an agent, its log-probability under the teacher minus that under the agent.

        lambda log pi_teacher - (lambda - 1) log pi_initial - log pi_old,   lambda: `Estimator.extrapolation`

    The teacher may read more than the problem before the response (`Estimator.teacher_problems`); the agent and its
    initial model read the problem alone. An agent without a teacher commits an empty record.

    Raises:
        MethodError: the estimator failed, named a teacher that does not exist, or returned invalid problems.
    """
    if experiment.ledger.has(step, f"teach.{agent}"):
        return
    scored = scored_step(experiment, step, problems)
    teacher = checked_teachers(experiment.method.estimate, scored, experiment.state_before(step, "advantage")).get(
        agent
    )
    own_responses = scored.responses[agent]
    prompt: tuple[str, ...] = ()
    if teacher is None:
        no_differences = Ragged.from_lengths(np.empty(0), np.zeros(len(own_responses), np.int64))
        experiment.ledger.save_taught(step, agent, TaughtBatch(None, no_differences, PhaseCost(0.0)))
        return
    factor = experiment.method.estimate.extrapolation
    subtrahend, costs = own_responses.behaviour_logprobs, list[PhaseCost]()
    if factor != 1:
        initial_logprobs, cost = with_agent(
            experiment, agent, step - 1, lambda placed: placed.score(own_responses, by_reference=True)
        )
        costs.append(cost)
        subtrahend = Ragged(
            subtrahend.value_N + (factor - 1) * initial_logprobs.value_N.astype(np.float64), subtrahend.edge
        )
    shared = _in_teachers_tokens(experiment, own_responses, teacher)
    scored_rows = np.flatnonzero((shared.token_ids.lengths > 0) & ~shared.is_truncated_R)
    scores: Sequence[NDArray[np.float32]] = []
    if len(scored_rows):
        prompts, kinds = _teacher_prompts(experiment, scored, agent, teacher)
        if experiment.method.estimate.max_teacher_prompt_tokens is not None:
            row_set = set(scored_rows.tolist())
            prompt = tuple(kind if row in row_set else "" for row, kind in enumerate(kinds))
        teacher_responses = _with_teacher_prompts(own_responses, prompts, shared).take(scored_rows)
        logprobs, cost = with_agent(experiment, teacher, step - 1, lambda placed: placed.score(teacher_responses))
        costs.append(cost)
        scores = list(logprobs)
    scaled_scores = {
        row: factor * row_scores.astype(np.float64)
        for row, row_scores in zip(scored_rows.tolist(), scores, strict=True)
    }
    difference = _differences(
        experiment, replace(own_responses, old_logprobs=subtrahend), teacher, shared, scaled_scores
    )
    experiment.ledger.save_taught(step, agent, TaughtBatch(teacher, difference, PhaseCost.total(costs), prompt))


def _in_teachers_tokens(experiment: Experiment, responses: Responses, teacher: str) -> SharedResponses:
    source, target = (experiment.placement.tokenizers[name] for name in (responses.agent, teacher))
    return experiment.retokenizer(source, target).convert(responses)


def _with_teacher_prompts(
    responses: Responses, prompts: Sequence[tuple[int, ...]], shared: SharedResponses
) -> Responses:
    """The responses with the teacher's prompts and tokens; their log-probabilities are placeholders."""
    placeholders = Ragged(np.zeros(len(shared.token_ids.value_N), np.float32), shared.token_ids.edge)
    return replace(
        responses,
        prompt_ids=Ragged.of(prompts, np.int32),
        token_ids=shared.token_ids,
        logprobs=placeholders,
        old_logprobs=None,
    )


def _teacher_prompts(
    experiment: Experiment, scored: ScoredStep, learner: str, teacher: str
) -> tuple[list[tuple[int, ...]], list[str]]:
    """The prompt of each of the learner's responses in the teacher's tokens, and its kind (`TaughtBatch.prompt`)."""
    estimator, tokens = experiment.method.estimate, experiment.placement.tokenizers[teacher]
    problems = [experiment.problem(problem_id) for problem_id in scored.responses[learner].problem_id]
    teacher_problems = checked_teacher_problems(estimator, scored, learner, teacher, problems)
    prompts, kinds = [tokens.prompt_ids(problem) for problem in problems], [PLAIN] * len(problems)
    rows = [
        row
        for row, (own_problem, teacher_problem) in enumerate(zip(problems, teacher_problems, strict=True))
        if own_problem.messages != teacher_problem.messages
    ]
    limit = estimator.max_teacher_prompt_tokens or 0
    for row, prompt in zip(rows, tokens.passing_prompt_ids([teacher_problems[row] for row in rows]), strict=True):
        if len(prompt) <= limit:
            prompts[row], kinds[row] = prompt, SHOWN
        else:
            kinds[row] = TOO_LONG
    return prompts, kinds


def _differences(
    experiment: Experiment,
    responses: Responses,
    teacher: str,
    shared: SharedResponses,
    scores: Mapping[int, NDArray[np.float64]],
) -> Ragged:
    """Teacher's minus own log-probability of each token; nan where the teacher did not score it.

    Args:
        experiment: whose tokenizers these are.
        responses: the agent's, with what is subtracted as old log-probabilities.
        teacher: its name.
        shared: the responses in its tokens.
        scores: log-probabilities of these tokens by response.
    """
    learner, teacher_tokenizer = (experiment.placement.tokenizers[name] for name in (responses.agent, teacher))
    aligner = Aligner(
        learner.tokenizer, teacher_tokenizer.tokenizer, own_eos=learner.eos_ids, other_eos=teacher_tokenizer.eos_ids
    )
    differences = []
    for row, (ids, logprobs) in enumerate(zip(responses.token_ids, responses.behaviour_logprobs, strict=True)):
        own_N, difference_N = logprobs.astype(np.float64), np.full(len(ids), np.nan)
        other_M = scores[row] if row in scores else np.empty(0)
        if shared.is_passed_through:
            difference_N[: len(other_M)] = other_M - own_N[: len(other_M)]
        elif row in scores:
            difference_N = aligner.difference(ids, own_N, shared.token_ids[row], other_M)
        differences.append(difference_N)
    return Ragged.of(differences, np.float64)
