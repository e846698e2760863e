"""What the command line shows of errors."""

from __future__ import annotations

import logging
import os
import socket
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from flows.cli import app, main
from flows.service.processes import Record, home_of
from hacpo_core.errors import ConfigError


@pytest.mark.parametrize(("error", "is_shown"), [(ConfigError("a remedy"), False), (ValueError("a bug"), True)])
def test_terminal_shows_a_traceback_of_bugs_alone(
    error: Exception, is_shown: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prefect logs every error that passes a task or a flow with its traceback."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])

    def command() -> None:
        try:
            raise error
        except Exception:
            logging.getLogger("prefect.engine").exception("Encountered exception")

    monkeypatch.setattr("flows.cli.app", command)
    main()
    said = capsys.readouterr().err
    assert said.startswith("ERROR prefect.engine: Encountered exception\n")
    assert ("Traceback" in said) is is_shown


@pytest.mark.parametrize("end", [SystemExit(130), KeyboardInterrupt()], ids=["by typer", "before typer"])
@pytest.mark.parametrize(("command", "is_resumable"), [("train", True), ("probe", False)])
def test_hint_after_ctrl_c_is_for_commands_that_commit(
    command: str,
    is_resumable: bool,
    end: BaseException,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted() -> None:
        raise end

    monkeypatch.setattr(sys, "argv", ["hacpo", command])
    monkeypatch.setattr("flows.cli.app", interrupted)
    with pytest.raises(SystemExit, match="130"):
        main()
    assert ("resumes from the last committed phase" in capsys.readouterr().err) is is_resumable


def invoke(*words: str) -> None:
    """Run a command, and raise its error."""
    found = CliRunner().invoke(app, list(words))
    if found.exception is not None:
        raise found.exception


def test_number_of_workers_is_refused_beside_a_worker_with_another(tmp_path: Path) -> None:
    home = home_of(tmp_path)
    home.mkdir()
    Record(home, f"worker.{socket.gethostname()}").write(os.getpid(), {"slots": 2})
    with pytest.raises(ConfigError, match=r"--workers: got 4, but the worker of .* takes 2 at a time"):
        invoke("grid", "demo", "--workers", "4", "--runs-dir", str(tmp_path))


def test_every_option_and_argument_has_a_help_text() -> None:
    group = typer.main.get_group(app)
    commands = {**group.commands, **getattr(group.commands["server"], "commands", {})}
    silent = [
        f"{name} {parameter.name}"
        for name, command in commands.items()
        for parameter in command.params
        if not getattr(parameter, "help", None)
    ]
    assert {"train", "server", "stop"} < set(commands)
    assert not silent
