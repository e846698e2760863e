"""Cache of verdicts, so that the same pair of answers is not compared twice."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from hacpo_core.records import VerdictStatus


@dataclass(frozen=True, slots=True, order=True)
class Pair:
    """A candidate and the gold answer it is compared with; for the other fields see `records.Gold`."""

    candidate: str
    gold: str
    unit: str = ""
    tolerance: float = 0.0


class DecisionCache:
    """LRU cache of at most `num_entries` verdicts; unscored pairs are not cached."""

    def __init__(self, *, num_entries: int) -> None:
        self._num_entries = num_entries
        self._decisions: OrderedDict[Pair, VerdictStatus] = OrderedDict()

    def get(self, pair: Pair) -> VerdictStatus | None:
        """The cached status of a pair, or None."""
        if pair in self._decisions:
            self._decisions.move_to_end(pair)
        return self._decisions.get(pair)

    def put(self, pair: Pair, status: VerdictStatus) -> None:
        """Cache a status."""
        if status == "unscored":
            return
        self._decisions[pair] = status
        if len(self._decisions) > self._num_entries:
            self._decisions.popitem(last=False)
