"""Pairs of answers, and a cache of the decided ones: the same pair is never compared twice."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from hacpo_core.records import VerdictStatus


@dataclass(frozen=True, slots=True, order=True)
class Pair:
    """A candidate and the gold answer that it is compared with; the other fields are those of `records.Gold`."""

    candidate: str
    gold: str
    unit: str = ""
    tolerance: float = 0.0
    is_multiple: bool = False


class DecisionCache:
    """The decided pairs last used, at most `num_entries` of them; an unscored pair is not decided and never kept."""

    def __init__(self, *, num_entries: int) -> None:
        self._num_entries = num_entries
        self._decisions: OrderedDict[Pair, VerdictStatus] = OrderedDict()

    def get(self, pair: Pair) -> VerdictStatus | None:
        """Decision on a pair, None where there is none."""
        if pair in self._decisions:
            self._decisions.move_to_end(pair)
        return self._decisions.get(pair)

    def put(self, pair: Pair, status: VerdictStatus) -> None:
        """Keep a decision."""
        if status == "unscored":
            return
        self._decisions[pair] = status
        if len(self._decisions) > self._num_entries:
            self._decisions.popitem(last=False)
