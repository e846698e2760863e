"""The child process of the verifier pool: reads pairs of answers, says whether they are equal, is killed when slow.

    python -m hacpo_core.verify.worker --memory-mb 1024 --parent-pid 4711

One JSON object a line, ASCII only, so that lone surrogates and null bytes travel:

    out  {"ready": true}                              once, after the imports; or {"failed": "<why>"}
    in   {"candidate": "...", "gold": "...", "unit": "", "tolerance": 0.0, "is_multiple": false}
    out  {"taken": true}                              so that a worker's death is blamed on the right pair
    out  {"equal": true}                              or {"unscored": "memory" | "error: <type>"}
"""

from __future__ import annotations

import argparse
import ctypes
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

RECURSION_LIMIT = 2_000
"""Deep enough for nested fractions; the C stack of 8 MB holds it."""

_PR_SET_PDEATHSIG = 1
_PROC = Path("/proc/self")


def main(arguments: list[str] | None = None) -> int:
    """Serve until standard input ends; returns the exit status."""
    # Sent to a whole family of processes, it would end this one first, and a pair be unscored; it ends with its parent.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    parser = argparse.ArgumentParser(description="Compare answers; started by hacpo_core.verify.pool.")
    parser.add_argument("--memory-mb", type=int, required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    options = parser.parse_args(arguments)

    requests, replies = take_over_standard_streams()
    die_with_parent(options.parent_pid)
    limit_resources(options.memory_mb)
    try:
        # Imported here: the limits must hold before sympy loads, and the pool is told why an import fails.
        from hacpo_core.verify.equality import answers_equal

        if not answers_equal(r"\frac{1}{2}", "0.5"):
            raise RuntimeError(r"math-verify does not find \frac{1}{2} equal to 0.5")
    except Exception as error:  # noqa: BLE001 - the pool is told, and raises
        send(replies, {"failed": f"{type(error).__name__}: {error}"})
        return 1
    logging.disable(logging.CRITICAL)
    silence_standard_error()
    send(replies, {"ready": True})
    for line in requests:
        send(replies, {"taken": True})
        send(replies, answer(json.loads(line), answers_equal=answers_equal, memory_mb=options.memory_mb))
    return 0


def answer(request: dict[str, Any], *, answers_equal: Callable[..., bool], memory_mb: int) -> dict[str, bool | str]:
    """Reply to one request; an exception of the libraries means that nothing is known of the answer."""
    forget_peak_memory()
    try:
        is_equal = answers_equal(**request)
    except MemoryError:
        return {"unscored": "memory"}
    except Exception as error:  # noqa: BLE001 - any failure of a library is data
        return {"unscored": f"error: {type(error).__name__}"}
    # math-verify swallows a MemoryError and says "not equal": with more than half of the limit used, do not believe it.
    if not is_equal and peak_memory_mb() > memory_mb / 2:
        return {"unscored": "memory"}
    return {"equal": is_equal}


def take_over_standard_streams() -> tuple[BinaryIO, BinaryIO]:
    """Private copies of standard input and output; what a library prints or reads meets the null device."""
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    return requests, replies


def silence_standard_error() -> None:
    """Point standard error at the null device: until now it went to a file that the pool reads if the start fails."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)


def die_with_parent(parent_pid: int) -> None:
    """Ask Linux to kill this process with its parent; a worker that hangs in sympy never sees standard input end."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)


def limit_resources(memory_mb: int) -> None:
    """Bound the address space and the recursion, and leave no core file."""
    limit = memory_mb * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.setrecursionlimit(RECURSION_LIMIT)


def forget_peak_memory() -> None:
    """Let the peak of the resident memory start again from what is resident now, where Linux allows it."""
    try:
        (_PROC / "clear_refs").write_text("5")
    except OSError:
        return


def peak_memory_mb() -> float:
    """Peak of the resident memory in MiB, 0 where the system does not tell."""
    try:
        status = (_PROC / "status").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM:")), 0.0)


def send(replies: BinaryIO, message: dict[str, bool | str]) -> None:
    replies.write(json.dumps(message).encode("ascii") + b"\n")
    replies.flush()


if __name__ == "__main__":
    sys.exit(main())
