"""The second part of a method: advantage and weight of each row for each learner.

Shapes: R response of one agent, N token of one agent's responses.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hacpo_core.methods.base import MethodPart, State
from hacpo_core.responses import Responses


@dataclass(frozen=True, slots=True)
class ScoredStep:
    """All agents' verified responses of a step.

    Attributes:
        step: 1-based.
        problem_ids: of the step's problems, in order.
        responses: by agent, with verdicts.
        seed: the experiment's.
        max_response_tokens: `rollout.max_response_tokens`.
        shaped_R: shaped rewards from `Estimator.shape`, by agent.
    """

    step: int
    problem_ids: tuple[str, ...]
    responses: Mapping[str, Responses]
    seed: int
    max_response_tokens: int = 0
    shaped_R: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    @property
    def agents(self) -> tuple[str, ...]:
        """Names, in order."""
        return tuple(self.responses)

    def raw_reward_R(self, agent: str) -> NDArray[np.float64]:
        """Verified rewards, the basis of capabilities, means and standard deviations; nan where unscored."""
        return self.responses[agent].raw_reward_R

    def reward_R(self, agent: str) -> NDArray[np.float64]:
        """Rewards that advantages are computed from: the shaped ones if the agent has any, else the raw ones."""
        return self.shaped_R[agent] if agent in self.shaped_R else self.raw_reward_R(agent)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Result of an estimator.

    Attributes:
        advantages: advantage of each response, by learner and source; 0 where unscored. A learner needs an entry for
            itself and one for each agent whose rows its builder takes.
        weights: factors of the advantages, by learner and source; 1 for those left out.
        figures: metrics to log, by agent and name.
        run_figures: metrics to log for the step as a whole.
    """

    advantages: Mapping[str, Mapping[str, NDArray[np.float64]]]
    weights: Mapping[str, Mapping[str, NDArray[np.float64]]] = field(default_factory=dict)
    figures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    run_figures: Mapping[str, float] = field(default_factory=dict)

    def weight_R(self, learner: str, source: str) -> NDArray[np.float64]:
        """Weights of one agent's responses for one learner."""
        weight_R = self.weights.get(learner, {}).get(source)
        return np.ones(len(self.advantages[learner][source])) if weight_R is None else weight_R


@dataclass(frozen=True)
class Estimator(MethodPart):
    """Advantage and weight of each row for each learner."""

    def shape(self, scored: ScoredStep) -> Mapping[str, NDArray[np.float64]]:
        """Rewards that advantages are computed from, by agent, such as raw rewards minus a penalty; nan where unscored.

        Agents that are left out keep their raw rewards. Both kinds are stored and passed to `estimate`.
        """
        return {}

    def why_unfit(self, *, num_samples: int) -> str | None:
        """Why the fields do not fit `rollout.num_samples`, as "field: got ..., expected ..."; None if they fit.

        Args:
            num_samples: responses of an agent to a problem, according to the plan.
        """
        return None

    @property
    def has_teachers(self) -> bool:
        """Whether `teachers` may name any. If so, a step has a teach phase per agent."""
        return False

    def teachers(self, scored: ScoredStep, state: State) -> Mapping[str, str]:
        """For each learner, the agent that scores the tokens of its responses; learners without one are left out.

        Args:
            scored: the step, before rewards are shaped.
            state: the same as for `estimate`.
        """
        return {}

    def token_advantage(self, difference_N: NDArray[np.float64]) -> NDArray[np.float64]:
        """Term added to the advantage of each token.

        Args:
            difference_N: log-probability under the teacher minus that under the learner's old policy, nats. If the
                tokenizers differ, it is per span of text that consists of whole tokens of both
                (`hacpo_core.data.tokens.alignment`). nan where the teacher did not score the token.
        """
        return np.nan_to_num(difference_N)

    @abstractmethod
    def estimate(self, scored: ScoredStep, state: State) -> tuple[Estimate, State]:
        """Advantages and weights from the verified responses of all agents, and the next state."""
