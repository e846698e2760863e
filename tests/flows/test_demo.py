"""The demo as a user types it: runs, shows, and on the second call reuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from flows.server import stop_server

pytestmark = pytest.mark.slow


def demo(pair: Path, runs_dir: Path) -> str:
    command = [sys.executable, "-m", "flows.cli", "demo", "--pair", str(pair), "--methods", "gspo,hacpo"]
    command += ["--runs-dir", str(runs_dir), "train.num_steps=2"]
    environment = os.environ | {"HACPO_TEST_MARK": str(runs_dir)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def left_behind(mark: str) -> list[str]:
    """Command lines of the processes that a demo with this mark started and that still run, but for the server."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("HACPO_TEST_MARK") == mark:
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return [command for command in found if "prefect server" not in command]


def test_demo_trains_prints_a_table_and_reuses_it_on_the_second_call(small_models: Path, tmp_path: Path) -> None:
    (tmp_path / "models").symlink_to(small_models / "models")
    try:
        printed = demo(small_models / "small.yaml", tmp_path)
        lines = [line.split() for line in printed.splitlines()]
        rows = [words for words in lines if words[:1] == ["small"]]
        assert [(words[1], words[3]) for words in rows] == [
            ("gspo", "qwen"),
            ("gspo", "llama"),
            ("hacpo", "qwen"),
            ("hacpo", "llama"),
        ]
        assert "Prefect  http://127.0.0.1:" in printed
        page = (tmp_path / "demo.html").read_text(encoding="utf-8")
        assert page.count("<svg") >= 3
        assert "hacpo" in page
        assert "src=" not in page, "the page is self-contained"
        again = demo(small_models / "small.yaml", tmp_path)
        assert again.count("is complete and is reused.") == 2
        assert [line.split() for line in again.splitlines() if line.startswith("small ")] == rows
        assert not left_behind(str(tmp_path))
    finally:
        stop_server(tmp_path)
