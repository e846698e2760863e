"""Phase teach.<agent>: the agent's teacher, if the estimator names one, scores every token of its responses.

Shapes: R response, N token (of one response, or of all, one after another), M token of a response in the teacher's
tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hacpo_core.columns import Ragged
from hacpo_core.data.tokens.alignment import Aligner
from hacpo_core.experiment import Experiment
from hacpo_core.methods.checks import checked_teachers
from hacpo_core.phases.advantage import scored_step
from hacpo_core.phases.agent_at import agent_at
from hacpo_core.records import PhaseCost, Problem
from hacpo_core.responses import Responses
from hacpo_core.store.ledger import TaughtBatch


def teach(experiment: Experiment, step: int, agent: str, problems: Sequence[Problem]) -> None:
    """Commit, for each token of an agent, its log-probability under the teacher minus that under the agent.

        log pi_teacher - log pi_old

    An agent without a teacher commits an empty record.

    Raises:
        MethodError: the estimator failed, or named a teacher that does not exist.
    """
    if experiment.ledger.has(step, f"teach.{agent}"):
        return
    scored = scored_step(experiment, step, problems)
    state_before = experiment.state_before(step, "advantage")
    teacher = checked_teachers(experiment.method.estimate, scored, state_before).get(agent)
    responses, cost = scored.responses[agent], PhaseCost(0.0)
    difference = Ragged.from_lengths(np.empty(0), np.zeros(len(responses), np.int64))
    if teacher is not None:
        learner_tokens, tokens = (experiment.placement.tokenizers[name] for name in (agent, teacher))
        converted = experiment.retokenizer(learner_tokens, tokens).convert(responses)
        rows = np.flatnonzero(
            (converted.lengths > 0) & (converted.lengths <= experiment.config.rollout.max_response_tokens)
        )
        scores: dict[int, NDArray[np.float32]] = {}
        if len(rows):
            prompts = [tokens.prompt_ids(experiment.problem(problem_id)) for problem_id in responses.problem_id]
            translated = _with_teacher_tokens(responses, prompts, converted).take(rows)
            with agent_at(experiment, teacher, step - 1) as (placed, watch):
                scores = dict(zip(rows.tolist(), placed.score(translated), strict=True))
            cost = watch.cost()
        difference = _differences(experiment, responses, teacher, converted, scores)
    experiment.ledger.save_taught(step, agent, TaughtBatch(teacher, difference, cost))


def _with_teacher_tokens(responses: Responses, prompts: Sequence[tuple[int, ...]], token_ids: Ragged) -> Responses:
    """The responses with the teacher's prompts and tokens; their log-probabilities are placeholders."""
    placeholders = Ragged(np.zeros(len(token_ids.value_N), np.float32), token_ids.edge)
    return replace(responses, prompt_ids=Ragged.of(prompts, np.int32), token_ids=token_ids, logprobs=placeholders)


def _differences(
    experiment: Experiment,
    responses: Responses,
    teacher: str,
    converted: Ragged,
    scores: Mapping[int, NDArray[np.float32]],
) -> Ragged:
    """Teacher's minus own log-probability of each token; nan where the teacher did not score it.

    Args:
        experiment: whose tokenizers these are.
        responses: the agent's.
        teacher: its name.
        converted: the responses in its tokens.
        scores: log-probabilities of these tokens by response.
    """
    learner, teacher_tokenizer = (experiment.placement.tokenizers[name] for name in (responses.agent, teacher))
    aligner = Aligner(
        learner.tokenizer, teacher_tokenizer.tokenizer, own_eos=learner.eos_ids, other_eos=teacher_tokenizer.eos_ids
    )
    is_same, differences = experiment.retokenizer(learner, teacher_tokenizer).is_pass_through, []
    for row, (ids, logprobs) in enumerate(zip(responses.token_ids, responses.logprobs, strict=True)):
        own_N, difference_N = logprobs.astype(np.float64), np.full(len(ids), np.nan)
        other_M = scores[row].astype(np.float64) if row in scores else np.empty(0)
        if is_same:
            difference_N[: len(other_M)] = other_M - own_N[: len(other_M)]
        elif row in scores:
            difference_N = aligner.difference(ids, own_N, converted[row], other_M)
        differences.append(difference_N)
    return Ragged.of(differences, np.float64)
