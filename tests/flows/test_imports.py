"""What trains nothing does not wait for torch, transformers and MLflow: seven seconds on two cores."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows.planning.compose import compose, to_yaml
from flows.records.states import CONFIG_FILE

pytestmark = pytest.mark.slow
HEAVY = ("torch", "transformers", "mlflow")
SEEN = """
import sys
def loaded(*names):
    return sorted(set(names) & set(sys.modules))
"""
COMMANDS = [
    "show tiny hacpo",
    "show tiny hacpo --hardware one_gpu_vllm",
    "grid demo --dry-run",
    "list",
    "report demo",
    "server status",
    "methods",
]
MISTAKES = {"train tiny hacpo --hardware one_gpu": "engine.device: got cuda, but there is no GPU here"}


def run(code: str, **environment: str) -> str:
    """Standard output and error of a process that runs this code to its end."""
    kept = {name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"}
    command = [sys.executable, "-c", SEEN + code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=kept | environment)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    "module", ["flows.service.worker", "flows.service.worker_loop", "flows.commands.run_grid", "dashboards.app"]
)
def test_processes_that_train_nothing_are_light(module: str) -> None:
    run(f"import {module}; assert not loaded(*{HEAVY}), loaded(*{HEAVY})")


def test_commands_that_train_nothing_are_light_and_a_grid_that_is_only_shown_draws_nothing(tmp_path: Path) -> None:
    code = "from flows.cli import app; from typer.testing import CliRunner\n"
    for words in COMMANDS:
        expected = 1 if words == "server status" else 0  # there is none
        given = [*words.split(), *([] if words.startswith(("show", "methods")) else ["--runs-dir", str(tmp_path)])]
        code += f"r = CliRunner().invoke(app, {given!r}); assert r.exit_code == {expected}, r.output\n"
        code += f"assert not loaded(*{HEAVY}), ({words!r}, loaded(*{HEAVY}))\n"
        if words.startswith("grid"):
            code += "assert not loaded('vl_convert')\n"
    run(code)


def test_what_is_wrong_is_told_before_anything_heavy_is_loaded(tmp_path: Path) -> None:
    run_folder(tmp_path)
    mistakes = {**MISTAKES, "export tiny-hacpo nobody folder": "agent 'nobody': expected one of qwen-tiny"}
    code = "from flows.cli import app; from typer.testing import CliRunner; import flows.service.gpu_locks as locks\n"
    code += "locks.DRIVERS = ()\n"
    for words, message in mistakes.items():
        given = [*words.split(), "--runs-dir", str(tmp_path)]
        code += f"r = CliRunner().invoke(app, {given!r}); assert {message!r} in str(r.exception), r.exception\n"
        code += f"assert not loaded(*{HEAVY}), ({words!r}, loaded(*{HEAVY}))\n"
    run(code)


def run_folder(runs_dir: Path) -> None:
    """An experiment that is planned."""
    root = runs_dir / "experiments" / "tiny-hacpo-s0-0a"
    root.mkdir(parents=True)
    (root / CONFIG_FILE).write_text(to_yaml(compose("tiny", "hacpo")), encoding="utf-8")


def test_first_sampling_waits_for_no_package_that_it_does_not_need() -> None:
    code = "import flows.runs.experiment; assert not loaded('mlflow', 'prefect')\n"
    code += "import flows.runs.flow; assert not loaded('mlflow')\n"
    code += f"import flows.runs.mlflow_store; assert len(loaded(*{HEAVY})) == {len(HEAVY)}"  # what is loaded is seen
    run(code)


def test_saving_a_model_warns_of_nothing(tmp_path: Path) -> None:
    model = "LlamaForCausalLM(LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_attention_heads=2))"
    saved = f"from transformers import LlamaConfig, LlamaForCausalLM; save_model({model}, Path({str(tmp_path)!r}))"
    said = run(f"from pathlib import Path; from hacpo_core.engines.models.lora import save_model; {saved}")
    assert "WARN" not in said
    assert (tmp_path / "model.safetensors").is_file()


def test_agents_are_imported_behind_transformers() -> None:
    run("import transformers, hacpo_core.placement.agents")
