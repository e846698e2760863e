"""Decisions that hold for good: the same candidate and gold answer are never compared twice."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from hacpo_core.records import VerdictStatus
from hacpo_core.verify.process import Pair


@dataclass(frozen=True, slots=True)
class Decision:
    """What is known of a pair; `reason` says why it is unscored, else ""."""

    status: VerdictStatus
    reason: str = ""


class DecisionCache:
    """The decided pairs last used, at most `num_entries` of them; an unscored pair is not decided and never kept."""

    def __init__(self, *, num_entries: int) -> None:
        self._num_entries = num_entries
        self._decisions: OrderedDict[Pair, Decision] = OrderedDict()
        self.hits = 0
        self.misses = 0

    def __len__(self) -> int:
        return len(self._decisions)

    def get(self, pair: Pair) -> Decision | None:
        """Decision on a pair; counts a hit or a miss."""
        decision = self._decisions.get(pair)
        if decision is None:
            self.misses += 1
            return None
        self.hits += 1
        self._decisions.move_to_end(pair)
        return decision

    def put(self, pair: Pair, decision: Decision) -> None:
        """Keep a decision, unless it is none."""
        if decision.status == "unscored":
            return
        self._decisions[pair] = decision
        if len(self._decisions) > self._num_entries:
            self._decisions.popitem(last=False)
