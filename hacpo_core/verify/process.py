"""One worker process as the pool sees it: start it, hand it a pair, read its reply, kill it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True, order=True)
class Pair:
    """A candidate and the gold answer that it is compared with; the other fields are those of `records.Gold`."""

    candidate: str
    gold: str
    unit: str = ""
    tolerance: float = 0.0
    is_multiple: bool = False


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker has imported its libraries and waits for pairs."""


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The worker cannot import or use math-verify."""

    why: str


@dataclass(frozen=True, slots=True)
class Taken:
    """The worker has read its pair and compares from now on."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The worker decided a pair."""

    is_equal: bool


@dataclass(frozen=True, slots=True)
class Undecided:
    """The worker gave a pair up."""

    reason: str


@dataclass(frozen=True, slots=True)
class Gone:
    """The worker has ended; `stderr` holds what it said while it started."""

    stderr: str


Reply = Ready | StartFailed | Taken | Compared | Undecided | Gone


class WorkerProcess:
    """A child in a session of its own, with pipes of its own; never forked, since the parent may hold threads."""

    def __init__(self, *, memory_mb: int) -> None:
        """Start a worker; it says `Ready` after its imports (about a second).

        The calling thread must outlive the worker: Linux kills the worker when that thread ends.
        """
        self.is_ready = False
        self.started_at = time.monotonic()
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by kill()
        self._received = b""
        search_path = os.pathsep.join(filter(None, (str(_PACKAGE_ROOT), os.environ.get("PYTHONPATH"))))
        try:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    *("-m", "hacpo_core.verify.worker"),
                    *("--memory-mb", str(memory_mb)),
                    *("--parent-pid", str(os.getpid())),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                bufsize=0,
                start_new_session=True,
                # Safe path: a sympy.py in the user's folder must not be imported. Hash seed: verdicts do not vary.
                env={
                    **os.environ,
                    **_SINGLE_THREADED,
                    "PYTHONPATH": search_path,
                    "PYTHONSAFEPATH": "1",
                    "PYTHONHASHSEED": "0",
                },
            )
        except BaseException:
            self._stderr.close()
            raise
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        """Descriptor that becomes readable when `receive` has something to read."""
        return self._stdout.fileno()

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def send(self, pair: Pair) -> bool:
        """Hand a pair to a waiting worker; False where the worker was dead before it could take it."""
        if not self.is_alive():
            return False
        line = json.dumps(asdict(pair)).encode("ascii") + b"\n"
        try:
            # The pipe holds a whole pair (MAX_ANSWER_CHARS), and the worker is reading: this neither blocks nor splits.
            self._stdin.write(line)
        except BrokenPipeError:
            return False
        return True

    def receive(self) -> list[Reply]:
        """Messages of a readable worker: several at once, or none while only part of one has come."""
        chunk = os.read(self.fileno(), 65_536)
        if not chunk:
            return [Gone(stderr=self._startup_errors())]
        *lines, self._received = (self._received + chunk).split(b"\n")
        return [self._message(json.loads(line)) for line in lines]

    def _message(self, fields: dict[str, Any]) -> Reply:
        match fields:
            case {"taken": _}:
                return Taken()
            case {"equal": is_equal}:
                return Compared(is_equal=is_equal)
            case {"unscored": reason}:
                return Undecided(reason=reason)
            case {"failed": why}:
                return StartFailed(why=why)
        self.is_ready = True
        return Ready()

    def kill(self) -> None:
        """Kill the worker and whatever it started, reap it and close its pipes; safe to repeat."""
        if self._process.returncode is None:  # not reaped yet, so that the id is still its own
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._stdin, self._stdout, self._stderr):
            stream.close()

    def _startup_errors(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read().decode("utf-8", errors="replace")[-2_000:].strip()
