"""Names stay as they are written, and numbers are what they look like."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.planning.compose import compose, load_config, to_yaml
from flows.planning.yaml_scalars import quoted
from hacpo_core.errors import ConfigError


@pytest.mark.parametrize("name", ["on", "no", "1e5", "007", "010", "1.50", "1_000", "true", "True", "0x1f", "7", "1.5"])
def test_name_of_a_pair_stays_what_was_typed(name: str, tmp_path: Path) -> None:
    assert compose("tiny", "hacpo", overrides=[f"pair.name={name}"]).pair.name == name
    path = tmp_path / "mine.yaml"
    path.write_text(f"extends: tiny\npair: {{name: {name}}}\n", encoding="utf-8")
    config = compose(str(path), "hacpo")
    assert config.pair.name == name
    path.write_text(to_yaml(config), encoding="utf-8")
    assert load_config(path) == config, "a saved configuration is read as it was"


def test_names_in_lists_and_keys_stay_text(tmp_path: Path) -> None:
    (tmp_path / "pair.yaml").write_text(
        "extends: tiny\npair: {name: p}\ndata: {train: [007], sets: {007: {kind: arithmetic}}}\n", encoding="utf-8"
    )
    config = compose(str(tmp_path / "pair.yaml"), "hacpo")
    assert config.data.train == ["007"]
    assert list(config.data.sets) == ["007"]


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("train.num_steps=1e2", 100),
        ("train.num_steps=1_000", 1000),
        ("train.num_steps=0x1f", 31),
        ("train.num_steps=+3", 3),
        ("train.num_steps=007", 7),
        ("optimizer.learning_rate=1e-6", 1e-6),
        ("optimizer.learning_rate=.5", 0.5),
        ("tracking.enabled=off", False),
        ("tracking.enabled=True", True),
    ],
)
def test_numbers_and_truths_are_read_by_the_type_of_their_field(word: str, value: object) -> None:
    section, name = word.partition("=")[0].split(".")
    assert getattr(getattr(compose("tiny", "hacpo", overrides=[word]), section), name) == value


@pytest.mark.parametrize(("text", "number"), [("010", "8"), ("1:30", "90"), ("-012", "-10")])
def test_number_that_yaml_reads_otherwise_than_it_looks_is_refused(text: str, number: str, tmp_path: Path) -> None:
    message = rf"train.num_steps \(in {{}}\): got {text}, which YAML reads as {number}; write it as a decimal number"
    with pytest.raises(ConfigError, match=message.format("the command line")):
        compose("tiny", "hacpo", overrides=[f"train.num_steps={text}"])
    (tmp_path / "pair.yaml").write_text(f"extends: tiny\ntrain: {{num_steps: {text}}}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=message.format("pair .*pair.yaml")):
        compose(str(tmp_path / "pair.yaml"), "hacpo")


def test_values_without_a_type_are_left_to_yaml() -> None:
    word = "pair.agents.qwen-tiny.chat_template_kwargs.enable_thinking=off"
    assert compose("tiny", "hacpo", overrides=[word]).pair.agents["qwen-tiny"].chat_template_kwargs == {
        "enable_thinking": False
    }


def test_only_what_would_be_read_as_another_text_is_quoted() -> None:
    text = "a: &x on  # no\nb: [*x, 0.5, -3, true, null, 'off', 1.50]\nc: |\n  off\nchat_template_kwargs: {d: off}\n"
    expected = text.replace("&x on ", '&x "on" ').replace("1.50", '"1.50"')
    assert quoted(text) == expected
    for broken in ("a: [1", "[" * 5000, "a: *nowhere", ""):
        assert quoted(broken) == broken
