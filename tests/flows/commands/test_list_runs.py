"""`hacpo list` and `hacpo --version`."""

import json
import os
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.records.failures import record_failure
from flows.records.progress import PROGRESS_FILE, Evaluation, Progress, Spent
from flows.records.states import CONFIG_FILE, RESULT_FILE
from hacpo_core.errors import EngineError
from hacpo_core.files import write_json


def run_folder(runs_dir: Path, name: str, step: int, age_s: float, *scores: float) -> Path:
    root = runs_dir / "experiments" / name
    root.mkdir(parents=True)
    (root / CONFIG_FILE).write_text(f"seed: {age_s}\n", encoding="utf-8")
    evaluations = [Evaluation(n, "gsm8k", "a", score, Spent(0, 0.0, 0.0)) for n, score in enumerate(scores)]
    progress = Progress("p", "m", 0, step, 9, 1e9 - age_s, evaluations=evaluations)
    write_json(root / PROGRESS_FILE, asdict(progress))
    return root


@pytest.fixture
def runs_dir(tmp_path: Path) -> Path:
    write_json(run_folder(tmp_path, "p-m-s0-done", 9, 30.0, 0.25, 0.5) / RESULT_FILE, {})
    record_failure(run_folder(tmp_path, "p-m-s1-failed", 3, 20.0, 0.125), EngineError("out of memory"))
    run_folder(tmp_path, "q-m-s0-new", 1, 10.0)
    os.utime(tmp_path / "experiments" / "p-m-s0-done")  # it is looked at again
    return tmp_path


def test_runs_are_listed_by_their_last_work_with_state_step_and_last_accuracy(runs_dir: Path) -> None:
    found = CliRunner().invoke(app, ["list", "--runs-dir", str(runs_dir)])
    assert found.exit_code == 0
    assert [line.split() for line in found.stdout.splitlines()] == [
        ["q-m-s0-new", "interrupted", "1/9", "interrupted", "at", "step", "1", "of", "9"],
        ["p-m-s1-failed", "failed", "3/9", "EngineError:", "out", "of", "memory"],
        ["p-m-s0-done", "done", "9/9", "a", "gsm8k", "0.500"],
    ]


def test_list_takes_the_beginning_of_an_id_and_prints_json(runs_dir: Path) -> None:
    words = ["list", "p-m", "--runs-dir", str(runs_dir), "--json"]
    rows = json.loads(CliRunner().invoke(app, words).stdout)
    assert [(row["id"], row["step"], row["accuracy"]) for row in rows] == [
        ("p-m-s1-failed", 3, {"a": {"gsm8k": 0.125}}),
        ("p-m-s0-done", 9, {"a": {"gsm8k": 0.5}}),
    ]
    assert "no experiment in" in CliRunner().invoke(app, ["list", "z", "--runs-dir", str(runs_dir)]).stdout


def test_runs_of_one_pair_method_and_seed_say_in_which_fields_they_differ(tmp_path: Path) -> None:
    for name, num_steps in (("p-m-s0-long", 9), ("p-m-s0-short", 2)):
        config = {"pair": {"name": "p"}, "method": {"name": "m"}, "seed": 0, "train": {"num_steps": num_steps}}
        config["runtime"] = {"runner": name}
        (run_folder(tmp_path, name, 1, 0.0) / CONFIG_FILE).write_text(json.dumps(config), encoding="utf-8")
    repaired = run_folder(tmp_path, "p-m-s0-repaired", 0, 0.0) / CONFIG_FILE
    repaired.write_text((tmp_path / "experiments" / "p-m-s0-long" / CONFIG_FILE).read_text(), encoding="utf-8")
    os.utime(tmp_path / "experiments" / "p-m-s0-long" / CONFIG_FILE, (1e9, 1e9))
    (run_folder(tmp_path, "q-m-s0-corrupt", 1, 0.0) / CONFIG_FILE).write_text("{", encoding="utf-8")
    rows = json.loads(CliRunner().invoke(app, ["list", "--runs-dir", str(tmp_path), "--json"]).stdout)
    assert {row["id"]: row["differs"] for row in rows} == {
        "p-m-s0-long": "train.num_steps=9, its model, data or code changed: see p-m-s0-repaired",
        "p-m-s0-repaired": "train.num_steps=9",
        "p-m-s0-short": "train.num_steps=2",
        "q-m-s0-corrupt": "",
    }


def test_version_is_the_packages() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"hacpo {version('hacpo')}\n"
