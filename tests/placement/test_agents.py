"""What of an agent can be had without its weights."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hacpo_core.config import AgentConfig, ExperimentConfig
from hacpo_core.data.prompts import format_messages
from hacpo_core.errors import ConfigError
from hacpo_core.experiment import Experiment
from hacpo_core.placement.agent_tokenizer import AgentTokenizer
from hacpo_core.records import Gold, Problem, StepSearch
from tests import tokenizers_zoo as zoo
from tests.data.test_prompts import thinking_tokenizer

PROBLEM = Problem("p", format_messages("{problem}", "1 + 1?", None), Gold("2"), "s")


def agent(folder: Path, name: str = "qwen", **arguments: Any) -> AgentTokenizer:
    """An agent whose chat template reads enable_thinking."""
    thinking_tokenizer().save_pretrained(folder)
    return AgentTokenizer(name, AgentConfig(path=str(folder), chat_template_kwargs=arguments), initial=folder)


def test_every_prompt_of_an_agent_is_written_with_its_arguments(tmp_path: Path) -> None:
    thinks, silent = agent(tmp_path), agent(tmp_path, enable_thinking=False)
    texts = [zoo.decoded(tokens.tokenizer, tokens.prompt_ids(PROBLEM)) for tokens in (thinks, silent)]
    assert texts[1] == texts[0] + "<think></think>\n"
    assert agent(tmp_path, enable_thinking=None).prompt_ids(PROBLEM) == thinks.prompt_ids(PROBLEM)


def test_argument_that_the_folders_template_never_reads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"pair.agents.qwen.chat_template_kwargs.thinking cannot take effect"):
        agent(tmp_path, thinking=False)


def test_ids_are_passed_as_they_are_only_between_templates_with_equal_arguments(tmp_path: Path) -> None:
    thinks, also, silent = agent(tmp_path), agent(tmp_path, "b"), agent(tmp_path, "c", enable_thinking=False)
    experiment: Any = SimpleNamespace(config=ExperimentConfig(), _retokenizers={})
    assert Experiment.retokenizer(experiment, thinks, also).is_pass_through
    assert not Experiment.retokenizer(experiment, thinks, silent).is_pass_through


def test_mark_ends_the_reasoning_only_where_the_template_leaves_it_to_the_response(tmp_path: Path) -> None:
    thinks, silent = agent(tmp_path), agent(tmp_path, enable_thinking=False)
    text = [thinks.tokenizer.convert_tokens_to_ids(token) for token in thinks.tokenizer.tokenize("\\boxed{1}</think>2")]
    search = StepSearch(2, 4, 8, "\n\n", "</think>")
    found = [tokens.step_reader(search).read([], "", text).text for tokens in (thinks, silent)]
    assert found == ["\\boxed{1}</think>", "\\boxed{1}"]
    assert thinks.step_reader(search) is thinks.step_reader(search)
    unknown = StepSearch(2, 4, 8, "\n\n", "</reason>")
    assert thinks.step_reader(unknown).read([], "", text).text == "\\boxed{1}", "the template knows no such mark"
