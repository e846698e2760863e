"""The page about health: it is what the rules say."""

from __future__ import annotations

from pathlib import Path

from flows.planning.health_table import markdown
from hacpo_core.phases.health_rules import RULES

DOCUMENT = Path(__file__).parents[3] / "docs" / "health.md"


def test_document_is_up_to_date() -> None:
    assert DOCUMENT.read_text("utf-8") == markdown(), "run `python -m flows.planning.health_table > docs/health.md`"


def test_every_rule_has_a_row_with_its_remedy() -> None:
    rows = {line.split("`")[1]: line for line in markdown().splitlines() if line.startswith("| `")}
    assert list(rows) == list(RULES)
    assert all(rows[name].endswith(f"| {rule.remedy} |") for name, rule in RULES.items())
