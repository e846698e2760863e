"""An experiment's log in its folder: attempts, steps, retries, warnings; one JSON object per line."""

import json
import logging
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from hacpo_core.errors import first_line

LOG_FILE = "log.jsonl"
_TAIL_BYTES = 256 * 1024
_events = logging.getLogger("hacpo.events")


@dataclass(frozen=True, slots=True)
class LogLine:
    """An entry; `kind` is "start", "end", "retry", "step" or the level of a logged message."""

    time: float
    """seconds since the epoch"""
    kind: str
    text: str
    host: str


_LINE = TypeAdapter(LogLine)


class _LogFile(logging.Handler):
    def __init__(self, path: Path) -> None:
        super().__init__(logging.INFO)
        self._path, self._host = path, socket.gethostname()
        self._is_lost = False

    def emit(self, record: logging.LogRecord) -> None:
        kind = getattr(record, "kind", record.levelname.lower())
        line = {"time": record.created, "kind": kind, "text": record.getMessage(), "host": self._host}
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:  # a disk that is full or read-only stops the run elsewhere
            if not self._is_lost:
                print(
                    f"{self._path} cannot be written ({error.strerror}); its entries are lost until it can",
                    file=sys.stderr,
                )
            self._is_lost = True


def log_entry(kind: str, text: str) -> None:
    """Add an entry to the log of the experiment that this process trains, if any."""
    _events.info("%s", text, extra={"kind": kind})


@contextmanager
def logged(root: Path) -> Iterator[None]:
    """Write entries, and all warnings of this process, to the experiment's log, and at last how the block ended."""
    handler = _LogFile(root / LOG_FILE)
    _events.setLevel(logging.INFO)
    _events.propagate = False  # the terminal has its own display of steps
    for logger in (logging.getLogger(), _events):
        logger.addHandler(handler)
    begun_at = time.monotonic()
    try:
        yield
        log_entry("end", f"complete after {time.monotonic() - begun_at:.0f} s")
    except BaseException as error:
        log_entry("end", f"ended by {type(error).__name__}: {first_line(error)}".rstrip(": "))
        raise
    finally:
        for logger in (logging.getLogger(), _events):
            logger.removeHandler(handler)


def log_start(step: int) -> None:
    """Note that an attempt begins after a step."""
    log_entry("start", f"started on {socket.gethostname()} (process {os.getpid()}) after step {step}")


def read_log(root: Path) -> list[LogLine]:
    """The newest entries, oldest first; lines that a crash cut short are left out."""
    lines = []
    with suppress(OSError), (root / LOG_FILE).open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        for text in file.read().splitlines():
            with suppress(ValidationError):
                lines.append(_LINE.validate_json(text))
    return lines
