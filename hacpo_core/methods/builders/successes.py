"""A builder that takes only the correct responses of peers.

Shapes: R response of one agent.
"""

import itertools
from dataclasses import dataclass

from hacpo_core.config.fields import setting
from hacpo_core.methods.base import why_no_partners
from hacpo_core.methods.build import History
from hacpo_core.methods.builders.shuffled import Groups, Shuffled
from hacpo_core.records import RowKey
from hacpo_core.seeds import generator


@dataclass(frozen=True)
class PeerSuccesses(Shuffled):
    """All own rows and the peers' verified successes, in mini-batches as with `shuffled`.

    The own rows determine the number of mini-batches; peers' rows make them larger.

    Source: Mutual RL's SGT (2605.07244; every success); LUFFY (2504.14945; one per problem).
    """

    max_per_problem: int = setting(
        0,
        "most correct responses of peers per problem, drawn at random; 0: all of them",
        at_least=0,
        at_most=1e6,
        inert=why_no_partners,
    )

    success_from: float = setting(
        1.0, "smallest reward with which a peer's row is taken", above=0, at_most=1, inert=why_no_partners
    )

    needs_shared_rollouts = True

    def num_updates(self, *, num_rows: int, num_samples: int, num_sources: int) -> int:
        """As many full mini-batches as own rows make."""
        return super().num_updates(num_rows=num_rows // num_sources, num_samples=num_samples, num_sources=1)

    def why_unfit(
        self, *, num_problems: int, num_samples: int, samples_per_problem: int, num_sources: int
    ) -> str | None:
        """A mini-batch size that does not divide the own rows of a step, or mini-batches of peers' rows only."""
        if self.order == "own_first":
            return (
                "order: got own_first with builder peer_successes, whose mini-batches of peers' rows may be empty; set "
                "order=mixed"
            )
        return super().why_unfit(
            num_problems=num_problems, num_samples=num_samples, samples_per_problem=samples_per_problem, num_sources=1
        )

    def updates_of(self, groups: Groups, history: History) -> int:
        """As many full mini-batches as own rows make."""
        num_own = sum(len(keys) for (agent, _), keys in groups.items() if agent == history.learner)
        return super().num_updates(num_rows=num_own, num_samples=history.num_samples, num_sources=1)

    def groups(self, history: History) -> Groups:
        """Complete own groups, and the correct responses of the other agents."""
        correct_keys: set[RowKey] = set()
        for agent in history.sources[1:]:
            responses = history.responses(history.step, agent)
            right_R = responses.raw_reward_R >= self.success_from
            correct_keys |= set(itertools.compress(responses.row_keys(), right_R.tolist()))
        groups = super().groups(history)
        successes = {
            group: [key for key in keys if group[0] == history.learner or key in correct_keys]
            for group, keys in groups.items()
        }
        return self._drawn(successes, history) if self.max_per_problem else successes

    def _drawn(self, groups: Groups, history: History) -> Groups:
        drawn_keys: set[RowKey] = set()
        draw = generator(history.seed, "peer successes", history.step, history.learner)
        for problem_id in history.problem_ids:
            success_keys = [key for agent in history.sources[1:] for key in groups.get((agent, problem_id), [])]
            places = draw.permutation(len(success_keys))[: self.max_per_problem]
            drawn_keys |= {success_keys[place] for place in places.tolist()}
        return {
            group: keys if group[0] == history.learner else [key for key in keys if key in drawn_keys]
            for group, keys in groups.items()
        }
