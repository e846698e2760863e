"""ILR's dynamic interaction: some own responses are sampled from prompts that quote a partner's response."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hacpo_core.config.fields import setting
from hacpo_core.methods.base import State
from hacpo_core.methods.plan import PlanTask, SampleSpec
from hacpo_core.methods.plans.every_problem import EveryProblem
from hacpo_core.records import Problem
from hacpo_core.seeds import generator

INTERACTION = "interaction"
"""tag of responses whose prompt quotes a partner"""
COOPERATE = "{problem}\n\nAnother solver thought:\n{idea}\n\nUse what is right in it and solve the problem."
COMPETE = (
    "{problem}\n\nAnother solver answered:\n{idea}\n\nFind what is wrong or weak in it and solve the problem better."
)


@dataclass(frozen=True)
class Interaction(EveryProblem):
    """The usual number of responses; the prompts of the last `num_interactive` quote a partner's response.

    These are sampled in a second round, and the partner's response is drawn at random. The prompt asks the agent to
    cooperate if its chance of solving the problem alone is below one half, else to compete:

        chance = 1 / (1 + exp(-1.7 (ability - difficulty)))

    Such rows have the tag `interaction`. They get an advantage but do not count in group statistics, since they are not
    samples of the policy that answers alone. Only the agent itself trains on them; methods that share rollouts reject
    this plan.

    Source: ILR (2509.26306), dynamic interaction. Ours: ability and difficulty as log-odds of the first round's mean
    rewards, the wording of the prompts, and one partner's response instead of a discussion; see docs/decisions.md#ilr.
    """

    num_interactive: int = setting(
        2, "responses of each group whose prompt quotes a partner's response", at_least=1, at_most=1e4
    )
    max_idea_chars: int = setting(
        2000, "longest quotation of a partner's response", unit="characters", at_least=1, at_most=1e7
    )

    reads_partners = True
    num_rounds = 2
    """first without, then with quotations"""
    changes_prompts = True

    def why_unfit(self, *, num_samples: int) -> str | None:
        """At least one response per group must be sampled without a quotation."""
        return self.why_too_few_ordinary("num_interactive", self.num_interactive, num_samples)

    def plan(self, task: PlanTask, state: State) -> tuple[Sequence[SampleSpec], State]:
        """First without, then with quotations; without again if all partners' responses are empty."""
        size = self.samples_per_problem(task.num_samples)
        plain_samples = range(size - self.num_interactive)
        if task.round == 0:
            return [SampleSpec(problem, i, task.limits) for problem in task.problems for i in plain_samples], state
        ability = _log_odds([reward for _, reward in task.verified[task.agent].ordinary_rewards()])
        ideas = _ideas(task)
        specs = []
        rewards = [responses.rewards_by_problem() for responses in task.verified.values()]
        for problem in task.problems:
            problem_rewards = [reward for agent_rewards in rewards for reward in agent_rewards.get(problem.id, [])]
            difficulty = -_log_odds(problem_rewards)
            cooperates = chance(ability, difficulty) < 0.5
            draw = generator(task.seed, INTERACTION, task.step, task.agent, problem.id)
            partner_ideas = ideas.get(problem.id, [])
            for i in range(len(plain_samples), size):
                if not partner_ideas:
                    specs.append(SampleSpec(problem, i, task.limits))
                    continue
                idea = partner_ideas[int(draw.integers(len(partner_ideas)))][: self.max_idea_chars]
                prompt_problem = _with_idea(problem, idea, COOPERATE if cooperates else COMPETE)
                specs.append(SampleSpec(prompt_problem, i, task.limits, tag=INTERACTION))
        return specs, state


def chance(ability: float, difficulty: float) -> float:
    """Probability of solving a problem: 1 / (1 + exp(-1.7 (ability - difficulty)))."""
    return 1.0 / (1.0 + math.exp(-1.7 * (ability - difficulty)))


def _log_odds(rewards: Sequence[float]) -> float:
    """ln(p / (1 - p)) of the mean reward, with half a correct and half a wrong answer added to keep it finite."""
    num_correct = sum(rewards) + 0.5
    return math.log(num_correct / (len(rewards) + 1.0 - num_correct))


def _ideas(task: PlanTask) -> dict[str, list[str]]:
    """Partners' responses by problem."""
    ideas: dict[str, list[str]] = {}
    for agent, responses in task.verified.items():
        for problem_id, text in zip(responses.problem_id, responses.text, strict=True):
            if agent != task.agent and text.strip():
                ideas.setdefault(problem_id, []).append(text)
    return ideas


def _with_idea(problem: Problem, idea: str, template: str) -> Problem:
    """The problem with its last message inserted into the template, together with a partner's response."""
    *earlier_messages, last_message = problem.messages
    content = template.format(problem=last_message.content, idea=idea)
    return replace(problem, messages=(*earlier_messages, replace(last_message, content=content)))
