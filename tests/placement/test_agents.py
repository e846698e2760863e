"""What of an agent can be had without its weights, and an agent whose sampler fails."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flows.planning.plans import Plan
from flows.runs.experiment import run_experiment
from hacpo_core.config import AgentConfig, ExperimentConfig
from hacpo_core.data.prompts import format_messages
from hacpo_core.engines.learning.torch_learner import TorchLearner
from hacpo_core.engines.models.lora import save_model
from hacpo_core.engines.sampling.base import Sampled
from hacpo_core.engines.sampling.transformers_sampler import TransformersSampler
from hacpo_core.errors import ConfigError, EngineError
from hacpo_core.experiment import Experiment
from hacpo_core.phases.runner import DirectRunner, Handle, Phase
from hacpo_core.placement.agent_tokenizer import AgentTokenizer
from hacpo_core.records import Gold, Problem, StepSearch
from hacpo_core.store.steps import StepStore
from tests import tokenizers_zoo as zoo
from tests.data.test_prompts import thinking_tokenizer
from tests.engines.small import TOKENIZER, small_model
from tests.experiments_outcome import outcome

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


def with_ends(
    folder: Path, *, eos: str, end: str, config: list[str], generation: list[str], on: bool = True
) -> list[str]:
    """End tokens of an agent, the one of retokenised responses first.

    Its tokenizer has `eos`, its template ends turns with `end`, and its two configurations name other end tokens.
    """
    tokenizer = zoo.byte_level()
    tokenizer.eos_token = eos
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.content }}" + end + "{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>{% endif %}"
    )
    tokenizer.save_pretrained(folder)
    for name, tokens in (("config.json", config), ("generation_config.json", generation)):
        ids = tokenizer.convert_tokens_to_ids(tokens)
        (folder / name).write_text(json.dumps({"model_type": "qwen2", "eos_token_id": ids}))
    found = AgentTokenizer("qwen", AgentConfig(path=str(folder)), initial=folder, stops_at_turn_end=on)
    assert found.end_id in found.eos_ids
    return tokenizer.convert_ids_to_tokens([found.end_id, *sorted(found.eos_ids - {found.end_id})])


A, B, BOX = "<|endoftext|>", "<|im_end|>", "<|box|>"


@pytest.mark.parametrize(
    ("end", "config", "generation", "expected"),
    [
        (B, [], [], [B, A]),
        (B, [A], [A], [B, A]),
        (B, [A, B], [A, BOX], [B, A, BOX]),
        (A, [A, B], [], [A, B]),
        ("", [A, B], [], [A, B]),
        (" the end", [], [B], [A, B]),
    ],
)
def test_token_that_the_template_writes_after_a_turn_ends_responses(
    end: str, config: list[str], generation: list[str], expected: list[str], tmp_path: Path
) -> None:
    """As Qwen's base models: EOS is A, the template ends turns with B."""
    assert with_ends(tmp_path, eos=A, end=end, config=config, generation=generation) == expected


@pytest.mark.parametrize(("generation", "expected"), [([], [A]), ([B], [B, A])])
def test_without_the_field_responses_end_as_the_folder_says(
    generation: list[str], expected: list[str], tmp_path: Path
) -> None:
    """Retokenised responses then end as the agent's own do: in B only where B ends these."""
    assert with_ends(tmp_path, eos=A, end=B, config=[], generation=generation, on=False) == expected


@pytest.mark.slow
def test_padded_vocabularies_sample_what_their_tokenizer_has_and_share_it(
    small_plan: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two models of one tokenizer, with 40 and with 64 rows: as Qwen2.5's of 3 B and of 7 B."""
    words = []
    for name, num_rows in (("qwen", 40), ("llama", 64)):
        model = small_model(gain=1.0)
        model.resize_token_embeddings(num_rows, mean_resizing=False)
        save_model(model, tmp_path / name)
        TOKENIZER.save_pretrained(tmp_path / name)
        words.append(f"pair.agents.{name}={{path: {tmp_path / name}, tiny: null, warm_up: null}}")
    words += ["train.num_steps=1", "evaluate.during=[]", "evaluate.final=[]"]
    planned = small_plan("hacpo", *words)
    run_experiment(planned, DirectRunner())
    store = StepStore(planned.root)
    for name in ("qwen", "llama"):
        ids = store.read_table(1, f"rollout.{name}", f"rollouts.{name}.parquet")["token_ids"]
        assert max(map(max, ids)) < len(TOKENIZER) < 40
        kinds = store.read_table(1, f"update.{name}", f"update.{name}.parquet")["agent"]
        assert set(kinds) <= {"qwen", "llama"}

    def foreign(sampler: TransformersSampler, requests: Any, *_: Any, **__: Any) -> Sampled:
        return Sampled.of([([50], [-1.0], True)] * len(requests))

    monkeypatch.setattr(TransformersSampler, "sample", foreign)
    other = small_plan("hacpo", *words, "seed=1")
    with pytest.raises(
        EngineError, match="qwen: transformers sampled the token id 50, expected one of the tokenizer's"
    ):
        run_experiment(other, DirectRunner())
    assert StepStore(other.root).committed(1) == (), "nothing foreign is committed"


@pytest.mark.slow
def test_agent_whose_sampler_failed_is_restored_before_it_works_again(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its engine may have stopped: vLLM's is closed by the failure, so that a retry with the same agent cannot work."""
    caplog.set_level("INFO")
    words = ("train.num_steps=2", "evaluate.during=[]", "evaluate.final=[]")
    planned = small_plan("hacpo", *words)
    run_experiment(planned, DirectRunner())
    expected = outcome(planned)
    shutil.rmtree(planned.root)
    again = small_plan("hacpo", *words)
    samples, calls = TransformersSampler.sample, []

    def sample(self: TransformersSampler, *arguments: Any, **options: Any) -> Sampled:
        calls.append(self)
        if len(calls) == 3:  # the first agent's second step
            raise EngineError("its process died")
        return samples(self, *arguments, **options)

    class Retrying(DirectRunner):
        def start(self, phase: Phase, work: Callable[[], None], *, after: Sequence[Handle] = ()) -> Handle:
            try:
                return super().start(phase, work, after=after)
            except EngineError:
                return super().start(phase, work, after=after)

    monkeypatch.setattr(TransformersSampler, "sample", sample)
    run_experiment(again, Retrying())
    assert outcome(again) == expected
    assert calls[3] is not calls[2]
    assert "restoring agent qwen to weights version 1" in caplog.text


def test_update_that_finds_no_memory_names_the_fields_that_save_some(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    def update(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has 79.2 GiB.")

    monkeypatch.setattr(TorchLearner, "update", update)
    message = r"agent qwen: CUDA out of memory\. .* 2.00 GiB\. Set engine.gradient_checkpointing=true or lower engine"
    with pytest.raises(EngineError, match=message):
        run_experiment(small_plan("hacpo", "train.num_steps=1", "evaluate.during=[]"), DirectRunner())
