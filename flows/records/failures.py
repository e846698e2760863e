"""The error that ended an experiment, stored in its folder for tables and the dashboard."""

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from flows.records.files import read_record
from hacpo_core.errors import OUT_OF_MEMORY, LockedError, ServerError, StoreError, is_out_of_memory
from hacpo_core.files import write_json

_log = logging.getLogger(__name__)
FAILURE_FILE = "failure.json"


@dataclass(frozen=True, slots=True)
class Failure:
    """The error that ended an attempt; a new attempt removes it."""

    error: str
    message: str
    traceback: str

    @property
    def reason(self) -> str:
        """One line for a table."""
        return f"{self.error}: {self.message.strip().partition(chr(10))[0]}"


_FAILURE = TypeAdapter(Failure)


def read_failure(root: Path) -> Failure | None:
    """Why the last attempt failed; None if it did not fail or the file is corrupt."""
    return read_record(root / FAILURE_FILE, _FAILURE)


def record_failure(root: Path, error: BaseException) -> None:
    """Store the error; if that fails (a full disk), log a warning."""
    lines = "".join(traceback.format_exception(error))
    failure = Failure(type(error).__name__, OUT_OF_MEMORY if is_out_of_memory(error) else str(error), lines)
    try:
        write_json(root / FAILURE_FILE, asdict(failure))
    except StoreError as problem:
        _log.warning("the failure of %s could not be recorded: %s", root.name, problem)


@contextmanager
def failures_recorded(root: Path) -> Iterator[None]:
    """Record an exception raised in the block; a lock held elsewhere, a server outage and Ctrl-C are not recorded."""
    (root / FAILURE_FILE).unlink(missing_ok=True)
    try:
        yield
    except (LockedError, ServerError):
        raise
    except Exception as error:
        record_failure(root, error)
        raise
