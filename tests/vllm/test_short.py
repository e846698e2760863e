"""The short trial of vLLM in .ci/run: skipped with a reason where nothing can be installed, red where a test fails."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def trial_in(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the trial of a copy of this repository, without a package index."""
    environment = os.environ | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)}
    command = ["bash", str(folder / "tests" / "vllm" / "short.sh")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)


def copied(folder: Path) -> Path:
    shutil.copytree(ROOT / "tests" / "vllm", folder / "tests" / "vllm")
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.mark.slow
def test_trial_without_a_package_index_is_skipped_with_the_reason(tmp_path: Path) -> None:
    done = trial_in(copied(tmp_path))
    assert done.returncode == 0
    assert done.stdout.startswith("short vLLM trial: skipped, .venv-vllm cannot be installed: ERROR: ")


def test_trial_whose_tests_fail_fails(tmp_path: Path) -> None:
    root = copied(tmp_path)
    python = root / ".venv-vllm" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$@"\nexit 1\n', encoding="utf-8")
    python.chmod(0o755)
    files = ("pyproject.toml", "constraints.txt", "tests/vllm/requirements.txt", "tests/vllm/install.sh")
    wanted = "".join((root / name).read_text(encoding="utf-8") for name in files)
    (root / ".venv-vllm" / "installed.txt").write_text(wanted, encoding="utf-8")
    done = trial_in(root)
    assert done.returncode == 1
    named = [word.partition("::")[2] for word in done.stdout.split() if "::" in word]
    there = (ROOT / "tests" / "engines" / "vllm" / "test_vllm_sampler.py").read_text(encoding="utf-8")
    assert named
    assert all(f"def {name}(" in there for name in named)
