"""Warmed model folders: made once, told apart by what they are made of, and trained on."""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from flows.planning.compose import compose, load_config
from flows.planning.plans import Plan, check_contents, initial_models, plan
from flows.records.watcher import Watcher
from flows.runs.experiment import run_experiment
from hacpo_core.config import AgentConfig, TinyModelConfig, WarmUpConfig
from hacpo_core.data.prompts import format_messages, render_prompts
from hacpo_core.engines.models.loading import load_tokenizer
from hacpo_core.errors import ConfigError, DataError, ModelError
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.placement.initial_model import MARKER_FILE, SHIPPED_MODELS, InitialModel
from hacpo_core.records import Message
from hacpo_core.store.steps import StepStore
from hacpo_core.warm_up.solutions import read_solutions, solution_rows
from tests.engines.small import TOKENIZER, small_model

WARM_UP = WarmUpConfig(
    kind="weak_driven", file="s.jsonl", template="{problem}", num_steps=3, batch_size=4, learning_rate=1e-2
)


def write_rows(folder: Path, *rows: dict[str, Any]) -> None:
    (folder / "s.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two models, `strong` and `weak`, and a file of four solutions."""
    for name, seed in (("strong", 0), ("weak", 1)):
        small_model(seed=seed).save_pretrained(tmp_path / name)
        TOKENIZER.save_pretrained(tmp_path / name)
    write_rows(tmp_path, *({"problem": f"{n}+1", "solution": f"{n}+1={n + 1}"} for n in range(4)))
    return tmp_path


def agent_of(folder: Path, **fields: Any) -> AgentConfig:
    values = {"weak": str(folder / "weak")} | fields
    return AgentConfig(path=str(folder / "strong"), warm_up=replace(WARM_UP, **values))


def make(folder: Path, agent: AgentConfig | None = None, **options: Any) -> Path:
    model = InitialModel("qwen", agent or agent_of(folder), folder / "models", data_dir=str(folder))
    return model.make(**options)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_rows_are_prompts_under_the_chat_template_and_solutions_with_eos(folder: Path) -> None:
    config = replace(WARM_UP, system="Calculate.", template="{problem}=")
    solutions = read_solutions("f", config, str(folder))
    assert solutions[2].messages == (Message("system", "Calculate."), Message("user", "2+1="))
    rows = solution_rows(TOKENIZER, solutions, end_id=EOS, arguments={})
    (prompt,) = render_prompts(TOKENIZER, [format_messages("{problem}=", "2+1", "Calculate.")])
    assert rows.prompts[int(rows.prompt_B[2])].tolist() == list(prompt)
    assert rows.responses[2].tolist() == [*TOKENIZER("2+1=3", add_special_tokens=False)["input_ids"], EOS]


EOS = TOKENIZER.eos_token_id


def test_control_token_in_a_solution_is_text(folder: Path) -> None:
    write_rows(folder, {"problem": "1", "solution": f"1{TOKENIZER.eos_token}2"})
    (ids,) = solution_rows(TOKENIZER, read_solutions("f", WARM_UP, str(folder)), end_id=EOS, arguments={}).responses
    assert ids.tolist().count(EOS) == 1
    assert ids[-1] == EOS


def test_second_call_takes_the_folder_that_the_first_made(folder: Path) -> None:
    shown: list[tuple[int, int, float]] = []
    made = make(folder, progress=lambda *values: shown.append(values))
    assert [values[:2] for values in shown] == [(1, 3), (2, 3), (3, 3)]
    before = {path.name: path.stat().st_mtime_ns for path in made.iterdir()}
    assert make(folder, progress=lambda *values: shown.append(values)) == made
    assert len(shown) == 3
    assert {path.name: path.stat().st_mtime_ns for path in made.iterdir()} == before
    assert load_tokenizer(made).get_vocab() == TOKENIZER.get_vocab()
    changed = [
        name for name, value in weights(made).items() if not torch.equal(value, weights(folder / "strong")[name])
    ]
    assert changed
    marker = json.loads((made / MARKER_FILE).read_text())
    assert (marker["num_examples"], marker["num_left_out"]) == (4, 0)
    assert marker["last_loss"] == pytest.approx(shown[-1][2])


def test_same_inputs_elsewhere_give_the_same_bits(folder: Path) -> None:
    made = make(folder)
    first = {path.name: path.read_bytes() for path in made.iterdir()}
    shutil.rmtree(made)
    shutil.move(folder / "weak", folder / "moved")
    torch.set_num_threads(2)
    again = make(folder, agent_of(folder, weak=str(folder / "moved")))
    assert torch.get_num_threads() == 2
    assert again == made
    assert {path.name: path.read_bytes() for path in again.iterdir()} == first


def change_weights(path: Path) -> None:
    save_file({name: value + 1 for name, value in load_file(path).items()}, path, metadata={"format": "pt"})


@pytest.mark.slow
@pytest.mark.parametrize("changed", ["strong", "weak", "file", "seed", "template", "chat_template"])
def test_whatever_changes_the_model_gives_another_folder(changed: str, folder: Path) -> None:
    first, agent = make(folder), agent_of(folder)
    if changed in ("strong", "weak"):
        change_weights(folder / changed / "model.safetensors")
    elif changed == "file":
        write_rows(folder, {"problem": "1", "solution": "2"})
    elif changed == "chat_template":
        agent = replace(agent, chat_template="{{ messages[-1].content }}=")
    else:
        agent = agent_of(folder, **{changed: {"seed": 1, "template": "{problem}="}[changed]})
    second = make(folder, agent)
    assert second != first
    assert not all(torch.equal(value, weights(second)[name]) for name, value in weights(first).items())


@pytest.mark.slow
def test_tiny_agent_begins_as_its_random_model_warmed_up(folder: Path) -> None:
    tiny = TinyModelConfig(hidden_size=16, num_layers=1, num_heads=2, num_kv_heads=1)
    sums = WarmUpConfig(source="arithmetic", template="{problem}", num_steps=2, num_demonstrations=8, batch_size=4)
    shown: list[tuple[int, int]] = []
    agent = AgentConfig(tiny=tiny, warm_up=sums)
    made = make(folder, agent, progress=lambda step, steps, loss: shown.append((step, steps)))
    assert shown == [(1, 2), (2, 2)]
    random = make(folder, replace(agent, warm_up=None))
    assert made.name.startswith(f"{random.name[:40]}-sft-")
    assert not all(torch.equal(value, weights(made)[name]) for name, value in weights(random).items())
    other = replace(agent, tiny=replace(tiny, seed=1))
    assert make(folder, other).name[:40] != made.name[:40]


KILLED = """
import os, signal, sys
from pathlib import Path
from hacpo_core.placement import initial_model
from tests.placement.test_initial_model import make
def progress(step, steps, loss):
    if step == 2 and sys.argv[2] == "training":
        os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "writing":
    initial_model.write_json = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
make(Path(sys.argv[1]), progress=progress)
"""


def test_models_of_the_pair_tiny_come_with_the_package(tmp_path: Path) -> None:
    models = initial_models(compose("tiny", "hacpo", overrides=[f"runtime.runs_dir={tmp_path}"])).values()
    assert {model.folder.name for model in models} == {folder.name for folder in SHIPPED_MODELS.iterdir()}

    class Begun(Exception):
        pass

    def first_step(step: int, num_steps: int, loss: float) -> None:
        raise Begun(loss)

    for model in models:
        marker = json.loads((model.make() / MARKER_FILE).read_text())
        with pytest.raises(Begun) as begun:
            model._warm_up(model.make_base(), tmp_path, first_step)
        assert begun.value.args[0] == pytest.approx(marker["first_loss"], rel=1e-3)


@pytest.mark.system
@pytest.mark.parametrize("when", ["writing", pytest.param("training", marks=pytest.mark.soak)])
def test_killed_warm_up_leaves_nothing_that_looks_whole(when: str, folder: Path) -> None:
    words = [sys.executable, "-c", KILLED, str(folder), when]
    assert subprocess.run(words, env=os.environ | {"PYTHONPATH": os.getcwd()}).returncode == -signal.SIGKILL
    assert [path.name for path in (folder / "models").iterdir() if not path.name.startswith(".")] == []
    made = make(folder)
    assert (made / MARKER_FILE).is_file()
    assert not list((folder / "models").glob(".*.tmp"))


def test_two_at_the_same_time_make_one_folder_once(folder: Path) -> None:
    """Locks of a file that is opened twice hold within a process as between two."""
    made: list[Path] = []
    steps: list[int] = []
    threads = [
        threading.Thread(target=lambda: made.append(make(folder, progress=lambda step, *_: steps.append(step))))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert steps == [1, 2, 3]
    assert len(made) == 2
    assert made[0] == made[1]


def test_folder_that_others_put_there_is_not_taken(folder: Path) -> None:
    made = make(folder)
    (made / MARKER_FILE).unlink()
    with pytest.raises(ModelError, match=r"is not the model of pair.agents.qwen.warm_up; remove the"):
        make(folder)


def test_long_examples_are_left_out_and_counted(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hacpo_core.placement.initial_model.MAX_TOKENS", 12)
    rows = [{"problem": "1", "solution": "1"}, {"problem": "1", "solution": "1+1+1+1+1+1+1+1"}]
    write_rows(folder, *rows)
    with caplog.at_level(logging.WARNING):
        made = make(folder, agent_of(folder))
    assert "pair.agents.qwen.warm_up: left out 1 of 2 examples with more than 12 tokens" in caplog.text
    marker = json.loads((made / MARKER_FILE).read_text())
    assert (marker["num_examples"], marker["num_left_out"]) == (1, 1)
    monkeypatch.setattr("hacpo_core.placement.initial_model.MAX_TOKENS", 3)
    with pytest.raises(DataError, match=r"warm_up: all 2 examples have more than 3 tokens.*use shorter ones"):
        make(folder, agent_of(folder, seed=5))


SHORT = ("evaluate.during=[]", "evaluate.final=[]", "train.num_steps=1", "train.problems=2", "rollout.num_samples=2")


@pytest.fixture
def warmed_plan(small_plan: Callable[..., Plan], small_models: Path, tmp_path: Path) -> Callable[..., Plan]:
    """Plans of small experiments whose agent qwen is warmed up against `tmp_path/weak`."""
    qwen = compose(str(small_models / "small.yaml"), "hacpo").pair.agents["qwen"]
    shutil.copytree(InitialModel("qwen", qwen, small_models / "models").folder, tmp_path / "weak")
    shutil.copytree(tmp_path / "weak", tmp_path / "strong")
    change_weights(tmp_path / "weak" / "model.safetensors")
    write_rows(tmp_path, *({"problem": f"{n}+1", "solution": f"{n}+1={n + 1}"} for n in range(4)))
    values = (
        f"kind: weak_driven, source: file, weak: {tmp_path}/weak, file: {tmp_path}/s.jsonl, template: '{{problem}}'"
    )
    values += ", num_steps: 2, batch_size: 4, learning_rate: 0.03"
    (tmp_path / "runs").mkdir()
    shutil.copytree(small_models / "models", tmp_path / "runs" / "models")
    agent = f"pair.agents.qwen={{path: {tmp_path}/strong, tiny: null, warm_up: {{{values}}}}}"
    return lambda *words: small_plan("hacpo", agent, *SHORT, *words)


@pytest.mark.slow
def test_experiment_trains_a_warmed_agent_and_its_id_follows_what_it_is_made_of(
    warmed_plan: Callable[..., Plan], small_plan: Callable[..., Plan], tmp_path: Path
) -> None:
    planned = warmed_plan()
    assert planned.id != small_plan("hacpo", *SHORT).id
    assert load_config(planned.root / "config.yaml") == planned.config
    shown: list[tuple[str, int, int]] = []

    class Recording(Watcher):
        def warmed_up(self, agent: str, step: int, num_steps: int, loss: float) -> None:
            shown.append((agent, step, num_steps))

    run_experiment(planned, DirectRunner(), Recording())
    assert shown == [("qwen", 1, 2), ("qwen", 2, 2)]
    values = StepStore(planned.root).metrics(1)["agents"]["qwen"]
    assert np.isfinite(list(values.values())).all()

    agent, models = planned.config.pair.agents["qwen"], tmp_path / "runs" / "models"
    warmed, cold = (InitialModel("qwen", each, models).make() for each in (agent, replace(agent, warm_up=None)))
    trained = weights(planned.root / "checkpoints" / "000001" / "qwen")
    apart = [
        max(float((trained[name] - value).abs().max()) for name, value in weights(start).items())
        for start in (warmed, cold)
    ]
    assert 0 < apart[0] < 0.01 < apart[1], "training began with the warmed weights"

    shutil.move(tmp_path / "weak", tmp_path / "moved")
    moved = warmed_plan(f"pair.agents.qwen.warm_up.weak={tmp_path}/moved")
    assert moved.id == planned.id
    change_weights(tmp_path / "moved" / "model.safetensors")
    with pytest.raises(DataError, match=r"qwen warm_up.weak changed since the experiment was planned"):
        check_contents(moved)
    other = warmed_plan(f"pair.agents.qwen.warm_up.weak={tmp_path}/moved")
    assert other.id != planned.id
    write_rows(tmp_path, {"problem": "1", "solution": "2"})
    assert plan(other.config).id != other.id


def test_fault_is_one_sentence_and_leaves_no_folder(folder: Path) -> None:
    for fields, kind, message in (
        ({"weak": str(folder / "none")}, ModelError, r"warm_up.weak: .*/none is not a folder; set it to the model fol"),
        ({"file": "none"}, DataError, r"warm_up.file: .*none does not exist; put a file with the columns problem and"),
        ({"solution_field": "answer"}, DataError, r"line 1: field 'answer' is missing; the row has problem, solution"),
    ):
        with pytest.raises(kind, match=message):
            make(folder, agent_of(folder, **fields))
    path = folder / "weak" / "tokenizer.json"
    tree = json.loads(path.read_text("utf-8"))
    vocabulary = tree["model"]["vocab"]
    vocabulary["7"], vocabulary["8"] = vocabulary["8"], vocabulary["7"]
    path.write_text(json.dumps(tree), "utf-8")
    with pytest.raises(ModelError, match=r"got .*/weak with 30 tokens and 30 logits, expected the same vocabulary"):
        make(folder)
    TOKENIZER.save_pretrained(folder / "weak")
    write_rows(folder)
    with pytest.raises(DataError, match=r"s.jsonl has no rows"):
        make(folder)
    assert [path for path in folder.glob("models/*") if not path.name.startswith(".")] == []
    with pytest.raises(ConfigError, match=r"warm_up.misconceptions: got \[0.5\], expected 3 probabilities"):
        compose("tiny", "hacpo", overrides=["pair.agents.qwen-tiny.warm_up={misconceptions: [0.5]}"])
