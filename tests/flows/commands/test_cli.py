"""What the command line shows of errors."""

from __future__ import annotations

import logging

import pytest
import typer

from flows.cli import app, main
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
