"""A process that calls one function and can be killed: it compares answers or runs a user's reward function.

    caller ──submit──▶ thread ──pipe──▶ process (worker.py), killed at the time limit

The first call starts the process; later calls reuse it.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from hacpo_core.errors import VerificationError

START_TIMEOUT_S = 120.0
MAX_STARTS = 4
"""give up after this many processes in a row that exit before they accept a call"""


@dataclass(frozen=True, slots=True)
class Reply:
    """Result of a call; `failure` is "timeout", "crashed", the text of an exception, or "" on success."""

    value: Any
    failure: str
    seconds: float


class Worker:
    """A process in its own session; started without fork, because the caller may have threads.

    Submit `call` to `thread`: with PR_SET_PDEATHSIG Linux kills the process when the thread that started it ends, and
    this thread lives until `close`.
    """

    def __init__(
        self, function: str, *, memory_mb: int, environment: Mapping[str, str], message: str, is_silent: bool = False
    ) -> None:
        """The process starts on the first call.

        Args:
            function: `package.module:function`, called as `function(*arguments)`; returns a list of plain values.
            memory_mb: limit of the process's address space, MiB.
            environment: environment variables added to those of this process.
            message: error message if no process can be started, with `{why}` in it.
            is_silent: discard the function's output and logs, and ignore SIGTERM.
        """
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="verify-worker")
        self._function, self._memory_mb, self._environment = function, memory_mb, environment
        self._message, self._is_silent, self._is_interrupted = message, is_silent, False
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None

    def call(self, *arguments: Any, timeout_s: float) -> Reply:
        """Call the function; the time limit does not include the start of a process.

        A process that died before it accepted the call is replaced. If it dies during the call, the call is repeated
        once: it may have been killed from outside, and what makes a process crash does so again.

        Raises:
            VerificationError: the function cannot be imported, every new process dies, or the call was interrupted.
        """
        self._is_interrupted = False
        reply = self._call_once(arguments, timeout_s)
        return self._call_once(arguments, timeout_s) if reply.failure == "crashed" else reply

    def _call_once(self, arguments: tuple[Any, ...], timeout_s: float) -> Reply:
        last_error = ""
        for _ in range(MAX_STARTS):
            if self._pipe is None:
                last_error = self._start()
            if not self._is_interrupted and self._hand_over(arguments):
                break
            self._end_process()
        else:
            last_line = last_error.rpartition("\n")[2]
            raise self._start_error(f"{MAX_STARTS} processes in a row exited on their own, the last with {last_line!r}")
        since = time.monotonic()
        kind, value = self._receive(timeout_s)
        seconds = time.monotonic() - since
        if kind == "returned":
            return Reply(value, "", seconds)
        if kind == "raised":
            return Reply(None, value, seconds)
        self._end_process()
        return Reply(None, kind, seconds)

    def _end_process(self) -> None:
        """End the process; raises if the call was interrupted, so that its reply is not mistaken for a verdict."""
        self.end()
        if self._is_interrupted:
            raise VerificationError("the verifier was stopped during a call; nothing of it is recorded")

    def interrupt(self) -> None:
        """Kill the process, from any thread: the current call raises an error, the next one starts a new process."""
        self._is_interrupted = True
        process = self._process
        if process is not None:
            process.kill()

    def end(self) -> None:
        """Kill the process and its children; safe to repeat, but not during a call."""
        if self._process is not None:
            if self._process.returncode is None:  # not reaped yet, so the pid is still its own
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._pipe is not None:
            self._pipe.close()
        self._process = self._pipe = None

    def close(self) -> None:
        """End the process and the thread; safe to repeat."""
        self.interrupt()
        self.thread.shutdown(cancel_futures=True)
        self.end()

    def _start(self) -> str:
        """Start a process and wait for its imports; returns what a silent process wrote to standard error meanwhile."""
        self._pipe, child_end = Pipe()
        with child_end, tempfile.TemporaryFile() as errors:
            arguments = [self._function, child_end.fileno(), self._memory_mb, os.getpid(), int(self._is_silent)]
            self._process = subprocess.Popen(
                [sys.executable, "-m", "hacpo_core.verify.worker", *map(str, arguments)],
                pass_fds=[child_end.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if self._is_silent else None,
                stderr=errors if self._is_silent else None,
                start_new_session=True,
                env=os.environ | self._environment,
            )
            child_end.close()
            kind, why = self._receive(START_TIMEOUT_S)
            if kind in ("failed", "timeout"):
                self.end()
                raise self._start_error(why or f"not ready after {START_TIMEOUT_S:.0f} s")
            errors.seek(0)
            return errors.read().decode("utf-8", errors="replace")[-2_000:].strip()

    def _hand_over(self, arguments: tuple[Any, ...]) -> bool:
        """Whether the process accepted the arguments; False if it had already died."""
        assert self._pipe is not None
        try:
            self._pipe.send(arguments)
        except OSError:
            return False
        return self._receive(START_TIMEOUT_S)[0] == "taken"

    def _receive(self, timeout_s: float) -> tuple[str, Any]:
        """Kind and value of the next message; the kind is "timeout" or "crashed" if there is none."""
        assert self._pipe is not None
        try:
            if not self._pipe.poll(timeout_s):
                return "timeout", None
            kind, value = self._pipe.recv()
        except (EOFError, OSError):
            return "crashed", None
        return kind, value

    def _start_error(self, why: str) -> VerificationError:
        return VerificationError(self._message.replace("{why}", why))
