"""What a person can get wrong ends in one sentence and an exit code, before any model is loaded."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from flows.cli import main
from flows.planning.compose import compose
from flows.planning.plans import check_contents, find_plan, plan, save_plan
from flows.runs.opening import open_experiment
from hacpo_core.config import TinyModelConfig
from hacpo_core.errors import ConfigError, DataError, ModelError, StoreError
from hacpo_core.tiny.models import save_tiny_model


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    """Two sound model folders and a data folder."""
    found = {}
    for name, family in (("one", "qwen3"), ("two", "llama")):
        model = TinyModelConfig(family=family, tokenizer="byte", hidden_size=16, num_layers=1)
        found[name] = tmp_path / name
        save_tiny_model(model, found[name])
    (tmp_path / "data").mkdir()
    rows = [{"id": str(i), "problem": f"{i}+1", "answer": str(i + 1)} for i in range(8)]
    text = "\n".join(json.dumps(row) for row in rows)
    (tmp_path / "data" / "train.jsonl").write_text(text, encoding="utf-8")
    agents = "".join(f"    {name}: {{path: {folder}}}\n" for name, folder in found.items())
    (tmp_path / "pair.yaml").write_text(
        f"pair:\n  name: folders\n  agents:\n{agents}"
        f"data: {{directory: {tmp_path / 'data'}, train: [sums], sets: {{sums: {{file: train.jsonl}}}}}}\n"
        "train: {num_steps: 1, problems: 4}\nmethod: {build: {problems: 2}}\nevaluate: {during: [], final: []}\n"
        "rollout: {max_prompt_tokens: 64, max_response_tokens: 64}\n",
        encoding="utf-8",
    )
    return found


def plan_of(tmp_path: Path, *overrides: str) -> str:
    words = [f"runtime.runs_dir={tmp_path / 'runs'}", *overrides]
    return plan(compose(str(tmp_path / "pair.yaml"), "hacpo", overrides=words)).id


def test_gpu_experiment_can_be_planned_and_not_opened_without_a_gpu(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    words = [f"runtime.runs_dir={tmp_path / 'runs'}", "engine.device=cuda"]
    planned = plan(compose(str(tmp_path / "pair.yaml"), "hacpo", overrides=words))
    with (
        pytest.raises(ConfigError, match=r"engine.device: got cuda, but PyTorch sees no GPU"),
        open_experiment(planned),
    ):
        pass


def test_moved_runs_folder_is_found_from_another_working_directory(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    planned = plan(compose(str(tmp_path / "pair.yaml"), "hacpo", overrides=["runtime.runs_dir=runs"]))
    save_plan(planned)
    (tmp_path / "here" / "runs").rename(tmp_path / "moved")
    found = find_plan(tmp_path / "moved", planned.id)
    assert found.config.runtime.runs_dir == str(tmp_path / "moved")
    assert found.root == tmp_path / "moved" / "experiments" / planned.id


def test_id_follows_the_model_and_not_its_path(folders: dict[str, Path], tmp_path: Path) -> None:
    before = plan_of(tmp_path)
    moved = folders["one"].rename(tmp_path / "moved")
    assert plan_of(tmp_path, f"pair.agents.one.path={moved}") == before
    content = bytearray((moved / "model.safetensors").read_bytes())
    content[-10] ^= 1
    (moved / "model.safetensors").write_bytes(content)
    assert plan_of(tmp_path, f"pair.agents.one.path={moved}") != before


@pytest.mark.slow
def test_changed_data_or_model_is_never_trained_on_under_the_old_id(folders: dict[str, Path], tmp_path: Path) -> None:
    planned = plan(compose(str(tmp_path / "pair.yaml"), "hacpo", overrides=[f"runtime.runs_dir={tmp_path / 'runs'}"]))
    save_plan(planned)
    data, weights = tmp_path / "data" / "train.jsonl", folders["two"] / "model.safetensors"
    for path, named in ((data, "train sums"), (weights, "two")):
        before = path.read_bytes()
        path.write_bytes(before.replace(b'"1"', b'"9"') if path == data else before[:-1] + bytes([before[-1] ^ 1]))
        with (
            pytest.raises(DataError, match=f"{planned.id}: {named} changed since the experiment was planned"),
            open_experiment(find_plan(tmp_path / "runs", planned.id)),
        ):
            pass
        path.write_bytes(before)
    check_contents(find_plan(tmp_path / "runs", planned.id))


def test_misspelt_name_gets_a_hint(tmp_path: Path) -> None:
    for pair, method, hint in (("tinny", "hacpo", "did you mean tiny"), ("tiny", "hacbo", "did you mean hacpo")):
        with pytest.raises(ConfigError, match=hint):
            compose(pair, method)
    (tmp_path / "mine.yaml").touch()
    with pytest.raises(ConfigError, match=r"did you mean mine\.yaml\?"):
        compose(str(tmp_path / "mne.yaml"), "hacpo")


def alone(folder: Path, name: str) -> str:
    """A pair file with the first agent of the folder's pair."""
    tree = yaml.safe_load((folder / "pair.yaml").read_text(encoding="utf-8"))
    del tree["pair"]["agents"]["two"]
    tree["pair"]["name"] = name
    path = folder / "alone.yaml"
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("method", "use"),
    [
        *(("hacpo", "train on"), ("naive", "train on"), ("luffy", "train on")),
        *(("xgrpo", "read"), ("ilr", "read"), ("gspo", None), ("dapo", None)),
    ],
)
def test_method_without_a_partner_says_so(
    method: str, use: str | None, folders: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pair = alone(tmp_path, f"alone-{method}")  # said once for each text
    plan(compose(pair, method, overrides=[f"runtime.runs_dir={tmp_path / 'runs'}"]))
    said = f"pair alone-{method} has one agent, so {method} has no partner whose responses it could {use}"
    assert said in caplog.text if use else "has no partner" not in caplog.text


@pytest.mark.slow
def test_damaged_plan_says_how_it_is_mended(folders: dict[str, Path], tmp_path: Path) -> None:
    planned = plan(compose(str(tmp_path / "pair.yaml"), "hacpo", overrides=[f"runtime.runs_dir={tmp_path / 'runs'}"]))
    for name, error in (("config.yaml", ConfigError), ("contents.json", StoreError)):
        save_plan(planned)
        path = planned.root / name
        path.write_bytes(path.read_bytes()[:100])
        with pytest.raises(error, match=f"{name}: .*run the command that planned the experiment again"):
            check_contents(find_plan(tmp_path / "runs", planned.id))
    save_plan(planned)
    check_contents(find_plan(tmp_path / "runs", planned.id))


@pytest.mark.slow
def test_classes_and_rewards_of_ones_own_are_a_part_of_the_id_by_what_they_do(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    ids = set()
    for constant in (0.5, 0.9):
        text = "from hacpo_core.methods.estimators.groups import GroupEstimator as Mine\n"
        text += f"def reward(*_): return {constant}\n"
        (tmp_path / "my_own.py").write_text(text, encoding="utf-8")
        ids.add(plan_of(tmp_path, "method.estimate.name=my_own:Mine"))
        ids.add(plan_of(tmp_path, "reward.functions=[my_own:reward]"))
    assert len(ids) == 4
    with pytest.raises(ConfigError, match="reward nowhere:reward: there is no module nowhere; put it on PYTHONPATH"):
        plan_of(tmp_path, "reward.functions=[nowhere:reward]")


def test_relative_paths_mean_the_folder_in_which_the_experiment_was_planned(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["data.directory=data", "pair.agents.one.path=one", "tracking.uri=sqlite:///own.db"]
    config = plan(compose(str(tmp_path / "pair.yaml"), "hacpo", overrides=words)).config
    assert config.data.directory == str(tmp_path / "data")
    assert config.pair.agents["one"].path == str(folders["one"])
    assert config.tracking.uri == f"sqlite:///{tmp_path / 'own.db'}"


def test_what_is_wrong_with_models_and_data_is_named(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train.problems: got 16, of which 16 are from data.sets.sums, but it has 8"):
        plan_of(tmp_path, "train.problems=16")
    with pytest.raises(ModelError, match=r"pair.agents.one.path: /nowhere/model is not a folder; set pair"):
        plan_of(tmp_path, "pair.agents.one.path=/nowhere/model")
    (folders["two"] / "chat_template.jinja").unlink()
    with pytest.raises(ModelError, match=r"pair.agents.two: .*no chat template; add chat_template.jinja"):
        plan_of(tmp_path)
    (folders["one"] / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"pair.agents.one: .*no weights.*save_pretrained"):
        plan_of(tmp_path)
    (folders["one"] / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(ModelError, match=r"pytorch_model.bin, a pickle"):
        plan_of(tmp_path)
    for folder in folders.values():
        folder.rename(folder.with_name(f"moved {folder.name}"))
    with pytest.raises(ModelError, match=r"agents.one.path: .* is not a folder.*\n.*agents.two.path: .* is no"):
        plan_of(tmp_path)


def test_broken_data_line_is_named(folders: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "data" / "train.jsonl"
    path.write_text(path.read_text(encoding="utf-8") + '\n{"id": "x"', encoding="utf-8")
    with pytest.raises(DataError, match=r"train.jsonl, line 9: not JSON"):
        plan_of(tmp_path)


def test_command_line_says_one_line_and_exits_with_its_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    cases = (
        "train tiny hacpo method.estimate.window=0",
        "train tiny hacpo rollout.nun_samples=1",
        "show tiny",
        "resume no-such-experiment",
        "resume /no/such/folder",
        "samples **x",
        "report demo --runs-dir /no/such/folder",
        f"worker --runs-dir {tmp_path / 'file'}",
    )
    wrong = []
    for words in cases:
        monkeypatch.setattr("sys.argv", ["hacpo", *words.split()])
        with pytest.raises(SystemExit) as caught:
            main()
        printed = capsys.readouterr().err.strip().splitlines()
        if caught.value.code != 2 or len(printed) != 1 or not printed[0].startswith("hacpo: "):
            wrong.append((words, printed))
    assert wrong == []


def test_disk_without_room_is_one_line(
    small_disk: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = small_disk("64k")
    (folder / "prefect").mkdir()
    with contextlib.suppress(OSError):
        (folder / "full").write_bytes(bytes(2**20))
    monkeypatch.setattr("sys.argv", ["hacpo", "server", "start", "--runs-dir", str(folder)])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    assert "No space left on device; free some space" in capsys.readouterr().err


def test_word_about_an_agent_that_the_pair_lacks_adds_none(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"pair.agents.three: the pair has no such agent, it has one, two"):
        plan_of(tmp_path, f"pair.agents.three.path={folders['one']}")


HIDDEN = """
import sys
sys.modules |= dict.fromkeys(sys.argv.pop(1).split(","))  # an import of None fails as if nothing were installed
from flows.cli import main
main()
"""


def train(folder: Path, *words: str, hidden: str = "nothing_of_this_name") -> subprocess.CompletedProcess[str]:
    """`hacpo train` in a process of its own, on a machine without GPUs and without the hidden package."""
    options = [f"runtime.runs_dir={folder / 'runs'}", "runtime.runner=direct", "tracking.enabled=false"]
    return subprocess.run(
        [sys.executable, "-c", HIDDEN, hidden, "train", str(folder / "pair.yaml"), "hacpo", *options, *words],
        cwd=Path(__file__).parents[3],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.system
def test_engine_that_this_machine_lacks_is_one_line_and_leaves_no_process(
    folders: dict[str, Path], tmp_path: Path, leftovers: Callable[[], list[str]]
) -> None:
    cases = {
        ("vllm", "engine.sampler=vllm"): "engine.sampler: vllm cannot be imported*'hacpo[[]vllm]', or set engine.",
        ("deepspeed", "engine.learner=deepspeed"): "engine.learner: deepspeed cannot*'hacpo[[]deepspeed]', or set ",
        ("ray", "placement.kind=ray"): "placement.kind: ray cannot be imported*'hacpo[[]ray]', or set placement.kind=",
        ("peft", "engine.lora.rank=2"): "engine.lora: peft cannot be imported*'hacpo[[]lora]', or set engine.lora.r",
        ("nothing", "engine.device=cuda"): "engine.device: got cuda, but there is no GPU here; set engine.device=",
    }
    wrong = []
    for (hidden, word), message in cases.items():
        done = train(tmp_path, word, hidden=hidden)
        is_one_line = fnmatch(done.stderr, f"hacpo: {message}*\n") and done.stderr.count("\n") == 1
        if done.returncode != (2 if hidden == "nothing" else 3) or not is_one_line:
            wrong.append((hidden, done.returncode, done.stderr))
    assert wrong == []
    assert not leftovers()
