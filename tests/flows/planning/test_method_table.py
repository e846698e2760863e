"""The table of all methods: it comes from their files and classes, and nothing is left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.planning.declarations import available
from flows.planning.method_table import markdown, method_rows, print_methods
from hacpo_core.methods.registry import SHIPPED

pytestmark = pytest.mark.slow

DOCUMENT = Path(__file__).parents[3] / "docs" / "methods.md"


def test_document_is_up_to_date() -> None:
    assert DOCUMENT.read_text("utf-8") == markdown(), "run `python -m flows.planning.method_table > docs/methods.md`"


def test_every_method_has_a_sentence_and_its_seams() -> None:
    rows = {row.name: row for row in method_rows()}
    assert set(rows) == set(available("method"))
    assert all(row.about.endswith(".") for row in rows.values())
    assert rows["gmpo"].parts == {
        "plan": "every_problem",
        "estimate": "group",
        "build": "shuffled",
        "objective": "gmpo",
    }
    assert all(row.source.endswith(".") and not row.source.startswith("#") for row in rows.values())
    assert rows["rloo"].source == "RLOO (2402.14740)."
    assert "method.objective.cross_floor" in rows["hacpo"].fields
    assert "method.objective.kl_coef" not in rows["hacpo"].fields, "all have it"
    assert rows["naive"].shares and not rows["dapo"].shares


def test_every_implementation_names_its_source() -> None:
    for of_seam in SHIPPED.values():
        for name, implementation in of_seam.items():
            assert "Source: " in (implementation.__doc__ or ""), name


def test_methods_are_printed_and_listed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_methods(as_json=False)
    printed = capsys.readouterr().out
    assert "cispo  (own rollouts; estimate group, objective cispo)" in printed
    assert "Source: MiniMax-M1 (2506.13585)." in printed
    assert "Fields: method.plan.factor" in printed
    print_methods(as_json=True)
    assert {row["name"] for row in json.loads(capsys.readouterr().out)} == set(available("method"))
