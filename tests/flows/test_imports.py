"""What trains nothing does not wait for torch, transformers and MLflow: seven seconds on two cores."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "transformers", "mlflow")
WATCHED = f"""
import sys
{{}}
print(sorted(set({HEAVY!r}) & set(sys.modules)))
"""


def heavy_after(code: str) -> str:
    """Which of the heavy packages a process has after this code, as it prints them."""
    done = subprocess.run([sys.executable, "-c", WATCHED.format(code)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    "module",
    ["flows.service.worker", "flows.service.reconciler", "flows.runs.grid", "experiments.run", "dashboards.app"],
)
def test_processes_that_train_nothing_are_light(module: str) -> None:
    assert heavy_after(f"import {module}") == "[]"


@pytest.mark.parametrize("words", ["show tiny hacpo", "grid demo --dry-run", "report demo", "server status"])
def test_commands_that_train_nothing_are_light(words: str, tmp_path: Path) -> None:
    given = [*words.split(), "--runs-dir", str(tmp_path)]
    expected = 1 if words == "server status" else 0  # there is none
    code = f"r = CliRunner().invoke(app, {given!r}); assert r.exit_code == {expected}, r.output"
    assert heavy_after(f"from flows.cli import app; from typer.testing import CliRunner; {code}") == "[]"


def test_grid_that_is_only_shown_draws_nothing(tmp_path: Path) -> None:
    given = ["grid", "demo", "--dry-run", "--runs-dir", str(tmp_path)]
    shown = f"r = CliRunner().invoke(app, {given!r}); assert r.exit_code == 0, r.output"
    code = f"import sys; from flows.cli import app; from typer.testing import CliRunner; {shown}"
    subprocess.run([sys.executable, "-c", f"{code}; assert 'vl_convert' not in sys.modules"], check=True, timeout=120)


def test_training_is_heavy() -> None:
    assert heavy_after("import flows.runs.experiment, hacpo_core.tracking") == str(sorted(HEAVY))


@pytest.mark.parametrize(
    ("module", "unused"),
    [("flows.runs.experiment", {"mlflow", "prefect"}), ("flows.runs.runner", {"mlflow"})],
)
def test_first_sampling_waits_for_no_package_that_it_does_not_need(module: str, unused: set[str]) -> None:
    code = f"import sys, {module}; assert not {unused!r} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_saving_a_model_warns_of_nothing(tmp_path: Path) -> None:
    model = "LlamaForCausalLM(LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_attention_heads=2))"
    saved = f"from transformers import LlamaConfig, LlamaForCausalLM; save_model({model}, Path({str(tmp_path)!r}))"
    code = f"from pathlib import Path; from hacpo_core.engines.torch.lora import save_model; {saved}"
    plain = {name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=plain)
    assert done.returncode == 0
    assert "WARN" not in done.stdout + done.stderr
    assert (tmp_path / "model.safetensors").is_file()


def test_agents_are_imported_behind_transformers() -> None:
    subprocess.run([sys.executable, "-c", "import transformers, hacpo_core.placement.agents"], check=True, timeout=120)
