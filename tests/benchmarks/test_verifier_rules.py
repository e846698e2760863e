"""The study of the verifier's rules names patterns and functions by text, so that it can replace them."""

from __future__ import annotations

from benchmarks.studies.verifier_rules import FUNCTIONS, PATTERNS


def test_every_rule_of_the_study_exists() -> None:
    missing = [rule for rule, (module, name, *_) in {**PATTERNS, **FUNCTIONS}.items() if not hasattr(module, name)]
    assert missing == []
