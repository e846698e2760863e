"""Arguments and options shared by several commands.

Commands import their dependencies when they run, so that `hacpo --help` stays fast.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from hacpo_core.errors import ConfigError

EXIT_RUN = 3
"""exit code if a run failed"""


Pair = Annotated[str, typer.Argument(help="name in experiments/pairs, or a YAML file")]
MethodName = Annotated[str, typer.Argument(help="name in experiments/methods, or a YAML file")]
GridName = Annotated[str, typer.Argument(help="name in experiments/grids, or a YAML file")]
Overrides = Annotated[list[str] | None, typer.Argument(help="section.field=value; any number; they win over files")]
Hardware = Annotated[str, typer.Option(help="name in experiments/hardware, or a YAML file")]
GridHardware = Annotated[str | None, typer.Option(help="replaces the grid's hardware")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON to standard output")]
RunsDir = Annotated[Path, typer.Option(help="folder of all runs")]
Seeds = Annotated[str | None, typer.Option(help="comma-separated seeds; default: the grid's")]
ExperimentId = Annotated[str, typer.Argument(help="id of an experiment, or an unambiguous prefix")]


def in_runs_dir(overrides: Sequence[str] | None, runs_dir: Path | None) -> list[str]:
    """The overrides, and that of `--runs-dir` if it was given."""
    return [*(overrides or []), *([] if runs_dir is None else [f"runtime.runs_dir={runs_dir}"])]


def stay_offline() -> None:
    """Prevent model downloads. Call before anything imports huggingface_hub."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")


def numbers(text: str | None) -> list[int] | None:
    """Parse comma-separated seeds.

    Raises:
        ConfigError: one of them is not an integer.
    """
    try:
        return None if text is None else [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"--seeds: got {text!r}, expected whole numbers such as 0,1,2") from error
