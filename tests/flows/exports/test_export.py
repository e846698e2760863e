"""Exported agents: the checkpoint's weights, a card that says what they are, and no folder that is half written."""

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from flows.exports.export import CARD_FILE, export_agent, model_card
from flows.planning.compose import compose
from flows.planning.plans import Plan, find_plan, plan, save_plan
from flows.runs.experiment import run_experiment
from flows.runs.results import read_final
from hacpo_core.config import as_dict
from hacpo_core.data.prompts import render_prompts
from hacpo_core.errors import ConfigError, StoreError
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.placement.agent_tokenizer import AgentTokenizer
from hacpo_core.placement.agents import Agent
from hacpo_core.placement.checkpoints import latest_checkpoint, load_agent, saved_model
from hacpo_core.placement.initial_model import InitialModel
from hacpo_core.records import Message

pytestmark = pytest.mark.system
SETTINGS = ("train.num_steps=2", "checkpoint.every=1", "evaluate.during=[]", "evaluate.final=[test]")
KILLED = """
import os, signal, sys
from pathlib import Path
import flows.exports.export
from flows.planning.plans import find_plan
inner, calls = flows.exports.export.copy_checked, []
def killed(source, target, *, digest):
    inner(source, target, digest=digest)
    calls.append(target)
    if len(calls) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
flows.exports.export.copy_checked = killed
flows.exports.export.export_agent(find_plan(Path(sys.argv[1]), sys.argv[2]), "qwen", Path(sys.argv[3]))
"""


def trained_in(runs_dir: Path, small_models: Path, *overrides: str) -> Plan:
    (runs_dir / "models").symlink_to(small_models / "models")
    words = [f"runtime.runs_dir={runs_dir}", "tracking.enabled=false", *SETTINGS, *overrides]
    planned = plan(compose(str(small_models / "small.yaml"), "hacpo", overrides=words))
    save_plan(planned)
    run_experiment(planned, DirectRunner())
    return planned


