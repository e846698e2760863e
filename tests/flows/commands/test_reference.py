"""docs/commands.md is what typer writes about the `hacpo` app."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DOCUMENT = Path(__file__).parents[3] / "docs" / "commands.md"
WRITE = ["-m", "typer", "flows.cli", "utils", "docs", "--name", "hacpo", "--title", "Commands"]


def test_reference_of_the_commands_is_up_to_date() -> None:
    written = subprocess.run([sys.executable, *WRITE], capture_output=True, text=True, check=True, timeout=120).stdout
    assert DOCUMENT.read_text("utf-8").split() == written.split(), f"run `python {' '.join(WRITE)} > docs/commands.md`"
