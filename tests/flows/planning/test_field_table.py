"""The table of all fields: what it says comes from the declarations, and nothing is left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.planning.compose import compose
from flows.planning.field_table import about, all_fields, fields_under, markdown, print_fields
from hacpo_core.config import as_dict, flatten
from hacpo_core.config.fields import fields_of
from hacpo_core.errors import ConfigError

DOCUMENT = Path(__file__).parents[3] / "docs" / "fields.md"


def test_document_is_up_to_date() -> None:
    assert DOCUMENT.read_text("utf-8") == markdown(), "run `python -m flows.planning.field_table > docs/fields.md`"


@pytest.mark.parametrize("method", ["hacpo", "gspo", "grpo", "naive"])
def test_every_field_of_a_configuration_is_in_the_table_with_a_sentence(method: str) -> None:
    config = compose("tiny", method)
    names = flatten(as_dict(config))
    described = about(names)
    # a mapping without keys of its own, such as chat_template_kwargs, is a field, as a section that is null
    assert set(names) == set(described)
    assert all(described.values())


def test_table_and_filled_configuration_agree_on_identity() -> None:
    table = {field.name: field for field in all_fields()}
    filled = [field for field in fields_of(compose("tiny", "hacpo")) if field.name in table]
    assert len(filled) > 80
    # one that was added later joins the id with another value than its default
    always = [field for field in filled if not field.declared.added_later]
    assert {f.name for f in always if f.is_identity} == {f.name for f in always if table[f.name].is_identity}
    assert not table["runtime.runs_dir"].is_identity
    assert table["optimizer.learning_rate"].is_identity


def test_field_that_two_implementations_have_shows_the_choices_of_both() -> None:
    (field,) = fields_under("method.estimate.baseline")
    assert list(field.declared.choices) == ["own", "pooled", "capability"]


def test_fields_are_printed_with_type_range_default_and_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    print_fields("method.objective.cross_f", as_json=False)
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("method.objective.cross_floor (float, in [0, 1]; default 0.8)")
    assert "[cross_clip, self_normalised]" in text
    print_fields("engine.device", as_json=True)
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["name"], row["type"], row["default"], row["is_identity"]) == ("engine.device", "text", "cpu", True)
    with pytest.raises(ConfigError, match="got 'nothing', but no field begins with that; sections are seed,"):
        print_fields("nothing", as_json=False)
