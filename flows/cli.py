"""The `hacpo` command."""

from __future__ import annotations

import copy
import errno
import io
import logging
import sys

import typer

from flows.commands import dashboard, doctor, evaluate, export, grid, report, samples, show, train, worker
from flows.commands.options import EXIT_RUN
from flows.commands.server import server_app
from flows.process import configure_process
from hacpo_core.errors import ConfigError, DataError, HacpoError, LockedError, ModelError
from hacpo_core.store.files import FULL_DISK

EXIT_INPUT, EXIT_LOCKED, EXIT_INTERRUPTED = 2, 4, 130
_OF_THE_DISK = (
    *(errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS),
    *FULL_DISK,
)

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
for command in (
    *(train.train, train.resume, grid.demo, grid.grid, worker.worker, worker.reconcile, report.report, show.show),
    *(evaluate.evaluate, export.export, samples.samples, doctor.doctor, dashboard.dashboard),
):
    app.command()(command)
app.add_typer(server_app, name="server")


class _BriefFormatter(logging.Formatter):
    """Leaves out the traceback of an error that has a remedy, which Prefect logs wherever one passes it."""

    def format(self, record: logging.LogRecord) -> str:
        if record.exc_info and isinstance(record.exc_info[1], HacpoError):
            record = copy.copy(record)  # Prefect's page shows it
            record.exc_info = record.exc_text = None
        return super().format(record)


def main() -> None:
    """Run the command line; an error that has a remedy is printed in one sentence, without a traceback."""
    configure_process()
    terminal = logging.StreamHandler()
    terminal.setFormatter(_BriefFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[terminal])
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a response may hold what the terminal cannot show
    try:
        app()
    except HacpoError as error:
        print(f"hacpo: {error}", file=sys.stderr)
        if isinstance(error, LockedError):
            sys.exit(EXIT_LOCKED)
        sys.exit(EXIT_INPUT if isinstance(error, (ConfigError, DataError, ModelError)) else EXIT_RUN)
    except OSError as error:
        if error.errno not in _OF_THE_DISK:
            raise
        remedy = "free some space" if error.errno in FULL_DISK else "name another folder"
        print(f"hacpo: {error.filename or 'standard output'}: {error.strerror}; {remedy}", file=sys.stderr)
        sys.exit(EXIT_INPUT)
    except SystemExit as end:
        if end.code == EXIT_INTERRUPTED:  # as which typer passes Ctrl-C on
            commits = {"train", "resume", "grid", "evaluate"} & set(sys.argv[1:2])
            goes_on = commits and not any(word.startswith("--with") for word in sys.argv)  # a harness starts again
            what = "; the same command goes on from the last committed phase" if goes_on else ""
            print(f"hacpo: interrupted{what}", file=sys.stderr)
        raise


if __name__ == "__main__":
    main()
