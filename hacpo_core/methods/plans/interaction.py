"""ILR's dynamic interaction: some own responses are sampled behind a partner's idea."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hacpo_core.config.fields import setting
from hacpo_core.methods.base import PlanTask, SampleSpec, State
from hacpo_core.methods.plans.every_problem import EveryProblem
from hacpo_core.records import Problem
from hacpo_core.seeds import generator

INTERACTION = "interaction"
"""tag of such responses"""
COOPERATE = "{problem}\n\nAnother solver thought:\n{idea}\n\nUse what is right in it and solve the problem."
COMPETE = (
    "{problem}\n\nAnother solver answered:\n{idea}\n\nFind what is wrong or weak in it and solve the problem better."
)


@dataclass(frozen=True)
class Interaction(EveryProblem):
    """The usual number of responses, the last `num_interactive` of them behind a partner's answer to the problem.

    In the second round the prompt holds a partner's response, drawn by the seed. The agent cooperates with it where its
    chance of solving the problem alone is below one half, else it competes:

        chance = 1 / (1 + exp(-1.7 (ability - difficulty)))

    Such rows carry the tag `interaction`: they get an advantage and count in no statistic, since they are no samples of
    the policy that answers alone. They are the learner's own; methods that share rollouts refuse this plan.

    Source: ILR (2509.26306), dynamic interaction. Ours: ability and difficulty are log-odds of the first round's mean
    rewards, the words of the prompts, and one partner's idea in place of a discussion; see docs/decisions.md#ilr.
    """

    num_interactive: int = setting(
        2, "responses of each group that are sampled behind an idea", at_least=1, at_most=1e4
    )
    most_idea_chars: int = setting(
        2000, "characters of a partner's response that are quoted", unit="characters", at_least=1, at_most=1e7
    )

    @property
    def reads_partners(self) -> bool:
        """True: the other agents' responses matter."""
        return True

    @property
    def num_rounds(self) -> int:
        """Two: alone, then behind ideas."""
        return 2

    @property
    def changes_prompts(self) -> bool:
        """True: ideas stand in the prompts."""
        return True

    def problem_with(self, *, num_samples: int) -> str | None:
        """Something has to be sampled alone."""
        return self.too_few_ordinary("num_interactive", self.num_interactive, num_samples)

    def plan(self, task: PlanTask, state: State) -> tuple[Sequence[SampleSpec], State]:
        """Alone at first, then behind ideas; alone again where no partner wrote anything."""
        size = self.samples_per_problem(task.num_samples)
        alone = range(size - self.num_interactive)
        if task.round == 0:
            return [SampleSpec(problem, i, task.limits) for problem in task.problems for i in alone], state
        ability = _log_odds([reward for _, reward in task.verified[task.agent].ordinary_rewards()])
        ideas = _ideas(task)
        specs = []
        rewards = [responses.rewards_by_problem() for responses in task.verified.values()]
        for problem in task.problems:
            of_all = [reward for of_agent in rewards for reward in of_agent.get(problem.id, [])]
            difficulty = -_log_odds(of_all)
            cooperates = chance(ability, difficulty) < 0.5
            draw = generator(task.seed, INTERACTION, task.step, task.agent, problem.id)
            offered = ideas.get(problem.id, [])
            for i in range(len(alone), size):
                if not offered:
                    specs.append(SampleSpec(problem, i, task.limits))
                    continue
                idea = offered[int(draw.integers(len(offered)))][: self.most_idea_chars]
                asked = _with_idea(problem, idea, COOPERATE if cooperates else COMPETE)
                specs.append(SampleSpec(asked, i, task.limits, tag=INTERACTION))
        return specs, state


def chance(ability: float, difficulty: float) -> float:
    """Probability of solving a problem: 1 / (1 + exp(-1.7 (ability - difficulty)))."""
    return 1.0 / (1.0 + math.exp(-1.7 * (ability - difficulty)))


def _log_odds(rewards: Sequence[float]) -> float:
    """ln(p / (1 - p)) of the mean reward, with half a right and half a wrong answer added, so that it is finite."""
    right = sum(rewards) + 0.5
    return math.log(right / (len(rewards) + 1.0 - right))


def _ideas(task: PlanTask) -> dict[str, list[str]]:
    """Partners' responses by problem."""
    ideas: dict[str, list[str]] = {}
    for agent, responses in task.verified.items():
        for problem_id, text in zip(responses.problem_id, responses.text, strict=True):
            if agent != task.agent and text.strip():
                ideas.setdefault(problem_id, []).append(text)
    return ideas


def _with_idea(problem: Problem, idea: str, words: str) -> Problem:
    """The problem with its last message put into these words."""
    *before, last = problem.messages
    content = words.format(problem=last.content, idea=idea)
    return replace(problem, messages=(*before, replace(last, content=content)))
