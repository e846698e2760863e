"""The default builder: every row of the step once, problems in random order, cut into mini-batches."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hacpo_core.config.fields import setting
from hacpo_core.methods.base import State, why_no_partners
from hacpo_core.methods.build import Builder, History
from hacpo_core.records import RowKey
from hacpo_core.seeds import generator

if TYPE_CHECKING:
    from hacpo_core.config import ExperimentConfig

Groups = dict[tuple[str, str], list[RowKey]]
"""rows by agent and problem"""


def _why_no_order(builder: Shuffled, config: ExperimentConfig) -> str | None:
    return None if builder.order == "length" else why_no_partners(builder, config)


@dataclass(frozen=True)
class Shuffled(Builder):
    """Every row of the step in exactly one mini-batch. The order depends on (seed, step, learner) only.

    The problems are shuffled once and all sources follow that order, so that a mini-batch contains whole groups if the
    sizes allow it. `mixed` makes mini-batches of equal size in which the sources' shares differ by at most one row.
    `own_first` makes mini-batches of the learner's own rows, then mini-batches of the others', problem by problem.
    `length` sorts all rows by the number of sampled tokens, and cuts every other row of that order, followed by the
    rest in reverse.

    Source: HACPO Eq. 53 (mixed); official code (own_first); original code, which balances ranks by length (length).
    """

    problems: int = setting(
        64, "size of a mini-batch: problems x rollout.num_samples responses", at_least=1, at_most=1e9
    )
    order: str = setting(
        "mixed",
        "which rows share a mini-batch",
        choices={
            "mixed": "every source, in equal shares",
            "own_first": "one source each: own mini-batches, then the others'",
            "length": "responses of similar length: the shortest in the first and the last, the longest in the middle "
            "(original code)",
        },
        inert=_why_no_order,
    )

    drops_equal_rewards: bool = setting(
        False, "leave out problems whose rewards are equal over all sources, unless this holds for every problem (DAPO)"
    )

    reads_partners = False

    @property
    def takes_old_rows(self) -> bool:
        """False: it takes rows of the current step only."""
        return False

    @property
    def drops_by_reward(self) -> bool:
        """True with `drops_equal_rewards`."""
        return self.drops_equal_rewards

    def num_updates(self, *, num_rows: int, num_samples: int, num_sources: int) -> int:
        """As many full mini-batches as all rows make, at least one."""
        return max(1, num_rows // (self.problems * num_samples))

    def why_unfit(
        self, *, num_problems: int, num_samples: int, samples_per_problem: int, num_sources: int
    ) -> str | None:
        """A mini-batch size that does not divide the rows of a step."""
        num_own_groups = num_problems * samples_per_problem // num_samples
        num_groups = num_own_groups if self.order == "own_first" else num_own_groups * num_sources
        if num_groups % self.problems == 0:
            return None
        nearest = next(size for size in range(min(self.problems, num_groups), 0, -1) if num_groups % size == 0)
        return (
            f"problems: got {self.problems}, expected a divisor of the {num_groups} problem groups that a learner "
            f"trains on per step; set it to {nearest}, for example"
        )

    def groups(self, history: History) -> Groups:
        """The rows to train on."""
        groups: Groups = {}
        for agent in history.sources:
            for key in history.responses(history.step, agent).row_keys():
                groups.setdefault((agent, key.problem_id), []).append(key)
        return _with_spread(groups, history) if self.drops_equal_rewards else groups

    def updates_of(self, groups: Groups, history: History) -> int:
        """Number of mini-batches that these rows make."""
        num_rows = sum(map(len, groups.values()))
        return self.num_updates(num_rows=num_rows, num_samples=history.num_samples, num_sources=len(history.sources))

    def build(self, history: History, state: State) -> tuple[Sequence[Sequence[RowKey]], State]:
        """Mini-batches of the rows of `groups`."""
        groups = self.groups(history)
        return self.minibatches(groups, self.updates_of(groups, history), history), state

    def minibatches(self, groups: Groups, num_updates: int, history: History) -> list[list[RowKey]]:
        """The rows in `num_updates` mini-batches, problem by problem in the step's random order."""
        learner, *partners = history.sources
        shuffle = generator(history.seed, "minibatch", history.step, history.learner)
        order = [history.problem_ids[p] for p in shuffle.permutation(len(history.problem_ids)).tolist()]
        if self.order == "own_first" and partners:
            own_keys = [key for problem in order for key in groups.get((learner, problem), [])]
            partner_keys = [key for problem in order for agent in partners for key in groups.get((agent, problem), [])]
            num_own_updates = max(1, num_updates * len(own_keys) // (len(own_keys) + len(partner_keys)))
            return [*_cut(own_keys, num_own_updates), *_cut(partner_keys, max(1, num_updates - num_own_updates))]
        keys = []
        for problem in order:
            of_sources = [groups.get((agent, problem), []) for agent in history.sources]
            keys += [key for turn in itertools.zip_longest(*of_sources) for key in turn if key is not None]
        if self.order == "length":
            num_tokens = _num_tokens(history)
            keys.sort(key=num_tokens.__getitem__)
            return _cut([*keys[::2], *keys[1::2][::-1]], num_updates)
        place = {agent: position for position, agent in enumerate(history.sources)}
        return [sorted(piece, key=lambda key: place[key.agent]) for piece in _cut(keys, num_updates)]


def _num_tokens(history: History) -> dict[RowKey, int]:
    """Sampled tokens of each response of the step."""
    num_tokens: dict[RowKey, int] = {}
    for agent in history.sources:
        responses = history.responses(history.step, agent)
        num_tokens |= zip(responses.row_keys(), responses.token_ids.lengths.tolist(), strict=True)
    return num_tokens


def _with_spread(groups: Groups, history: History) -> Groups:
    """Groups of problems that have different rewards over all sources; all groups if no problem has."""
    rewards: dict[str, set[float]] = {}
    for agent in history.sources:
        for problem_id, reward in history.responses(history.step, agent).ordinary_rewards():
            rewards.setdefault(problem_id, set()).add(reward)
    groups_with_spread = {group: keys for group, keys in groups.items() if len(rewards.get(group[1], ())) > 1}
    return groups_with_spread or groups


def _cut(keys: Sequence[RowKey], num_pieces: int) -> list[list[RowKey]]:
    """Consecutive pieces whose lengths differ by at most one, fewer than `num_pieces` if some would be empty."""
    edges = [len(keys) * piece // num_pieces for piece in range(num_pieces + 1)]
    return [list(keys[start:end]) for start, end in itertools.pairwise(edges) if start < end]
