"""The `hacpo` command: train language models together by reinforcement learning."""

import errno
import io
import logging
import signal
import sys
from contextlib import suppress
from importlib.metadata import version
from typing import Annotated

import typer

from flows.commands import before, grid, reference, report, runs, services, train
from flows.commands.options import EXIT_RUN
from flows.process import configure_process
from hacpo_core.errors import (
    OUT_OF_MEMORY,
    ConfigError,
    DataError,
    HacpoError,
    LockedError,
    ModelError,
    is_out_of_memory,
)
from hacpo_core.files import is_full_disk

EXIT_INPUT, EXIT_LOCKED, EXIT_INTERRUPTED = 2, 4, 130
_FOLDER_ERRORS = (errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS)

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"hacpo {version('hacpo')}")
        raise typer.Exit


@app.callback(help=__doc__)
def _options(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    """Options of `hacpo` itself."""


for command in (
    before.probe,
    train.train,
    train.resume,
    grid.demo,
    grid.grid,
    services.worker,
    report.report,
    runs.sync,
    before.show,
    before.prefetch,
    reference.fields,
    reference.methods,
    reference.health,
    runs.delete,
    runs.clean,
    runs.evaluate,
    runs.export,
    runs.samples,
    runs.audit_verifier,
    before.doctor,
    services.dashboard,
):
    app.command()(command)
app.command("list")(runs.list_runs)
app.add_typer(services.server_app, name="server")


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a record is anything but Prefect's copy of an error that passes a task or a flow and ends the command."""
    error = record.exc_info[1] if record.exc_info else None
    is_copy = isinstance(error, HacpoError) or record.name in ("prefect.task_runs", "prefect.flow_runs")
    return not (record.name.startswith("prefect.") and record.levelno >= logging.ERROR and is_copy)


def _why_machine_failed(error: Exception) -> str | None:
    """A sentence with a remedy if memory, the disk or a folder is the cause; None for all else, which is a bug."""
    if is_out_of_memory(error):
        return OUT_OF_MEMORY
    is_full = is_full_disk(error)
    if not is_full and getattr(error, "errno", None) not in _FOLDER_ERRORS:
        return None
    remedy = "free some space" if is_full else "name another folder"
    if isinstance(error, OSError) and error.errno == errno.EROFS:
        remedy = "make the disk writable, then try again"
    where = getattr(error, "filename", None) or "a file of the runs folder"
    return f"{where}: {getattr(error, 'strerror', None) or 'the disk is full'}; {remedy}"


def main() -> None:
    """Run the command line; a `HacpoError` or an error of the machine is one sentence, without a traceback."""
    configure_process()
    terminal = logging.StreamHandler()
    terminal.addFilter(_is_news)
    terminal.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[terminal])
    if isinstance(sys.stdout, io.TextIOWrapper):
        # responses may contain characters that the terminal cannot encode; a pipe gets each line at once, too
        sys.stdout.reconfigure(errors="backslashreplace", line_buffering=True)
    try:
        try:
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does
            app()
        # Ctrl-C before typer catches it, or inside OmegaConf, which turns it into an error of its own
        except (KeyboardInterrupt, Exception) as error:
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, KeyboardInterrupt):
                cause = cause.__context__
            if cause is None or isinstance(error, HacpoError):
                raise
            sys.exit(EXIT_INTERRUPTED)
        finally:
            with suppress(BrokenPipeError):
                sys.stdout.flush()
    except HacpoError as error:
        print(f"hacpo: {error}", file=sys.stderr)
        if isinstance(error, LockedError):
            sys.exit(EXIT_LOCKED)
        sys.exit(EXIT_INPUT if isinstance(error, (ConfigError, DataError, ModelError)) else EXIT_RUN)
    except Exception as error:
        sentence = _why_machine_failed(error)
        if sentence is None:
            raise
        print(f"hacpo: {sentence}", file=sys.stderr)
        sys.exit(EXIT_INPUT)
    except SystemExit as end:
        if end.code == EXIT_INTERRUPTED:  # into which typer turns Ctrl-C
            commits = {"train", "resume", "grid", "demo", "evaluate"} & set(sys.argv[1:2])
            hint = "; the same command resumes from the last committed phase" if commits else ""
            print(f"hacpo: interrupted{hint}", file=sys.stderr)
        elif end.code and "--seed" in sys.argv:
            print("hacpo: a field has no dashes; write seed=1", file=sys.stderr)
        raise


if __name__ == "__main__":
    main()
