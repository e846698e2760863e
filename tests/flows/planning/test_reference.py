"""What `hacpo fields`, `methods` and `health` print comes from the declarations, and nothing is left out."""

import pytest

from flows.planning.compose import compose
from flows.planning.declarations import available
from flows.planning.reference import (
    all_fields,
    entries_named,
    entries_of,
    field_entries,
    health_entries,
    method_entries,
    part_entries,
    print_entries,
)
from hacpo_core.config import as_dict, flatten
from hacpo_core.config.fields import fields_of
from hacpo_core.errors import ConfigError
from hacpo_core.phases.health_rules import RULES


def test_every_field_of_a_configuration_is_in_the_table_with_a_sentence() -> None:
    for method in ("hacpo", "grpo"):
        # a mapping without keys of its own, such as chat_template_kwargs, is a field, as a section that is null
        for name in flatten(as_dict(compose("tiny", method))):
            assert any(name == field.name or field.pattern.fullmatch(name) for field in all_fields()), name
    assert all(field.declared.about for field in all_fields())


def test_table_and_filled_configuration_agree_on_identity() -> None:
    table = {field.name: field for field in all_fields()}
    filled = [field for field in fields_of(compose("tiny", "hacpo")) if field.name in table]
    assert len(filled) > 80
    assert {f.name for f in filled if f.is_identity} == {f.name for f in filled if table[f.name].is_identity}
    assert not table["runtime.runs_dir"].is_identity
    assert table["optimizer.learning_rate"].is_identity


def test_entries_are_printed_and_an_unknown_name_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    entries = entries_named(field_entries(), "method.objective.cross_f")
    print_entries(entries, "text")
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("method.objective.cross_floor (float, in [0, 1]; default 0.8)")
    assert "[cross_clip, self_normalised]" in text
    print_entries(entries, "markdown")
    assert capsys.readouterr().out.startswith("## method\n\n### method.objective.cross_floor\n\nfloat, in [0, 1];")
    with pytest.raises(ConfigError, match="got 'nothign', but no name and no description has it; sections are"):
        entries_named(field_entries(), "nothign")


def test_letters_of_the_paper_lead_to_their_fields() -> None:
    found = [entry.name for word in ("alpha", "delta_step", "K") for entry in entries_named(field_entries(), word)]
    assert found == ["method.objective.cross_exponent", "method.objective.cross_step", "method.estimate.window"]


def test_every_method_and_part_has_its_sentence_and_source() -> None:
    entries = {entry.name: entry for entry in method_entries()}
    assert set(entries) == set(available("method"))
    for entry in entries.values():
        assert entry.paragraphs[0].endswith(".") and entry.paragraphs[1].startswith("Source: "), entry.name
    assert entries["dapo"].note.startswith("own rollouts; plan dynamic_sampling, estimate group, build shuffled")
    assert "method.estimate.overlong_share=0.2" in entries["dapo"].paragraphs[2]
    assert [entry.name for entry in part_entries() if "Source: " not in entry.paragraphs[0]] == []
    parts = ["every_problem", "capability", "shuffled", "cross_clip"]
    assert [entry.name for entry in entries_of("hacpo")] == ["hacpo", *parts]
    assert [entry.section for entry in entries_of("cross_clip")] == ["objective"]


def test_every_rule_of_health_has_its_remedy() -> None:
    assert [(entry.name, entry.paragraphs[1]) for entry in health_entries()] == [
        (rule.name, rule.remedy) for rule in RULES.values()
    ]
