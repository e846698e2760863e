"""The rules that judge a training while it runs, for `hacpo health`."""

from __future__ import annotations

from flows.planning.reference import Entry
from hacpo_core.phases.health_rules import RULES


def health_entries() -> list[Entry]:
    """An entry for each rule: when it holds, what it reads, and what to do."""
    return [
        Entry("health", rule.name, f"holds when {rule.criterion}", (f"Reads: {', '.join(rule.metrics)}", rule.remedy))
        for rule in RULES.values()
    ]