@pytest.fixture(scope="module")
def trained(small_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """An experiment with checkpoints after steps 1 and 2, for all tests that change nothing in it."""
    return trained_in(tmp_path_factory.mktemp("export"), small_models)


@pytest.fixture
def own(trained: Plan, tmp_path: Path) -> Plan:
    """A copy of it, for tests that do."""
    shutil.copytree(trained.root, tmp_path / "runs" / "experiments" / trained.id)
    return find_plan(tmp_path / "runs", trained.id)


def agent_of(planned: Plan, name: str, step: int) -> Agent:
    config = planned.config
    initial = InitialModel(name, config.pair.agents[name], Path(config.runtime.runs_dir) / "models").make()
    tokens = AgentTokenizer(name, config.pair.agents[name], initial=initial)
    return load_agent(tokens, latest_checkpoint(planned.root, at_most=step, end=step), config=config, initial=initial)


def check_same_logits(planned: Plan, name: str, folder: Path, step: int) -> None:
    agent = agent_of(planned, name, step)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ids_BT = torch.tensor([tokenizer("1+2=3; 7-4=3")["input_ids"]])
    with torch.no_grad():
        expected, found = (each(input_ids=ids_BT, use_cache=False).logits for each in (agent.learner.model, model))
    agent.close()
    assert float(expected.std()) > 0.1
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("step", [1, 2])
def test_exported_model_has_the_logits_of_the_agent_in_the_checkpoint(trained: Plan, tmp_path: Path, step: int) -> None:
    done = export_agent(trained, "qwen", tmp_path / "model", step=step)
    assert done.step == step
    check_same_logits(trained, "qwen", done.folder, step)


def test_last_checkpoint_is_exported_unless_a_step_is_named(trained: Plan, tmp_path: Path) -> None:
    last = export_agent(trained, "qwen", tmp_path / "last")
    earlier = export_agent(trained, "qwen", tmp_path / "earlier", step=1)
    assert (last.step, earlier.step) == (2, 1)
    one, other = (load_file(done.folder / "model.safetensors") for done in (last, earlier))
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_adapters_are_merged_into_exported_weights(small_models: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="needs the lora extra")
    words = ("engine.lora.rank=2", "optimizer.learning_rate=1e-2", "train.num_steps=1")
    planned = trained_in(tmp_path, small_models, *words)
    done = export_agent(planned, "qwen", tmp_path / "model")
    check_same_logits(planned, "qwen", done.folder, 1)
    initial = InitialModel("qwen", planned.config.pair.agents["qwen"], tmp_path / "models").make()
    before, after = load_file(initial / "model.safetensors"), load_file(done.folder / "model.safetensors")
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed and all("_proj" in name for name in changed)


def test_exported_tokenizer_writes_prompts_as_in_training(trained: Plan, tmp_path: Path) -> None:
    done = export_agent(trained, "llama", tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(done.folder)
    agent = agent_of(trained, "llama", 2)
    agent.close()
    message = Message("user", "12-(4+5)")
    (expected,) = render_prompts(agent.tokens.tokenizer, [(message,)], arguments=agent.tokens.template_arguments)
    chat = [{"role": message.role, "content": message.content}]
    found = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert tuple(found) == tuple(expected)
    assert tokenizer.decode(tokenizer("12-9=3")["input_ids"], skip_special_tokens=True) == "12-9=3"
    assert tokenizer.eos_token_id == agent.tokens.tokenizer.eos_token_id


def test_card_holds_configuration_and_figures(trained: Plan, tmp_path: Path) -> None:
    done = export_agent(trained, "qwen", tmp_path / "model")
    card = (done.folder / CARD_FILE).read_text(encoding="utf-8")
    front = yaml.safe_load(card.split("---\n")[1])
    assert front["library_name"] == "transformers"
    assert front["tags"] == ["hacpo", "reinforcement-learning", "rlvr"]
    assert f"experiment `{trained.id}` after training step 2 of 2" in card
    fenced = re.search(r"```yaml\n(.*)```\n$", card, re.DOTALL)
    assert fenced is not None
    assert yaml.safe_load(fenced[1]) == as_dict(trained.config)
    final = read_final(trained.root)
    assert final is not None
    (row,) = [row for row in final.table if row["agent"] == "qwen"]
    assert re.search(rf"test, avg@1, 8 problems \| {row['test_before']:.4f} \(.*\| {row['test_after']:.4f} \(", card)


def test_card_names_base_models_of_the_hub_alone(trained: Plan) -> None:
    config, model = trained.config, saved_model(trained.root, 2, "qwen")
    cards = {}
    for path in ("Qwen/Qwen3-1.7B-Base", "/models/own"):
        qwen = replace(config.pair.agents["qwen"], tiny=None, path=path)
        single = replace(trained, config=replace(config, pair=replace(config.pair, agents={"qwen": qwen})))
        cards[path] = model_card(single, "qwen", model)
        assert f"It started from `{path}` after a supervised warm-up and was trained" in cards[path]
        assert "alone. Prompts" in cards[path]
    front = [yaml.safe_load(card.split("---\n")[1]).get("base_model") for card in cards.values()]
    assert front == ["Qwen/Qwen3-1.7B-Base", None]


def test_passwords_do_not_reach_the_card(trained: Plan) -> None:
    tracking = replace(trained.config.tracking, uri="postgresql://someone:secret@host/mlflow")
    tracked = replace(trained, config=replace(trained.config, tracking=tracking))
    card = model_card(tracked, "qwen", saved_model(trained.root, 2, "qwen"))
    assert "postgresql://someone:…@host/mlflow" in card
    assert "secret" not in card


def test_mistake_is_one_sentence_and_leaves_no_folder(trained: Plan, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/file").touch()
    with pytest.raises(ConfigError, match="agent 'nobody': expected one of qwen, llama, the agents of small-hacpo-s0-"):
        export_agent(trained, "nobody", tmp_path / "x")
    with pytest.raises(ConfigError, match="--step: got 7, but small-hacpo-s0-"):
        export_agent(trained, "qwen", tmp_path / "x", step=7)
    for name in ("taken", "taken/file"):
        with pytest.raises(ConfigError, match="exists and is not an empty folder; name another one"):
            export_agent(trained, "qwen", tmp_path / name)
    with pytest.raises(StoreError, match="Not a directory; name another folder"):
        export_agent(trained, "qwen", tmp_path / "taken/file/x")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "taken"]


def test_experiment_without_checkpoint_is_named(own: Plan, tmp_path: Path) -> None:
    shutil.rmtree(own.root / "checkpoints")
    with pytest.raises(StoreError, match=f"{own.id} has no checkpoint; train it first: hacpo resume {own.id}"):
        export_agent(own, "qwen", tmp_path / "model")


def test_altered_weights_are_refused_and_leave_nothing(own: Plan, tmp_path: Path) -> None:
    path = own.root / "checkpoints" / "000002" / "qwen" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    (tmp_path / "out").mkdir()
    with pytest.raises(StoreError, match=r"model.safetensors has digest \w{12}, expected \w{12}: it was changed"):
        export_agent(own, "qwen", tmp_path / "out" / "model")
    assert list((tmp_path / "out").iterdir()) == []
    assert export_agent(own, "qwen", tmp_path / "out" / "model", step=1).step == 1


def test_full_disk_is_said_and_leaves_nothing(trained: Plan, small_disk: Callable[[str], Path]) -> None:
    folder = small_disk("64k")
    with pytest.raises(StoreError, match=r"cannot write .*model: the disk is full; free some space"):
        export_agent(trained, "qwen", folder / "model")
    assert list(folder.iterdir()) == []


def test_killed_export_leaves_no_folder_and_is_repeated(trained: Plan, tmp_path: Path) -> None:
    words = [trained.config.runtime.runs_dir, trained.id, str(tmp_path / "model")]
    done = subprocess.run([sys.executable, "-c", KILLED, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (tmp_path / "model").exists()
    assert [path.name[:7] for path in tmp_path.iterdir()] == [".model."]
    assert export_agent(trained, "qwen", tmp_path / "model").step == 2
