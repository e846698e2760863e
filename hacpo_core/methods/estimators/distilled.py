"""On-policy distillation: the strongest agent scores every token that a weaker agent sampled.

Shapes: A agent, R response of one agent, N token of its responses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hacpo_core import algo
from hacpo_core.config.fields import setting, when
from hacpo_core.methods.base import Estimate, ScoredStep, State
from hacpo_core.methods.estimators.capability import CapabilityEstimator
from hacpo_core.methods.estimators.groups import rectangle_of
from hacpo_core.records import Problem
from hacpo_core.responses import ORDINARY

RESPONSE = "{response}"
"""placeholder of a response in the texts that show it to a teacher"""
_shows_nothing = when("method.estimate.shows_answers", False)


@dataclass(frozen=True)
class Distilled(CapabilityEstimator):
    """Token advantage weight (lambda log pi_teacher - (lambda - 1) log pi_initial - log pi_old), lambda: extrapolation.

    The teacher is the most capable agent of the step; pi_initial is the learner's model before training.

    Capability is defined as in `capability`, averaged over its window. The most capable agent has no teacher and trains
    on verified rewards. So do all agents in a step whose capabilities are equal.

    Source: on-policy distillation (GKD, 2306.13649, reverse KL on the learner's own samples); lambda other than 1:
    G-OPD, above 1 ExOPD (2602.12125). Ours: the teacher is a partner that trains too; spans of text where tokenizers
    differ; see docs/decisions.md#on-policy-distillation. With `shows_answers`: MOPD (2605.12652). Ours there: the
    shortest right and wrong response of the group, the wording, and a teacher that is a partner.
    """

    teacher_weight: float = setting(
        1.0, "advantage per nat of difference between teacher and learner", above=0, at_most=1e3
    )
    extrapolation: float = setting(
        1.0,
        "lambda: factor of the teacher's difference from the learner's initial model; above 1, the learner goes beyond "
        "its teacher (ExOPD); other values than 1 need the initial model in memory",
        above=0,
        at_most=100,
    )
    centres: bool = setting(
        True,
        "subtract the mean over the agent's tokens of the step, which reduces noise and keeps the expected gradient",
    )
    max_difference: float = setting(
        10.0, "bound on a token's difference: clipped to +- this value, in nats", above=0, at_most=1e3
    )
    keeps_rewards: bool = setting(False, "keep the advantages of verified rewards on rows that a teacher scores")

    shows_answers: bool = setting(
        False,
        "the teacher's prompt also holds the shortest other right and wrong response of the learner's group (MOPD)",
    )
    max_shown_tokens: int = setting(
        4096,
        "longest such prompt in the teacher's tokens; behind a longer one the response is scored with the plain prompt",
        unit="tokens",
        at_least=1,
        at_most=1e7,
        inert=_shows_nothing,
    )
    success_from: float = setting(1.0, "smallest reward of a right response", above=0, at_most=1, inert=_shows_nothing)
    right_text: str = setting(
        "A correct solution of this problem, for reference:\n{response}",
        "follows the problem in the teacher's prompt; {response} is replaced by a right response",
        contains=RESPONSE,
        inert=_shows_nothing,
    )
    wrong_text: str = setting(
        "A wrong solution of this problem, whose mistakes are to be avoided:\n{response}",
        "follows in the teacher's prompt; {response} is replaced by a wrong response",
        contains=RESPONSE,
        inert=_shows_nothing,
    )

    reads_partners = True
    has_teachers = True

    @property
    def max_teacher_prompt_tokens(self) -> int | None:
        """The limit of prompts with answers; None without them."""
        return self.max_shown_tokens if self.shows_answers else None

    def teachers(self, scored: ScoredStep, state: State) -> Mapping[str, str]:
        """The most capable agent, for all less capable ones."""
        batch_A = self.batch_capability(rectangle_of(scored))
        smoothed_A = algo.capability.windowed_capability(
            np.array([self.window_of(scored, batch_A, state)[agent] for agent in scored.agents]).T
        )
        capability = dict(zip(scored.agents, smoothed_A.tolist(), strict=True))
        best = max(capability, key=lambda agent: capability[agent])
        return {agent: best for agent, value in capability.items() if value < capability[best]}

    def teacher_problems(
        self, scored: ScoredStep, learner: str, teacher: str, problems: Sequence[Problem]
    ) -> Sequence[Problem]:
        """The problem with a right and a wrong response of the learner's own group, as far as there are others.

        Of each kind it is the shortest in the learner's tokens (the first of equally long ones), because its prompt is
        most likely to fit `max_shown_tokens`. Only ordinary, scored responses with a text are shown, and none with the
        text of the response that is scored, which the teacher would only copy.
        """
        if not self.shows_answers:
            return problems
        responses, reward_R = scored.responses[learner], scored.raw_reward_R(learner)
        answers = [text.strip() for text in responses.text]
        groups: dict[tuple[str, bool], dict[str, None]] = {}  # answers, the shortest first
        for row in np.lexsort((responses.sample_R, responses.token_ids.lengths)).tolist():
            if responses.tag[row] == ORDINARY and answers[row] and not np.isnan(reward_R[row]):
                group = groups.setdefault((responses.problem_id[row], bool(reward_R[row] >= self.success_from)), {})
                group.setdefault(answers[row])
        texts = ((True, self.right_text), (False, self.wrong_text))
        teacher_problems = []
        for problem, answer in zip(problems, answers, strict=True):
            parts = [
                (text, next((other for other in groups.get((problem.id, is_right), {}) if other != answer), None))
                for is_right, text in texts
            ]
            paragraphs = [text.replace(RESPONSE, other_answer) for text, other_answer in parts if other_answer]
            teacher_problems.append(_with_parts(problem, paragraphs))
        return teacher_problems

    def token_advantage(self, difference_N: NDArray[np.float64]) -> NDArray[np.float64]:
        """Clipped, centred and weighted differences; 0 for tokens that the teacher did not score."""
        cut_N = difference_N.clip(-self.max_difference, self.max_difference)
        is_scored_N = ~np.isnan(difference_N)
        mean = float(cut_N[is_scored_N].mean()) if self.centres and is_scored_N.any() else 0.0
        return self.teacher_weight * np.where(is_scored_N, cut_N - mean, 0.0)

    def estimate(self, scored: ScoredStep, state: State) -> tuple[Estimate, State]:
        """Advantages of rewards for agents without a teacher; with `keeps_rewards`, for all agents."""
        estimate, next_state = super().estimate(scored, state)
        teacher_of = {} if self.keeps_rewards else self.teachers(scored, state)
        carried = {
            learner: {
                source: replace(column, advantage_R=np.zeros(len(column.advantage_R)))
                if learner in teacher_of
                else column
                for source, column in source_columns.items()
            }
            for learner, source_columns in estimate.carried.items()
        }
        return replace(estimate, carried=carried), next_state


def _with_parts(problem: Problem, parts: Sequence[str]) -> Problem:
    """The problem with paragraphs after its last message."""
    *earlier_messages, last_message = problem.messages
    content = "\n\n".join([last_message.content, *parts])
    return replace(problem, messages=(*earlier_messages, replace(last_message, content=content)))
