"""The ordinary builder: all rows of the step once, problems shuffled, cut into mini-batches."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hacpo_core.config.fields import setting
from hacpo_core.methods.base import Builder, History, State, without_others
from hacpo_core.records import RowKey
from hacpo_core.seeds import generator


@dataclass(frozen=True)
class Shuffled(Builder):
    """Every row of the step in exactly one mini-batch: a function of (seed, step, learner) alone.

    The problems are shuffled once and all sources follow that order, so that a mini-batch holds whole groups wherever
    the numbers allow it. `mixed` deals mini-batches of one size in which the sources' shares differ by one row at most;
    `own_first` cuts the learner's own rows first, then the others', problem by problem.

    Source: HACPO Eq. 53 (mixed); official code (own_first).
    """

    problems: int = setting(64, "a mini-batch holds problems x rollout.num_samples responses", at_least=1, at_most=1e9)
    order: str = setting(
        "mixed",
        "which rows share a mini-batch",
        choices={"mixed": "the same share of every source in each", "own_first": "own mini-batches, then the others'"},
        inert=without_others,
    )

    drops_equal_rewards: bool = setting(
        False, "leave out problems whose rewards are all equal, over all sources, unless that is every problem (DAPO)"
    )

    @property
    def reads_partners(self) -> bool:
        """No."""
        return False

    @property
    def mixes_sources(self) -> bool:
        """Not with `own_first`."""
        return self.order == "mixed"

    def num_updates(self, *, num_rows: int, num_samples: int) -> int:
        """As many mini-batches as all rows fill, at least one."""
        return max(1, num_rows // (self.problems * num_samples))

    def problem_with(
        self, *, num_problems: int, num_samples: int, samples_per_problem: int, num_sources: int
    ) -> str | None:
        """A size that does not divide the rows of a step."""
        own = num_problems * samples_per_problem // num_samples
        groups = own if self.order == "own_first" else own * num_sources
        if groups % self.problems == 0:
            return None
        return (
            f"problems: got {self.problems}, which does not divide the {groups} problem groups that a learner is given "
            "per step; set it to a divisor"
        )

    def build(self, history: History, state: State) -> tuple[Sequence[Sequence[RowKey]], State]:
        """All rows of the step."""
        own, *others = history.sources
        of_group: dict[tuple[str, str], list[RowKey]] = {}
        for agent in history.sources:
            for key in history.responses(history.step, agent).row_keys():
                of_group.setdefault((agent, key.problem_id), []).append(key)
        if self.drops_equal_rewards:
            of_group = _with_spread(of_group, history)
        shuffle = generator(history.seed, "minibatch", history.step, history.learner)
        order = [history.problem_ids[p] for p in shuffle.permutation(len(history.problem_ids)).tolist()]
        num_rows = sum(map(len, of_group.values()))
        num_updates = self.num_updates(num_rows=num_rows, num_samples=history.num_samples)
        if self.order == "own_first" and others:
            first = [key for problem in order for key in of_group.get((own, problem), [])]
            then = [key for problem in order for agent in others for key in of_group.get((agent, problem), [])]
            share = num_updates // len(history.sources)
            return [*_cut(first, share), *_cut(then, num_updates - share)], state
        together = []
        for problem in order:
            groups = [of_group.get((agent, problem), []) for agent in history.sources]
            together += [key for turn in itertools.zip_longest(*groups) for key in turn if key is not None]
        place = {agent: position for position, agent in enumerate(history.sources)}
        return [sorted(piece, key=lambda key: place[key.agent]) for piece in _cut(together, num_updates)], state


def _with_spread(
    of_group: Mapping[tuple[str, str], list[RowKey]], history: History
) -> dict[tuple[str, str], list[RowKey]]:
    """Groups of problems with more than one reward over all sources; all of them where no problem has."""
    rewards: dict[str, set[float]] = {}
    for agent in history.sources:
        for problem_id, reward in history.responses(history.step, agent).ordinary_rewards():
            rewards.setdefault(problem_id, set()).add(reward)
    kept = {group: keys for group, keys in of_group.items() if len(rewards.get(group[1], ())) > 1}
    return kept or dict(of_group)


def _cut(keys: Sequence[RowKey], num_pieces: int) -> list[list[RowKey]]:
    """Consecutive pieces whose lengths differ by one at most."""
    edges = [len(keys) * piece // num_pieces for piece in range(num_pieces + 1)]
    return [list(keys[start:end]) for start, end in itertools.pairwise(edges)]
