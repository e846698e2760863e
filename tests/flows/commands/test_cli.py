"""What the command line shows of errors."""

import errno
import logging
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from safetensors import SafetensorError
from typer.testing import CliRunner

from flows.cli import app, main
from flows.records.failures import failures_recorded, read_failure
from flows.runs import display
from flows.runs.display import TerminalWatcher
from flows.service.processes import Record, home_of
from hacpo_core.errors import ConfigError, StoreError
from hacpo_core.files import make_folder


def test_error_of_a_run_is_said_once_whatever_prefect_logs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    errors: list[Exception] = []

    def command() -> None:
        try:
            raise errors[-1]
        except Exception:
            logging.getLogger("prefect.task_runs").error("Finished in state Failed(%r)", errors[-1])
            logging.getLogger("prefect.engine").exception("Encountered exception")
            raise

    monkeypatch.setattr("flows.cli.app", command)
    for error, end, is_said in ((ConfigError("a remedy"), SystemExit, False), (ValueError("a bug"), ValueError, True)):
        errors.append(error)
        monkeypatch.setattr(logging.getLogger(), "handlers", [])
        with pytest.raises(end):
            main()
        said = capsys.readouterr().err
        assert "task_runs" not in said
        assert ("ERROR prefect.engine: Encountered exception\nTraceback" in said) is is_said
        assert (said == "hacpo: a remedy\n") is not is_said


def _interrupt_in_omegaconf() -> Exception:
    error = AttributeError("'NoneType' object has no attribute '_invalidate_flags_cache'")
    error.__context__ = KeyboardInterrupt()
    return error


@pytest.mark.parametrize("end", [SystemExit(130), KeyboardInterrupt(), _interrupt_in_omegaconf()], ids=repr)
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


def test_crash_of_the_machine_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever library meets it: some raise no OSError, or one without a number."""
    full = "[Errno 28] No space left on device"
    errors = [
        (MemoryError(), "memory ran out"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), "memory ran out"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0"), "memory ran out"),
        (ImportError("libtorch.so: failed to map segment: Cannot allocate memory"), "memory ran out"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory ran out"),
        (OSError(errno.ENOSPC, "No space left on device", "log"), "log: No space left on device; free some space"),
        (SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"), "disk is full"),
        (shutil.Error([("a", "b", f"{full}: 'a' -> 'b'")]), "disk is full"),
        (OSError(errno.EROFS, "Read-only file system", "runs"), "runs: Read-only file system; make the disk writable"),
        (PermissionError(errno.EACCES, "Permission denied", "runs"), "name another folder"),
    ]
    monkeypatch.setattr("flows.cli.app", lambda: (_ for _ in ()).throw(crash))
    for crash, sentence in errors:
        with pytest.raises(SystemExit):
            main()
        said = capsys.readouterr().err
        assert said.startswith("hacpo: ") and said.count("\n") == 1 and sentence in said, crash

    def copied(folder: Path) -> None:
        raise shutil.Error([("a", "b", f"{full}: 'a' -> 'b'")])

    with pytest.raises(StoreError, match="cannot write .*: the disk is full; free some space"):
        make_folder(tmp_path / "model", copied)
    with suppress(RuntimeError), failures_recorded(tmp_path):
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    failure = read_failure(tmp_path)
    assert failure is not None and failure.reason.startswith("RuntimeError: memory ran out; lower ")
    limit = "import resource as r; r.setrlimit(r.RLIMIT_AS, (2**30, 2**30)); "
    code = f"{limit}from hacpo_core.verify.worker import limit_resources; limit_resources(2048)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0, "the verifier takes what the user may have"


@pytest.mark.slow
def test_full_disk_below_the_tests_is_one_sentence(small_disk: Callable[[str], Path]) -> None:
    folder = small_disk("24k")
    words = [sys.executable, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider", "tests/data/test_rows.py"]
    done = subprocess.run(words, env=os.environ | {"TMPDIR": str(folder)}, capture_output=True, text=True)
    said = f"the disk of {folder} is full; free some space, or set TMPDIR to another folder"
    assert done.returncode == 2 and said in "".join(done.stdout.splitlines()[-2:]), done.stdout
    assert "Errno" not in done.stdout + done.stderr and len(done.stdout.splitlines()) < 20, done.stdout


def test_log_of_a_training_holds_no_redraws_and_a_warm_up_ends_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with TerminalWatcher("run") as watcher:
        for step in (1, 2):
            watcher.warmed_up("qwen", step, 2, 0.5)
        for step in (1, 2, 3):
            watcher.show("run", step, 3, "mean reward 0.5")
        watcher.finish("run", "done")
    assert capsys.readouterr().err == "warm-up qwen: done, loss 0.500 (0 s)\nrun: done (0 s)\n"


def test_log_of_a_long_training_has_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0, 0, 29, 31, 31, 60])
    monkeypatch.setattr(display, "time", SimpleNamespace(monotonic=lambda: next(times)))
    with TerminalWatcher("run") as watcher:
        for step in (1, 2, 3, 4):
            watcher.show("run", step, 9, "mean reward 0.5")
    assert capsys.readouterr().err == "run: 3/9, mean reward 0.5\n"


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
